// The closed tables of the page: records, data types, errors.
#pragma once

#include "value.hpp"

namespace omniwire {

constexpr unsigned newest_version = 1;
constexpr std::size_t alignment = 64;
enum Extension : int { record_name = 1, tensor = 2, array = 3, token_ids = 4, int32s = 5, int64s = 6, digests = 7 };

struct DataType {
    const char* name;
    unsigned size;
    bool array;  // legal as type 3
};
// The code of a data type is its place in this table, counted from 1.
extern const std::vector<DataType> data_types;
const DataType* data_type(std::uint64_t code);  // null where there is none

enum class Form {
    text,
    kind,  // of an output chunk
    boolean,
    integer,
    bytes,
    opaque,  // bytes of a handle
    ints,
    digests,
    token_ids,
    references,
    dtype,
    payload,
    tensor,
    record,
    handles,     // array of TensorHandle
    uuids,       // array of text or nil
    partitions,  // map of modality to map of field to MultimodalItemPartition
    errors,      // map of text to error
};

struct Field {
    const char* name;
    Form form;
    bool optional = false;          // nil is legal
    bool required = false;          // else `absent` stands for a field that is not there
    Value absent = {};
    const char* record = nullptr;   // of form record
};
struct Record {
    const char* name;
    std::vector<Field> fields;
};
const Record* find_record(std::string_view name);  // null where there is none

struct Error {
    const char* name;
    const char* arguments;  // each: text, int, int or nil (o), array of text (T), problem or problems (P)
};
const Error* find_error(std::string_view name);

}  // namespace omniwire
