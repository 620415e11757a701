#include <algorithm>
#include <cstring>
#include <map>
#include <msgpack.hpp>
#include <tuple>

#include "envelope.hpp"
#include "message.hpp"
#include "tables.hpp"

namespace omniwire {
namespace {

constexpr std::size_t max_inline = 16;
constexpr std::size_t min_packed = 64;

std::string little(std::uint64_t number, int size) {
    std::string bytes;
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(number >> 8 * i & 0xff);
    return bytes;
}

// All tensors that are not inline share one buffer; those that are the same bytes of the message
// that they were read from stand in it once.
struct Writer {
    msgpack::sbuffer out;
    msgpack::packer<msgpack::sbuffer> pack{out};
    std::string buffer;
    std::map<std::pair<const char*, std::size_t>, std::size_t> offsets;

    void text(std::string_view is) {
        pack.pack_str(static_cast<std::uint32_t>(is.size()));
        pack.pack_str_body(is.data(), static_cast<std::uint32_t>(is.size()));
    }
    void extension(Extension type, std::string_view payload) {
        pack.pack_ext(payload.size(), static_cast<std::int8_t>(type));
        pack.pack_ext_body(payload.data(), static_cast<std::uint32_t>(payload.size()));
    }
    void integer(const Integer& is) {
        if (is.negative)
            pack.pack_int64(is.small());
        else
            pack.pack_uint64(is.bits);
    }
    void real(double is) {  // pack_double makes an integer of a whole number
        std::uint64_t bits = 0;
        std::memcpy(&bits, &is, sizeof bits);
        const std::string bytes = little(bits, 8);
        const std::string encoded = '\xcb' + std::string(bytes.rbegin(), bytes.rend());
        out.write(encoded.data(), encoded.size());
    }
    void array(std::size_t size) { pack.pack_array(static_cast<std::uint32_t>(size)); }
    void map(std::size_t size) { pack.pack_map(static_cast<std::uint32_t>(size)); }

    static std::string packed(const std::vector<Value>& integers, int width) {
        std::string bytes;
        for (const auto& item : integers) bytes += little(item.integer.bits, width);
        return bytes;
    }
    static bool fit(const std::vector<Value>& items, std::int64_t low, std::int64_t high) {
        return std::all_of(items.begin(), items.end(), [&](const Value& item) {
            return item.is(Kind::integer) && item.integer.fits(low, high);
        });
    }

    void tuple(const Value& value) {
        const bool many = value.items.size() >= min_packed;
        if (many && fit(value.items, INT32_MIN, INT32_MAX)) return extension(Extension::int32s, packed(value.items, 4));
        if (many && fit(value.items, INT64_MIN, INT64_MAX)) return extension(Extension::int64s, packed(value.items, 8));
        array(value.items.size());
        for (const auto& item : value.items) payload(item);
    }
    void digests(const Value& value) {
        std::string bytes;
        for (const auto& digest : value.items) bytes += packed(digest.items, 4);
        extension(Extension::digests, bytes);
    }

    void tensor(const Value& value) {
        const bool inlined = value.bytes.size() <= max_inline;
        std::string head{static_cast<char>(value.integer.bits), static_cast<char>(inlined ? 0 : 1),
                         static_cast<char>(value.shape.size())};
        for (const auto dimension : value.shape) head += little(dimension, 8);
        if (inlined) {
            head += value.bytes;
        } else {
            const auto [found, fresh] = offsets.try_emplace({value.bytes.data(), value.bytes.size()}, 0);
            if (fresh) {
                buffer.resize((buffer.size() + alignment - 1) / alignment * alignment);
                found->second = buffer.size();
                buffer += value.bytes;
            }
            head += little(0, 4) + little(found->second, 8);
        }
        extension(value.is(Kind::tensor) ? Extension::tensor : Extension::array, head);
    }

    // A value as it stands in a payload.
    void payload(const Value& value) {
        switch (value.kind) {
            case Kind::nil: pack.pack_nil(); return;
            case Kind::boolean: value.boolean ? pack.pack_true() : pack.pack_false(); return;
            case Kind::integer:
            case Kind::dtype: integer(value.integer); return;
            case Kind::real: real(value.real); return;
            case Kind::text: text(value.name); return;
            case Kind::bytes:
                pack.pack_bin(static_cast<std::uint32_t>(value.bytes.size()));
                pack.pack_bin_body(value.bytes.data(), static_cast<std::uint32_t>(value.bytes.size()));
                return;
            case Kind::token_ids: extension(Extension::token_ids, packed(value.items, 4)); return;
            case Kind::tuple: tuple(value); return;
            case Kind::mapping:
                map(value.keys.size());
                for (std::size_t i = 0; i < value.keys.size(); ++i) {
                    text(value.keys[i]);
                    payload(value.items[i]);
                }
                return;
            case Kind::record:
                array(2);
                extension(Extension::record_name, value.name);
                record(value);
                return;
            case Kind::tensor:
            case Kind::array: tensor(value); return;
            default: throw std::logic_error("no value of a payload");
        }
    }

    void record(const Value& value) {
        if (value.name == "ItemRef") return tuple(value);
        map(value.keys.size());
        const Record& table = *find_record(value.name);
        for (std::size_t i = 0; i < value.keys.size(); ++i) {
            text(value.keys[i]);
            field(table.fields[i].form, value.items[i]);
        }
    }

    void field(Form form, const Value& value) {
        if (value.is(Kind::nil)) return payload(value);
        switch (form) {
            case Form::record: record(value); return;
            case Form::digests: digests(value); return;
            case Form::references:
                array(2 * value.items.size());
                for (const auto& ref : value.items)
                    for (const auto& half : ref.items) payload(half);
                return;
            case Form::partitions:
                map(value.keys.size());
                for (std::size_t i = 0; i < value.keys.size(); ++i) {
                    const Value& fields = value.items[i];
                    text(value.keys[i]);
                    map(fields.keys.size());
                    for (std::size_t k = 0; k < fields.keys.size(); ++k) {
                        text(fields.keys[k]);
                        record(fields.items[k]);
                    }
                }
                return;
            case Form::errors:
                map(value.keys.size());
                for (std::size_t i = 0; i < value.keys.size(); ++i) {
                    text(value.keys[i]);
                    array(value.items[i].items.size() + 1);
                    text(value.items[i].name);
                    for (const auto& argument : value.items[i].items) payload(argument);
                }
                return;
            default: payload(value);
        }
    }

    void object(const Value& value) {
        if (value.is(Kind::token_ids) || value.is(Kind::mapping)) {
            text(value.is(Kind::mapping) ? "FrozenMapping" : "TokenIds");
            return payload(value);
        }
        text(value.name);
        record(value);
    }
};

}  // namespace

std::string write(const Value& object) {
    Writer writer;
    writer.array(3);
    writer.object(object);
    writer.array(writer.buffer.empty() ? 0 : 1);
    if (!writer.buffer.empty()) writer.pack.pack_uint64(writer.buffer.size());
    std::vector<std::string> frames = {close({writer.out.data(), writer.out.size()})};
    if (!writer.buffer.empty()) frames.push_back(writer.buffer);
    return join(frames);
}

}  // namespace omniwire
