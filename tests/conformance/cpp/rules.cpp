// The rules that the page gives for each record, beyond the forms of its fields.
#include <algorithm>
#include <map>
#include <set>

#include "message.hpp"

namespace omniwire {
namespace {

void rule(bool holds, const std::string& what) {
    if (!holds) throw Refusal("contract", what);
}

bool given(const Value& value) { return !value.is(Kind::nil); }

bool is_modality(const std::string& name) {
    const auto inner = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
    return !name.empty() && name.size() <= 64 && name[0] >= 'a' && name[0] <= 'z' &&
           std::all_of(name.begin(), name.end(), inner);
}

void within(const Value& ints, std::int64_t low, std::int64_t high, const char* what) {
    for (const auto& item : ints.items) rule(item.integer.fits(low, high), what);
}
void at_least(const Value& integer, std::int64_t low, const char* what) {
    rule(integer.integer.fits(low, INT64_MAX), what);
}

void check_digests(const Value& digests) {
    for (const auto& digest : digests.items) within(digest, INT32_MIN, INT32_MAX, "words of a hash");
}

void check_input(const Value& input) {
    const Value& positions = input.at("multimodal_positions");
    const Value& lengths = input.at("multimodal_lengths");
    const Value& uuids = input.at("multimodal_uuids");
    check_digests(input.at("multimodal_hashes"));
    const std::size_t count = input.at("multimodal_hashes").items.size();
    within(positions, 0, INT32_MAX, "positions");
    within(lengths, 0, INT32_MAX, "lengths");
    rule(positions.items.size() == count && lengths.items.size() == count, "counts");
    for (std::size_t i = 0; i < count; ++i)
        rule(positions.items[i].integer.small() + lengths.items[i].integer.small() <= INT32_MAX, "end of an item");
    if (given(uuids)) {
        rule(uuids.items.size() == count, "count of uuids");
        for (const auto& uuid : uuids.items) rule(!uuid.is(Kind::text) || !uuid.name.empty(), "a uuid is empty");
    }

    const Value& offsets = input.at("multimodal_item_run_cu_offsets");
    const Value& starts = input.at("multimodal_run_positions");
    const Value& sizes = input.at("multimodal_run_lengths");
    rule(given(offsets) == given(starts) && given(starts) == given(sizes), "runs are given together");
    if (!given(offsets)) return;
    within(offsets, 0, INT32_MAX, "offsets of runs");
    within(starts, 0, INT32_MAX, "positions of runs");
    within(sizes, 1, INT32_MAX, "lengths of runs");
    rule(offsets.items.size() == count + 1 && offsets.items[0].integer.bits == 0, "offsets of runs");
    rule(starts.items.size() == sizes.items.size(), "counts of runs");
    rule(offsets.items.back().integer.bits == starts.items.size(), "count of runs");
    for (std::size_t i = 0; i < count; ++i) {
        std::int64_t end = positions.items[i].integer.small(), total = 0;
        const std::uint64_t first = offsets.items[i].integer.bits, last = offsets.items[i + 1].integer.bits;
        rule(first <= last && last <= starts.items.size(), "offsets of runs");
        for (std::uint64_t k = first; k < last; ++k) {
            const std::int64_t start = starts.items[k].integer.small(), size = sizes.items[k].integer.small();
            rule(k == first ? start == end : start >= end, "position of a run");
            end = start + size;
            total += size;
            rule(end <= INT32_MAX, "end of a run");
        }
        rule(total == lengths.items[i].integer.small(), "sum of runs");
    }
}

void check_metadata(const Value& metadata) {
    std::map<std::string, std::set<std::uint64_t>> indices;
    const Value& refs = metadata.at("item_refs");
    for (const auto& ref : refs.items) {
        rule(is_modality(ref.items[0].name), "modality");
        at_least(ref.items[1], 0, "index of an item");
        rule(indices[ref.items[0].name].insert(ref.items[1].integer.bits).second, "an item twice");
    }
    for (const auto& [modality, own] : indices) rule(*own.rbegin() == own.size() - 1, "indices of a modality");
    for (const char* name : {"encoder_token_lengths", "output_embedding_lengths"}) {
        const Value& lengths = metadata.at(name);
        within(lengths, 1, INT64_MAX, name);
        rule(!given(lengths) || lengths.items.size() == refs.items.size(), name);
    }
    const Value& partitions = metadata.at("input_partitions");
    for (std::size_t i = 0; i < partitions.keys.size(); ++i) {
        const auto found = indices.find(partitions.keys[i]);
        rule(found != indices.end(), "partitions of a modality without items");
        for (const auto& partition : partitions.items[i].items) {
            const Value& lengths = partition.at("item_lengths");
            rule(!given(lengths) || lengths.items.size() == found->second.size(), "count of item lengths");
        }
    }
}

void check_runtime(const Value& data) {
    within(data, 0, INT32_MAX, "runtime data");
    const auto number = [&](const char* name) { return data.at(name).integer.small(); };
    const std::int64_t past = number("past_seen_token_num"), end = number("chunk_end_pos");
    const std::int64_t cached = number("num_cached_mm_tokens"), rows = number("num_mm_tokens_in_chunk");
    rule(cached <= past && past <= end && rows <= end - past, "chunk");
    rule(cached + rows <= number("total_embeds_in_request"), "rows of the request");
}

bool are_tensors(const Value& value) {
    return is_tensor(value) ||
           (value.is(Kind::tuple) && std::all_of(value.items.begin(), value.items.end(), is_tensor));
}
bool is_scalar(const Value& value) {
    return value.is(Kind::boolean) || value.is(Kind::integer) || value.is(Kind::real) || value.is(Kind::text);
}

void check_outputs(const Value& outputs) {
    for (const auto& value : outputs.items)
        if (value.is(Kind::mapping))
            check_outputs(value);
        else
            rule(are_tensors(value) || is_scalar(value), "output");
}

void check_params(const Value& params) {
    const Value& data = params.at("multimodal_data");
    if (data.has("item_metadata")) {
        const Value& metadata = data.at("item_metadata");
        rule(metadata.is(Kind::record) && metadata.name == "MultimodalItemMetadata", "item_metadata");
        const std::set<std::string> reserved = {"item_metadata", "multimodal_embedding", "mrope_config"};
        for (const auto& ref : metadata.at("item_refs").items)
            rule(reserved.count(ref.items[0].name) == 0, "a reserved name as modality");
    }
    if (data.has("multimodal_embedding")) {
        const Value& embeddings = data.at("multimodal_embedding");
        rule(are_tensors(embeddings) && !(embeddings.is(Kind::tuple) && embeddings.items.empty()), "embeddings");
    }
}

void check_spec(const Value& spec) {
    const Value& entries = spec.at("entries");
    for (const auto& key : entries.keys) rule(("." + key + ".").find("..") == std::string::npos, "key of a rule");
    const std::set<std::string> rules = {"Concat", "Stack", "Replace", "Append"};
    for (const auto& value : entries.items) rule(value.is(Kind::record) && rules.count(value.name) != 0, "no rule");
}

void check_request_output(const Value& output) {
    for (const char* name : {"multimodal_outputs", "tensors"})
        for (const auto& value : output.at(name).items) rule(are_tensors(value), name);
    for (const auto& scalars : output.at("metadata").items)
        rule(scalars.is(Kind::mapping) && std::all_of(scalars.items.begin(), scalars.items.end(), is_scalar),
             "metadata");
}

}  // namespace

bool is_tensor(const Value& value) {
    return value.is(Kind::tensor) || (value.is(Kind::record) && value.name == "TensorHandle");
}

void check(const Value& object) {
    const auto filled = [&](const char* name) {
        const Value& value = object.at(name);
        rule(!value.is(Kind::text) || !value.name.empty(), name);
    };
    const std::string& name = object.name;
    if (name == "ItemRef") {
        rule(is_modality(object.at("modality").name), "modality");
        at_least(object.at("index"), 0, "index");
    } else if (name == "MultimodalItemPartition") {
        within(object.at("item_lengths"), 0, INT64_MAX, "item_lengths");
        at_least(object.at("axis"), 0, "axis");
    } else if (name == "MultimodalItemMetadata") {
        check_metadata(object);
    } else if (name == "MultimodalInput") {
        check_input(object);
    } else if (name == "MultimodalRuntimeData") {
        check_runtime(object);
    } else if (name == "MultimodalParams") {
        check_params(object);
    } else if (name == "TensorHandle") {
        rule(object.at("kind").name == "arena" || object.at("kind").name == "cuda_ipc", "kind");
        within(object.at("shape"), 0, INT64_MAX, "shape");
    } else if (name == "ProcessedRequest") {
        filled("request_id");
    } else if (name == "DisaggregatedParams") {
        filled("request_type");
        const Value& handles = object.at("multimodal_embedding_handles");
        const Value& hashes = object.at("multimodal_hashes");
        check_digests(hashes);
        rule(!given(handles) || !given(hashes) || handles.items.size() == hashes.items.size(), "counts");
    } else if (name == "OmniOutput") {
        check_outputs(object.at("multimodal_outputs"));
        check_outputs(object.at("inter_stage_outputs"));
    } else if (name == "OutputChunk") {
        for (const char* field : {"request_id", "output_type", "finish_reason"}) filled(field);
        at_least(object.at("step"), 0, "step");
    } else if (name == "Concat" || name == "Stack") {
        rule(object.at("dim").integer.fits(INT32_MIN, INT32_MAX), "dim");
    } else if (name == "OutputSpec") {
        check_spec(object);
    } else if (name == "RequestOutput") {
        for (const char* field : {"request_id", "finish_reason"}) filled(field);
        check_request_output(object);
    } else if (name == "EncoderCapability") {
        if (given(object.at("hidden_size"))) at_least(object.at("hidden_size"), 1, "hidden_size");
    } else if (name == "EncoderBudget") {
        for (const auto& bound : object.items)
            if (given(bound)) at_least(bound, 1, "budget");
        rule(!given(object.at("max_output_bytes")) || given(object.at("output_row_bytes")), "output_row_bytes");
    }
}

}  // namespace omniwire
