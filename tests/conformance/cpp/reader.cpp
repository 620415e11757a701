#include <algorithm>
#include <tuple>

#include "body.hpp"
#include "envelope.hpp"
#include "message.hpp"
#include "tables.hpp"

namespace omniwire {
namespace {

constexpr int max_levels = 32;

void check_buffers(const Value& sizes, std::vector<Place> places, const std::vector<Bytes>& frames) {
    if (!sizes.is(Kind::tuple)) throw Refusal("type", "sizes of buffers");
    for (const auto& size : sizes.items)
        if (!size.is(Kind::integer)) throw Refusal("type", "sizes of buffers");
    if (sizes.items.size() != frames.size() - 1) throw Refusal("frames", "number of buffers");
    for (std::size_t i = 1; i < frames.size(); ++i) {
        const Integer size = sizes.items[i - 1].integer;
        if (size.negative || size.bits != frames[i].size()) throw Refusal("frames", "size of a buffer");
    }

    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
        return std::tie(a.buffer, a.offset, a.size) < std::tie(b.buffer, b.offset, b.size);
    });
    std::vector<std::uint64_t> ends(frames.size() - 1);
    std::uint64_t start = 0;
    for (const auto& place : places) {
        if (place.buffer >= ends.size()) throw Refusal("frames", "index of a buffer");
        const std::uint64_t have = frames[place.buffer + 1].size();
        if (place.offset > have || place.size > have - place.offset) throw Refusal("buffer", "outside");
        if (place.offset % alignment != 0) throw Refusal("buffer", "offset");
        std::uint64_t& end = ends[place.buffer];
        const bool same = end != 0 && place.offset == start && place.offset + place.size == end;
        if (place.offset < end && !same) throw Refusal("buffer", "overlap");
        start = place.offset;
        end = place.offset + place.size;
    }
    for (std::size_t i = 0; i < ends.size(); ++i)
        if (ends[i] != frames[i + 1].size() || ends[i] == 0) throw Refusal("frames", "bytes of no tensor");
}

void expect(bool is, const char* code, const char* what) {
    if (!is) throw Refusal(code, what);
}

// How many levels of mappings, tuples and records a value of a payload spans.
int levels(const Value& value) {
    if (!value.is(Kind::mapping) && !value.is(Kind::tuple) && !value.is(Kind::record)) return 0;
    int inner = 0;
    for (const auto& item : value.items) {
        int own = levels(item);
        if (value.is(Kind::record) && item.is(Kind::tuple)) {
            own = 2;
            for (const auto& held : item.items)
                if (held.is(Kind::record)) own = std::max(own, 1 + levels(held));
        }
        inner = std::max(inner, own);
    }
    return 1 + inner;
}

class Reader {
  public:
    explicit Reader(bool newer_) : newer(newer_) {}

    Value object(const std::string& name, const Value& value) const {
        if (name == "TokenIds") return field({"token ids", Form::token_ids}, value);
        if (name == "FrozenMapping") return field({"payload", Form::payload}, value);
        return named(name, value);
    }

  private:
    bool newer;  // the writer is: what it says may be ignored is

    Value named(const std::string& name, const Value& value) const {
        if (name == "ItemRef") {
            expect(value.is(Kind::tuple) && value.items.size() == 2, "type", "a reference");
            Value ref = field({"reference", Form::references}, value).items[0];
            ref.kind = Kind::record;
            ref.name = name;
            ref.keys = {"modality", "index"};
            check(ref);
            return ref;
        }
        const Record* found = find_record(name);
        if (!found) throw Refusal("unknown", "type " + name);
        return record(*found, value);
    }

    Value record(const Record& table, const Value& value) const {
        expect(value.is(Kind::mapping), "type", table.name);
        for (const auto& key : value.keys) {
            const auto is = [&](const Field& own) { return own.name == key; };
            if (!newer && std::none_of(table.fields.begin(), table.fields.end(), is))
                throw Refusal("unknown", "field " + key);
        }
        Value result;
        result.kind = Kind::record;
        result.name = table.name;
        for (const auto& own : table.fields) {
            expect(value.has(own.name) || !own.required, "missing", own.name);
            result.keys.emplace_back(own.name);
            result.items.push_back(value.has(own.name) ? field(own, value.at(own.name)) : own.absent);
        }
        check(result);
        return result;
    }

    // Every item of an array, or every value of a map.
    template <typename Read>
    static Value each(Kind kind, const Value& value, const char* what, Read read) {
        expect(value.is(kind), "type", what);
        Value result = value;
        for (auto& item : result.items) item = read(item);
        return result;
    }

    static Value scalar(Kind kind, const Value& value, const char* what) {
        expect(value.is(kind), "contract", what);
        return value;
    }

    Value field(const Field& own, const Value& value) const {
        if (own.optional && value.is(Kind::nil)) return value;
        const char* const name = own.name;
        const auto integer = [&](const Value& item) { return scalar(Kind::integer, item, name); };
        switch (own.form) {
            case Form::text: return scalar(Kind::text, value, name);
            case Form::boolean: return scalar(Kind::boolean, value, name);
            case Form::integer: return integer(value);
            case Form::bytes: return scalar(Kind::bytes, value, name);
            case Form::opaque: expect(value.is(Kind::bytes), "type", name); return value;
            case Form::kind:
                expect(value.is(Kind::text) &&
                           (value.name == "delta" || value.name == "cumulative" || value.name == "final"),
                       "unknown", name);
                return value;
            case Form::dtype: {
                expect(value.is(Kind::integer) && !value.integer.negative && data_type(value.integer.bits),
                       "unknown", name);
                Value result = value;
                result.kind = Kind::dtype;
                return result;
            }
            case Form::ints: return each(Kind::tuple, value, name, integer);
            case Form::digests:
                return each(Kind::tuple, value, name, [&](const Value& digest) {
                    expect(digest.is(Kind::tuple) && digest.items.size() == 8, "contract", name);
                    return each(Kind::tuple, digest, name, integer);
                });
            case Form::token_ids: expect(value.is(Kind::token_ids), "type", name); return value;
            case Form::references: {
                expect(value.is(Kind::tuple) && value.items.size() % 2 == 0, "type", name);
                Value result;
                result.kind = Kind::tuple;
                for (std::size_t i = 0; i < value.items.size(); i += 2) {
                    Value pair;
                    pair.kind = Kind::tuple;
                    pair.items = {scalar(Kind::text, value.items[i], name), integer(value.items[i + 1])};
                    result.items.push_back(pair);
                }
                return result;
            }
            case Form::payload: {
                expect(value.is(Kind::mapping), "type", name);
                Value result = payload(value);
                expect(levels(result) <= max_levels, "limit", "nesting");
                return result;
            }
            case Form::tensor: {
                const Value result = payload(value);
                expect(is_tensor(result), "contract", name);
                return result;
            }
            case Form::record: return record(*find_record(own.record), value);
            case Form::handles:
                return each(Kind::tuple, value, name, [&](const Value& item) {
                    const Value result = payload(item);
                    expect(is_tensor(result) && result.is(Kind::record), "contract", name);
                    return result;
                });
            case Form::uuids:
                return each(Kind::tuple, value, name, [&](const Value& item) {
                    return item.is(Kind::nil) ? item : scalar(Kind::text, item, name);
                });
            case Form::partitions:
                return each(Kind::mapping, value, name, [&](const Value& fields) {
                    return each(Kind::mapping, fields, name, [&](const Value& partition) {
                        return record(*find_record("MultimodalItemPartition"), partition);
                    });
                });
            case Form::errors:
                return each(Kind::mapping, value, name, [](const Value& item) { return error(item); });
        }
        throw std::logic_error("form");
    }

    Value payload(const Value& value) const {
        const auto inner = [&](const Value& item) { return payload(item); };
        if (value.is(Kind::mapping)) return each(Kind::mapping, value, "payload", inner);
        expect(!value.is(Kind::record_name), "unknown", "a record's name on its own");
        expect(!value.is(Kind::unknown), "unknown", "extension");
        if (!value.is(Kind::tuple)) return value;
        if (value.items.empty() || !value.items[0].is(Kind::record_name))
            return each(Kind::tuple, value, "payload", inner);
        expect(value.items.size() == 2, "syntax", "a record in a payload");
        return named(value.items[0].name, value.items[1]);
    }

    static Value error(const Value& value) {
        expect(value.is(Kind::tuple) && !value.items.empty() && value.items[0].is(Kind::text), "type", "error");
        const Error* found = find_error(value.items[0].name);
        if (!found) throw Refusal("unknown", "error " + value.items[0].name);
        const std::string_view forms = found->arguments;
        expect(value.items.size() == forms.size() + 1, "type", found->name);
        for (std::size_t i = 0; i < forms.size(); ++i) expect(fits(forms[i], value.items[i + 1]), "type", found->name);
        Value result;
        result.kind = Kind::error;
        result.name = found->name;
        result.items.assign(value.items.begin() + 1, value.items.end());
        return result;
    }

    static bool fits(char form, const Value& value) {
        const auto all = [&](char inner) {
            return value.is(Kind::tuple) && std::all_of(value.items.begin(), value.items.end(),
                                                        [&](const Value& item) { return fits(inner, item); });
        };
        switch (form) {
            case 't': return value.is(Kind::text);
            case 'i': return value.is(Kind::integer);
            case 'o': return value.is(Kind::integer) || value.is(Kind::nil);
            case 's': return value.is(Kind::text) || value.is(Kind::integer);
            case 'T': return all('t');
            case 'P': return all('p');
            case 'p': {
                const std::vector<Value>& parts = value.items;
                if (!value.is(Kind::tuple) || parts.size() != 4 || !fits('/', parts[0])) return false;
                return std::all_of(parts.begin() + 1, parts.end(), [](const Value& part) { return fits('t', part); });
            }
            case '/': return all('s');
            default: throw std::logic_error("form of an argument");
        }
    }
};

}  // namespace

Value read(Bytes blob) {
    const std::vector<Bytes> frames = split(blob);
    const Envelope envelope = open(frames[0]);
    const bool newer = envelope.version > newest_version;
    Tree tree = parse(envelope.body, frames, newer);
    const std::vector<Value>& parts = tree.root.items;
    if (!tree.root.is(Kind::tuple) || parts.size() < 3) throw Refusal("syntax", "parts of the body");
    if (parts.size() > 3 && !newer) throw Refusal("unknown", "parts of the body");
    if (!parts[0].is(Kind::text)) throw Refusal("unknown", "name of the type");
    check_buffers(parts[2], std::move(tree.places), frames);
    return Reader(newer).object(parts[0].name, parts[1]);
}

}  // namespace omniwire
