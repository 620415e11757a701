// Decoded objects as JSON, each kind of value in a form that no other has:
//
//   nil, bool, int, text   null, true, 1, "text"
//   float                  {"float": "3ff8000000000000"}     the bits
//   bytes                  {"bytes": "00ff"}
//   tuple                  [...]
//   mapping                {"map": {...}}
//   token ids              {"token_ids": [1, 2]}
//   record                 {"record": "Concat", "fields": {"dim": 0}}
//   error                  {"error": "PeerDied", "arguments": ["gone"]}
//   tensor, numpy array    {"tensor": "int8", "shape": [1], "bytes": "ff"}, {"array": ...
//   data type              {"dtype": "int8"}
#include <cstring>

#include "message.hpp"
#include "tables.hpp"

namespace omniwire {
namespace {

std::string hex(Bytes bytes) {
    constexpr const char* digits = "0123456789abcdef";
    std::string text;
    for (const char byte : bytes) {
        text += digits[static_cast<unsigned char>(byte) >> 4];
        text += digits[byte & 15];
    }
    return text;
}

std::string bits(double real) {
    std::uint64_t number = 0;
    std::memcpy(&number, &real, sizeof number);
    std::string bytes;
    for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
    return hex(bytes);
}

std::string quoted(std::string_view text) {
    std::string result = "\"";
    for (const char c : text)
        if (c == '"' || c == '\\')
            result += {'\\', c};
        else if (static_cast<unsigned char>(c) < 0x20)
            result += "\\u00" + hex({&c, 1});
        else
            result += c;
    return result + '"';
}

template <typename Item>
std::string list(const std::vector<Item>& items, const std::vector<std::string>* keys = nullptr) {
    std::string result(1, keys ? '{' : '[');
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (i) result += ", ";
        if (keys) result += quoted((*keys)[i]) + ": ";
        if constexpr (std::is_same_v<Item, Value>)
            result += show(items[i]);
        else
            result += std::to_string(items[i]);
    }
    return result + (keys ? '}' : ']');
}

}  // namespace

std::string show(const Value& value) {
    switch (value.kind) {
        case Kind::nil: return "null";
        case Kind::boolean: return value.boolean ? "true" : "false";
        case Kind::integer: return value.integer.text();
        case Kind::real: return "{\"float\": \"" + bits(value.real) + "\"}";
        case Kind::text: return quoted(value.name);
        case Kind::bytes: return "{\"bytes\": \"" + hex(value.bytes) + "\"}";
        case Kind::dtype: return std::string("{\"dtype\": \"") + data_type(value.integer.bits)->name + "\"}";
        case Kind::token_ids: return "{\"token_ids\": " + list(value.items) + "}";
        case Kind::tuple: return list(value.items);
        case Kind::mapping: return "{\"map\": " + list(value.items, &value.keys) + "}";
        case Kind::record:
            return "{\"record\": \"" + value.name + "\", \"fields\": " + list(value.items, &value.keys) + "}";
        case Kind::error: return "{\"error\": \"" + value.name + "\", \"arguments\": " + list(value.items) + "}";
        case Kind::tensor:
        case Kind::array:
            return std::string(value.is(Kind::tensor) ? "{\"tensor\": \"" : "{\"array\": \"") +
                   data_type(value.integer.bits)->name + "\", \"shape\": " + list(value.shape) + ", \"bytes\": \"" +
                   hex(value.bytes) + "\"}";
        default: throw std::logic_error("only while a message is read");
    }
}

}  // namespace omniwire
