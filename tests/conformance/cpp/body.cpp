#include "body.hpp"

#include <algorithm>
#include <msgpack.hpp>

#include "tables.hpp"

namespace omniwire {
namespace {

constexpr std::size_t max_depth = 128;  // in msgpack; that of payloads is the reader's

void check_utf8(Bytes text) {
    for (std::size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i]);
        const std::size_t size = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
        if (size == 0 || size > text.size() - i) throw Refusal("syntax", "no UTF-8");
        std::uint32_t point = size == 1 ? lead : lead & (0x7fU >> size);
        for (std::size_t k = 1; k < size; ++k) {
            const auto next = static_cast<unsigned char>(text[i + k]);
            if (next >> 6 != 2) throw Refusal("syntax", "no UTF-8");
            point = point << 6 | (next & 0x3fU);
        }
        constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        if (point < least[size] || point > 0x10ffff || point >> 11 == 0x1b) throw Refusal("syntax", "no UTF-8");
        i += size;
    }
}

std::uint64_t little(Bytes bytes) {
    std::uint64_t number = 0;
    for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte)
        number = number << 8 | static_cast<unsigned char>(*byte);
    return number;
}

// Little-endian integers of `width` bytes.
Value integers(Kind kind, Bytes bytes, std::size_t width) {
    if (bytes.size() % width != 0) throw Refusal("syntax", "size of an extension");
    Value value;
    value.kind = kind;
    for (std::size_t i = 0; i < bytes.size(); i += width) {
        Value item;
        item.kind = Kind::integer;
        const std::uint64_t bits = little(bytes.substr(i, width));
        item.integer = Integer::of(width == 4 ? static_cast<std::int32_t>(bits) : static_cast<std::int64_t>(bits));
        value.items.push_back(item);
    }
    return value;
}

Value digest_rows(Bytes bytes) {
    if (bytes.size() % 32 != 0) throw Refusal("syntax", "size of digests");
    Value value;
    value.kind = Kind::tuple;
    for (; !bytes.empty(); bytes.remove_prefix(32)) value.items.push_back(integers(Kind::tuple, bytes.substr(0, 32), 4));
    return value;
}

struct Builder : msgpack::null_visitor {
    Builder(const std::vector<Bytes>& frames_, bool newer_) : frames(frames_), newer(newer_) {}

    const std::vector<Bytes>& frames;
    const bool newer;
    Tree tree;
    std::vector<Value> open;
    bool in_key = false;

    bool add(Value value) {
        if (in_key) throw Refusal("type", "a key is no text");
        if (open.empty())
            tree.root = std::move(value);
        else
            open.back().items.push_back(std::move(value));
        return true;
    }
    static Value of(Kind kind) {
        Value value;
        value.kind = kind;
        return value;
    }

    bool visit_nil() { return add({}); }
    bool visit_boolean(bool is) {
        Value value = of(Kind::boolean);
        value.boolean = is;
        return add(value);
    }
    bool visit_integer(Integer is) {
        Value value = of(Kind::integer);
        value.integer = is;
        return add(value);
    }
    bool visit_positive_integer(std::uint64_t is) { return visit_integer({false, is}); }
    bool visit_negative_integer(std::int64_t is) { return visit_integer(Integer::of(is)); }
    bool visit_float32(float is) { return visit_float64(static_cast<double>(is)); }
    bool visit_float64(double is) {
        Value value = of(Kind::real);
        value.real = is;
        return add(value);
    }
    bool visit_str(const char* data, std::uint32_t size) {
        const Bytes text = size ? Bytes(data, size) : Bytes();
        check_utf8(text);
        if (in_key) {
            open.back().keys.emplace_back(text);
            return true;
        }
        Value value = of(Kind::text);
        value.name = text;
        return add(value);
    }
    bool visit_bin(const char* data, std::uint32_t size) {
        Value value = of(Kind::bytes);
        value.bytes = size ? Bytes(data, size) : Bytes();
        return add(value);
    }
    bool visit_ext(const char* data, std::uint32_t size) {
        const Bytes payload(data + 1, size - 1);
        switch (static_cast<signed char>(*data)) {
            case Extension::record_name: {
                check_utf8(payload);
                Value value = of(Kind::record_name);
                value.name = payload;
                return add(value);
            }
            case Extension::tensor: return add(tensor(Kind::tensor, payload));
            case Extension::array: return add(tensor(Kind::array, payload));
            case Extension::token_ids: {
                Value ids = integers(Kind::token_ids, payload, 4);
                for (const auto& id : ids.items)
                    if (id.integer.negative) throw Refusal("contract", "a token id is negative");
                return add(std::move(ids));
            }
            case Extension::int32s: return add(integers(Kind::tuple, payload, 4));
            case Extension::int64s: return add(integers(Kind::tuple, payload, 8));
            case Extension::digests: return add(digest_rows(payload));
            default:
                if (!newer) throw Refusal("unknown", "extension");
                return add(of(Kind::unknown));
        }
    }

    bool start(Kind kind) {
        if (in_key) throw Refusal("type", "a key is no text");
        if (open.size() == max_depth) throw Refusal("limit", "depth");
        open.push_back(of(kind));
        return true;
    }
    bool end() {
        Value value = std::move(open.back());
        open.pop_back();
        std::vector<Bytes> keys(value.keys.begin(), value.keys.end());
        std::sort(keys.begin(), keys.end());
        if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) throw Refusal("duplicate", "key");
        return add(std::move(value));
    }
    bool start_array(std::uint32_t) { return start(Kind::tuple); }
    bool end_array() { return end(); }
    bool start_map(std::uint32_t) { return start(Kind::mapping); }
    bool end_map() { return end(); }
    bool start_map_key() { return in_key = true; }
    bool end_map_key() { return !(in_key = false); }
    void parse_error(std::size_t, std::size_t) { throw Refusal("syntax", "no msgpack"); }
    void insufficient_bytes(std::size_t, std::size_t) { throw Refusal("truncated", "body"); }

    Value tensor(Kind kind, Bytes payload) {
        if (payload.size() < 3) throw Refusal("syntax", "size of a tensor");
        const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(payload[i]); };
        const DataType* type = data_type(byte(0));
        if (!type || (kind == Kind::array && !type->array)) throw Refusal("unknown", "data type");
        if (byte(1) > 1) throw Refusal("unknown", "placement");
        const std::size_t dimensions = byte(2);
        if (dimensions > 64) throw Refusal("range", "number of dimensions");
        if (payload.size() < 3 + 8 * dimensions) throw Refusal("syntax", "size of a tensor");

        Value value = of(kind);
        value.integer = {false, byte(0)};
        std::uint64_t product = 1;
        bool none = false;
        for (std::size_t i = 0; i < dimensions; ++i) {
            value.shape.push_back(little(payload.substr(3 + 8 * i, 8)));
            const std::uint64_t least = std::max<std::uint64_t>(value.shape.back(), 1);
            if (least > INT64_MAX / product) throw Refusal("range", "dimensions");
            product *= least;
            none |= value.shape.back() == 0;
        }
        const bool huge = product > INT64_MAX / type->size;
        if (huge && kind == Kind::array) throw Refusal("range", "dimensions");
        const Bytes rest = payload.substr(3 + 8 * dimensions);
        if (byte(1) == 0) {
            if ((huge && !none) || rest.size() != (none ? 0 : product * type->size))
                throw Refusal("buffer", "bytes of an inline tensor");
            value.bytes = rest;
            return value;
        }
        if (rest.size() != 12) throw Refusal("syntax", "size of a tensor");
        if (none || huge) throw Refusal("buffer", "size of a tensor in a buffer");
        const Place place = {little(rest.substr(0, 4)), little(rest.substr(4)), product * type->size};
        tree.places.push_back(place);
        if (place.buffer + 1 < frames.size()) {
            const Bytes frame = frames[place.buffer + 1];
            if (place.offset <= frame.size()) value.bytes = frame.substr(place.offset, place.size);
        }
        return value;
    }
};

}  // namespace

Tree parse(Bytes body, const std::vector<Bytes>& frames, bool newer) {
    Builder builder(frames, newer);
    std::size_t end = 0;
    msgpack::parse(body.data(), body.size(), end, builder);
    if (end != body.size()) throw Refusal("syntax", "bytes after the body");
    return std::move(builder.tree);
}

}  // namespace omniwire
