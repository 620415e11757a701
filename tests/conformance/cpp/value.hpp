// What a message holds, once it is decoded.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace omniwire {

using Bytes = std::string_view;

// A message is refused; `code` is one of the codes of the page.
struct Refusal : std::runtime_error {
    Refusal(std::string code_, const std::string& what) : runtime_error(what), code(std::move(code_)) {}
    std::string code;
};

// An integer of -2^63 to 2^64-1: two's complement, and how to read it.
struct Integer {
    bool negative = false;
    std::uint64_t bits = 0;

    static Integer of(std::int64_t value) { return {value < 0, static_cast<std::uint64_t>(value)}; }
    bool fits(std::int64_t low, std::int64_t high) const {
        if (!negative && bits > static_cast<std::uint64_t>(INT64_MAX)) return false;
        return low <= small() && small() <= high;
    }
    std::int64_t small() const { return static_cast<std::int64_t>(bits); }
    std::string text() const { return negative ? std::to_string(small()) : std::to_string(bits); }
};

enum class Kind {
    nil,
    boolean,
    integer,
    real,
    text,
    bytes,
    dtype,
    token_ids,  // items are integers
    tuple,      // items
    mapping,    // keys and items
    record,     // name, keys and items
    error,      // name and items
    tensor,
    array,
    // Only while a message is read
    record_name,
    unknown,  // an extension that this version does not have
};

// The value of a field or of a payload. Bytes point into the message, which outlives it.
struct Value {
    Kind kind = Kind::nil;
    bool boolean = false;
    double real = 0;
    Integer integer;                  // also the code of a dtype, a tensor or an array
    Bytes bytes;                      // of a tensor or an array: its values
    std::vector<std::uint64_t> shape;
    std::string name;                 // of a text: the text
    std::vector<std::string> keys;
    std::vector<Value> items;

    const Value& at(std::string_view key) const {
        for (std::size_t i = 0; i < keys.size(); ++i)
            if (keys[i] == key) return items[i];
        throw std::logic_error("no field " + std::string(key));
    }
    bool has(std::string_view key) const {
        for (const auto& own : keys)
            if (own == key) return true;
        return false;
    }
    bool is(Kind other) const { return kind == other; }
};

}  // namespace omniwire
