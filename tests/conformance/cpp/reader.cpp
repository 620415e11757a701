#include <algorithm>

#include "body.hpp"
#include "envelope.hpp"
#include "message.hpp"
#include "tables.hpp"

namespace omniwire {
namespace {

constexpr int max_nesting = 32;

void check_buffers(const Value& sizes, std::vector<Place> places, const std::vector<Bytes>& frames) {
    if (!sizes.is(Kind::tuple)) throw Refusal("syntax", "sizes of buffers");
    for (const auto& size : sizes.items)
        if (!size.is(Kind::integer)) throw Refusal("syntax", "sizes of buffers");
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
        if (place.buffer >= ends.size()) throw Refusal("buffer", "index of a buffer");
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

class Reader {
  public:
    explicit Reader(bool newer_) : newer(newer_) {}

    Value object(const std::string& name, const Value& value) const {
        if (name == "TokenIds") return field({"", Form::token_ids}, value, 0);
        if (name == "FrozenMapping") return field({"", Form::payload}, value, 0);
        if (name == "ItemRef") {
            const Value refs = field({"", Form::references}, value, 0);
            if (refs.items.size() != 1) throw Refusal("type", "a reference");
            Value ref;
            ref.kind = Kind::record;
            ref.name = name;
            ref.keys = {"modality", "index"};
            ref.items = refs.items[0].items;
            check(ref);
            return ref;
        }
        const Record* found = find_record(name);
        if (!found) throw Refusal("unknown", "type " + name);
        return record(*found, value, 0);
    }

  private:
    bool newer;  // the writer is: what it says may be ignored is

    static void expect(bool is, const char* what) {
        if (!is) throw Refusal("type", what);
    }

    Value record(const Record& table, const Value& value, int depth) const {
        if (value.is(Kind::unknown)) throw Refusal("unknown", "extension");
        expect(value.is(Kind::mapping), table.name);
        for (const auto& key : value.keys) {
            const auto is = [&](const Field& own) { return own.name == key; };
            if (!newer && std::none_of(table.fields.begin(), table.fields.end(), is))
                throw Refusal("unknown", "field " + key);
        }
        Value result;
        result.kind = Kind::record;
        result.name = table.name;
        for (const auto& own : table.fields) {
            if (own.required && !value.has(own.name)) throw Refusal("missing", own.name);
            result.keys.emplace_back(own.name);
            result.items.push_back(value.has(own.name) ? field(own, value.at(own.name), depth) : own.absent);
        }
        check(result);
        return result;
    }

    // Every item, or every value of a mapping, in a form of its own.
    template <typename Read>
    static Value each(Kind kind, const Value& value, const char* what, Read read) {
        expect(value.is(kind), what);
        Value result = value;
        for (auto& item : result.items) item = read(item);
        return result;
    }

    Value error(const Value& value) const {
        expect(value.is(Kind::tuple) && !value.items.empty() && value.items[0].is(Kind::text), "error");
        const Error* found = find_error(value.items[0].name);
        if (!found) throw Refusal("unknown", "error " + value.items[0].name);
        expect(value.items.size() == found->arguments.size() + 1, "arguments of an error");
        Value result;
        result.kind = Kind::error;
        result.name = found->name;
        for (std::size_t i = 0; i < found->arguments.size(); ++i)
            result.items.push_back(field(found->arguments[i], value.items[i + 1], 0));
        return result;
    }

    Value field(const Field& own, const Value& value, int depth) const {
        if (value.is(Kind::unknown)) throw Refusal("unknown", "extension");
        if (own.optional && value.is(Kind::nil)) return value;
        const auto as = [&](Form form) {
            return [this, form, depth](const Value& item) { return field({"", form}, item, depth); };
        };
        switch (own.form) {
            case Form::text: expect(value.is(Kind::text), own.name); return value;
            case Form::kind:
                expect(value.is(Kind::text), own.name);
                expect(value.name == "delta" || value.name == "cumulative" || value.name == "final", own.name);
                return value;
            case Form::boolean: expect(value.is(Kind::boolean), own.name); return value;
            case Form::integer: expect(value.is(Kind::integer), own.name); return value;
            case Form::bytes: expect(value.is(Kind::bytes), own.name); return value;
            case Form::ints: return each(Kind::tuple, value, own.name, as(Form::integer));
            case Form::digests:
                return each(Kind::tuple, value, own.name, [&](const Value& digest) {
                    expect(digest.items.size() == 8, own.name);
                    return field({own.name, Form::ints}, digest, depth);
                });
            case Form::token_ids:
                expect(value.is(Kind::token_ids), own.name);
                for (const auto& id : value.items)
                    if (id.integer.negative) throw Refusal("contract", "a token id is negative");
                return value;
            case Form::references: {
                expect(value.is(Kind::tuple) && value.items.size() % 2 == 0, own.name);
                Value result;
                result.kind = Kind::tuple;
                for (std::size_t i = 0; i < value.items.size(); i += 2) {
                    expect(value.items[i].is(Kind::text) && value.items[i + 1].is(Kind::integer), own.name);
                    Value pair;
                    pair.kind = Kind::tuple;
                    pair.items = {value.items[i], value.items[i + 1]};
                    result.items.push_back(pair);
                }
                return result;
            }
            case Form::dtype: {
                expect(value.is(Kind::integer), own.name);
                if (value.integer.negative || !data_type(value.integer.bits)) throw Refusal("unknown", "data type");
                Value result = value;
                result.kind = Kind::dtype;
                return result;
            }
            case Form::payload:
                expect(value.is(Kind::mapping), own.name);
                return payload(value, depth);
            case Form::tensor:
                if (value.is(Kind::tensor)) return value;
                return handle(value, depth, own.name);
            case Form::record: return record(*find_record(own.record), value, depth);
            case Form::handles:
                return each(Kind::tuple, value, own.name,
                            [&](const Value& item) { return handle(item, depth, own.name); });
            case Form::uuids:
                return each(Kind::tuple, value, own.name,
                            [&](const Value& item) { return field({own.name, Form::text, true}, item, depth); });
            case Form::partitions:
                return each(Kind::mapping, value, own.name, [&](const Value& fields) {
                    return each(Kind::mapping, fields, own.name, [&](const Value& partition) {
                        return record(*find_record("MultimodalItemPartition"), partition, depth);
                    });
                });
            case Form::errors:
                return each(Kind::mapping, value, own.name, [&](const Value& item) { return error(item); });
            case Form::texts: return each(Kind::tuple, value, own.name, as(Form::text));
            case Form::path:
                return each(Kind::tuple, value, own.name, [&](const Value& step) {
                    expect(step.is(Kind::text) || step.is(Kind::integer), own.name);
                    return step;
                });
            case Form::problem: {
                expect(value.is(Kind::tuple) && value.items.size() == 4, own.name);
                Value result = value;
                result.items[0] = field({own.name, Form::path}, value.items[0], depth);
                for (std::size_t i = 1; i < 4; ++i) expect(value.items[i].is(Kind::text), own.name);
                return result;
            }
            case Form::problems: return each(Kind::tuple, value, own.name, as(Form::problem));
        }
        throw std::logic_error("form");
    }

    Value handle(const Value& value, int depth, const char* what) const {
        expect(value.is(Kind::tuple) && value.items.size() == 2 && value.items[0].is(Kind::record_name) &&
                   value.items[0].name == "TensorHandle",
               what);
        return payload(value, depth);
    }

    Value payload(const Value& value, int depth) const {
        switch (value.kind) {
            case Kind::tuple:
            case Kind::mapping: {
                if (++depth > max_nesting) throw Refusal("limit", "nesting");
                const auto inner = [&](const Value& item) { return payload(item, depth); };
                if (value.is(Kind::mapping) || value.items.empty() || !value.items[0].is(Kind::record_name))
                    return each(value.kind, value, "payload", inner);
                if (value.items.size() != 2) throw Refusal("syntax", "a record in a payload");
                const Record* found = find_record(value.items[0].name);
                if (!found) throw Refusal("unknown", "record " + value.items[0].name);
                return record(*found, value.items[1], depth);
            }
            case Kind::token_ids: return field({"", Form::token_ids}, value, depth);
            case Kind::record_name: throw Refusal("syntax", "a record's name on its own");
            case Kind::unknown: throw Refusal("unknown", "extension");
            default: return value;
        }
    }
};

}  // namespace

Value read(Bytes blob) {
    const std::vector<Bytes> frames = split(blob);
    const Envelope envelope = open(frames[0]);
    const bool newer = envelope.version > newest_version;
    Tree tree = parse(envelope.body, frames);
    const std::vector<Value>& parts = tree.root.items;
    if (!tree.root.is(Kind::tuple) || parts.size() < 3) throw Refusal("syntax", "parts of the body");
    if (parts.size() > 3 && !newer) throw Refusal("unknown", "parts of the body");
    if (!parts[0].is(Kind::text)) throw Refusal("syntax", "name of the type");
    check_buffers(parts[2], std::move(tree.places), frames);
    return Reader(newer).object(parts[0].name, parts[1]);
}

}  // namespace omniwire
