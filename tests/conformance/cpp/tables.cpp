#include "tables.hpp"

namespace omniwire {

const std::vector<DataType> data_types = {
    {"bool", 1, true},           {"uint8", 1, true},           {"int8", 1, true},
    {"uint16", 2, true},         {"int16", 2, true},           {"uint32", 4, true},
    {"int32", 4, true},          {"uint64", 8, true},          {"int64", 8, true},
    {"float16", 2, true},        {"bfloat16", 2, false},       {"float32", 4, true},
    {"float64", 8, true},        {"complex32", 4, false},      {"complex64", 8, true},
    {"complex128", 16, true},    {"float8_e4m3fn", 1, false},  {"float8_e5m2", 1, false},
    {"float8_e4m3fnuz", 1, false}, {"float8_e5m2fnuz", 1, false}, {"float8_e8m0fnu", 1, false},
    {"float4_e2m1fn_x2", 1, false}, {"bits8", 1, false},       {"bits16", 2, false},
    {"bits1x8", 1, false},       {"bits2x4", 1, false},        {"bits4x2", 1, false},
    {"uint1", 1, false},         {"uint2", 1, false},          {"uint3", 1, false},
    {"uint4", 1, false},         {"uint5", 1, false},          {"uint6", 1, false},
    {"uint7", 1, false},         {"int1", 1, false},           {"int2", 1, false},
    {"int3", 1, false},          {"int4", 1, false},           {"int5", 1, false},
    {"int6", 1, false},          {"int7", 1, false},
};

const DataType* data_type(std::uint64_t code) {
    return code >= 1 && code <= data_types.size() ? &data_types[code - 1] : nullptr;
}

namespace {

Value of_kind(Kind kind) {
    Value value;
    value.kind = kind;
    return value;
}
Value boolean(bool is) {
    Value value = of_kind(Kind::boolean);
    value.boolean = is;
    return value;
}
Value text(const char* is) {
    Value value = of_kind(Kind::text);
    value.name = is;
    return value;
}
const Value zero = of_kind(Kind::integer), no_ids = of_kind(Kind::token_ids), empty = of_kind(Kind::mapping);

Field required(const char* name, Form form) { return {name, form, false, true}; }
Field optional(const char* name, Form form, const char* record = nullptr) {
    return {name, form, true, false, {}, record};
}
Field with(const char* name, Form form, const Value& absent) { return {name, form, false, false, absent}; }

template <typename Entry>
const Entry* find(const std::vector<Entry>& table, std::string_view name) {
    for (const auto& entry : table)
        if (entry.name == name) return &entry;
    return nullptr;
}

}  // namespace

const Record* find_record(std::string_view name) {
    static const std::vector<Record> records = {
        {"MultimodalItemPartition",
         {optional("item_lengths", Form::ints), with("axis", Form::integer, zero)}},
        {"MultimodalItemMetadata",
         {required("item_refs", Form::references), optional("encoder_token_lengths", Form::ints),
          optional("output_embedding_lengths", Form::ints),
          optional("input_partitions", Form::partitions)}},
        {"MultimodalInput",
         {required("multimodal_hashes", Form::digests), required("multimodal_positions", Form::ints),
          required("multimodal_lengths", Form::ints), optional("multimodal_uuids", Form::uuids),
          optional("multimodal_item_run_cu_offsets", Form::ints),
          optional("multimodal_run_positions", Form::ints),
          optional("multimodal_run_lengths", Form::ints)}},
        {"MultimodalRuntimeData",
         {required("past_seen_token_num", Form::integer), required("chunk_end_pos", Form::integer),
          required("num_cached_mm_tokens", Form::integer),
          required("num_mm_tokens_in_chunk", Form::integer),
          required("total_embeds_in_request", Form::integer)}},
        {"MultimodalParams",
         {optional("multimodal_input", Form::record, "MultimodalInput"),
          with("multimodal_data", Form::payload, empty),
          optional("multimodal_runtime", Form::record, "MultimodalRuntimeData")}},
        {"TensorHandle",
         {required("kind", Form::text), required("dtype", Form::dtype), required("shape", Form::ints),
          required("payload", Form::opaque)}},
        {"ProcessedRequest",
         {required("request_id", Form::text), required("prompt_token_ids", Form::token_ids),
          optional("multimodal_params", Form::record, "MultimodalParams")}},
        {"DisaggregatedParams",
         {optional("multimodal_embedding_handles", Form::handles),
          optional("multimodal_hashes", Form::digests), with("request_type", Form::text, text("prefill")),
          optional("opaque_state", Form::bytes)}},
        {"OmniOutput",
         {optional("text_hidden_states", Form::tensor), with("multimodal_outputs", Form::payload, empty),
          with("inter_stage_outputs", Form::payload, empty)}},
        {"OutputChunk",
         {required("request_id", Form::text), required("step", Form::integer),
          required("output_type", Form::text), with("new_token_ids", Form::token_ids, no_ids),
          optional("output", Form::record, "OmniOutput"), with("kind", Form::kind, text("delta")),
          optional("finish_reason", Form::text)}},
        {"Concat", {required("dim", Form::integer)}},
        {"Stack", {with("dim", Form::integer, zero)}},
        {"Replace", {}},
        {"Append", {}},
        {"OutputSpec", {with("entries", Form::payload, empty)}},
        {"RequestOutput",
         {required("request_id", Form::text), with("new_token_ids", Form::token_ids, no_ids),
          with("multimodal_outputs", Form::payload, empty), with("metadata", Form::payload, empty),
          with("tensors", Form::payload, empty), with("finished", Form::boolean, boolean(false)),
          optional("finish_reason", Form::text), with("errors", Form::errors, empty)}},
        {"EncoderCapability",
         {with("item_scheduling", Form::boolean, boolean(true)),
          with("custom_selection", Form::boolean, boolean(false)), optional("hidden_size", Form::integer)}},
        {"EncoderBudget",
         {optional("max_encoder_tokens", Form::integer), optional("max_output_bytes", Form::integer),
          optional("output_row_bytes", Form::integer)}},
    };
    return find(records, name);
}

const Error* find_error(std::string_view name) {
    static const std::vector<Error> errors = {
        {"OmniwireError", "t"},          {"ContractTypeError", "tP"}, {"ContractValueError", "tP"},
        {"AdmissionError", "tPt"},       {"EncodeError", "tp"},       {"DecodeError", "tto"},
        {"UnsupportedVersionError", "ii"}, {"HandoffError", "t"},     {"PeerClosed", "t"},
        {"PeerDied", "t"},               {"HandoffTimeout", "t"},     {"ArenaFull", "t"},
        {"HandlerNotFoundError", "tT"},  {"AccumulationError", "tttt"},
    };
    return find(errors, name);
}

}  // namespace omniwire
