"""Invalid model outputs, chunks, specs and request outputs."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import (
    Append,
    Concat,
    ItemRef,
    OmniOutput,
    OutputChunk,
    OutputSpec,
    RequestOutput,
    Stack,
)
from omniwire.contracts.errors import Path
from omniwire.testing.strategies.invalid import (
    BAD_TEXTS,
    NEGATIVE,
    NONE,
    NOT_BOOLS,
    NOT_INTS,
    NOT_MAPPINGS,
    NOT_TEXTS,
    Defect,
    Invalid,
    broken,
    wrong,
    wrong_element,
)
from omniwire.testing.strategies.invalid_payloads import sparse_tensor, wrong_payload
from omniwire.testing.strategies.outputs import (
    omni_outputs,
    output_chunks,
    output_specs,
    request_outputs,
)

_BAD_IDS: Final = NEGATIVE | st.integers(min_value=2**31)
_NOT_TENSORS: Final = st.sampled_from([0, 1.0, "audio", None, (1.0, 2.0)])
_ARRAYS: Final = st.builds(np.zeros, st.just(2))


def invalid_omni_outputs() -> SearchStrategy[Invalid]:
    """Outputs with values that no model output may have."""
    trees = ("multimodal_outputs", "inter_stage_outputs")
    bad_values = st.sampled_from([None, b"wav", ItemRef("audio", 0)]) | _ARRAYS
    return broken(
        OmniOutput,
        omni_outputs(),
        [
            wrong("text_hidden_states", st.sampled_from([1, "hidden", [1.0]]) | _ARRAYS, "type"),
            wrong("text_hidden_states", st.builds(sparse_tensor), "layout"),
            *[wrong(name, NOT_MAPPINGS | NONE, "type") for name in trees],
            *[wrong_payload(name) for name in trees],
            *[_wrong_value(name, (), bad_values) for name in trees],
            *[_wrong_value(name, ("codes", "ref"), bad_values) for name in trees],
            *[_wrong_value(name, ("audio",), _chunks_with_a_number(), (1,)) for name in trees],
        ],
    )


def invalid_output_chunks() -> SearchStrategy[Invalid]:
    """Chunks with a field of the wrong type or out of range."""
    return broken(
        OutputChunk,
        output_chunks(),
        [
            *_text_defects("request_id"),
            wrong("step", NOT_INTS | NONE, "type"),
            wrong("step", NEGATIVE, "range"),
            *_text_defects("output_type"),
            *_token_defects("new_token_ids"),
            wrong("output", st.sampled_from([{"audio": 1}, 1, "audio"]), "type"),
            wrong("kind", st.sampled_from(["delta", 0, None]), "type"),
            wrong("finish_reason", NOT_TEXTS, "type"),
            wrong("finish_reason", BAD_TEXTS, "format"),
        ],
    )


def invalid_output_specs() -> SearchStrategy[Invalid]:
    """Specs with a malformed key or without a rule, and rules along no dimension."""
    rules = [
        broken(
            rule,
            st.fixed_dictionaries({"dim": st.integers(-3, 3)}),
            [
                wrong("dim", NOT_INTS | NONE, "type"),
                wrong("dim", st.integers(max_value=-(2**31) - 1), "range"),
                wrong("dim", st.integers(min_value=2**31), "range"),
            ],
        )
        for rule in (Concat, Stack)
    ]
    specs = broken(
        OutputSpec,
        output_specs(),
        [wrong("entries", NOT_MAPPINGS | NONE, "type"), _malformed_key, _no_rule],
    )
    return st.one_of(specs, *rules)


def invalid_request_outputs() -> SearchStrategy[Invalid]:
    """Request outputs with a field of the wrong type or form."""
    trees = ("multimodal_outputs", "tensors")
    errors = st.sampled_from([None, "failed", ValueError("failed"), KeyError])
    return broken(
        RequestOutput,
        request_outputs(),
        [
            *_text_defects("request_id"),
            *_token_defects("new_token_ids"),
            *[wrong(name, NOT_MAPPINGS | NONE, "type") for name in (*trees, "metadata")],
            *[wrong_payload(name) for name in trees],
            *[_wrong_value(name, ("audio",), _NOT_TENSORS_ALONE) for name in trees],
            *[_wrong_value(name, ("audio",), _chunks_with_a_number(), (1,)) for name in trees],
            _wrong_value("metadata", ("audio",), st.sampled_from([24000, "wav", None])),
            _wrong_value("metadata", ("audio", "sample_rate"), _NOT_SCALARS),
            wrong("finished", NOT_BOOLS | NONE, "type"),
            wrong("finish_reason", NOT_TEXTS, "type"),
            wrong("finish_reason", BAD_TEXTS, "format"),
            wrong("errors", NOT_MAPPINGS | NONE, "type"),
            wrong("errors", st.just({1: "failed"}), "type"),
            _wrong_value("errors", ("audio",), errors),
        ],
    )


_NOT_TENSORS_ALONE: Final = st.sampled_from([0, 1.0, "audio", None]) | _ARRAYS
_NOT_SCALARS: Final = st.sampled_from([None, b"wav", (1, 2), {"value": 1}]) | _ARRAYS


def _text_defects(name: str) -> Sequence[Defect]:
    return wrong(name, NOT_TEXTS | NONE, "type"), wrong(name, BAD_TEXTS, "format")


def _token_defects(name: str) -> Sequence[Defect]:
    return (
        _one_id(wrong_element(name, NOT_INTS | NONE, "type")),
        _one_id(wrong_element(name, _BAD_IDS, "range")),
        wrong(name, NONE | st.sampled_from([1, "12", {1, 2}]), "type"),
    )


def _one_id(defect: Defect) -> Defect:
    """The defect of an element, where there may be none to put it into."""

    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        for name, value in arguments.items():
            if name.endswith("token_ids"):
                arguments[name] = (*value, 1)
        return defect(draw, arguments)

    return put_in


def _wrong_value(
    name: str, keys: Path, values: SearchStrategy[object], inside: Path = ()
) -> Defect:
    """A bad value in a mapping, under nested keys; or something inside of it is what is bad."""

    def put_in(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
        path = keys or (draw(st.sampled_from(["audio", "sample_rate", ""])),)
        value = draw(values)
        for key in reversed(path[1:]):
            value = {key: value}
        arguments[name] = {**arguments[name], path[0]: value}
        return (name, *path, *inside), "type"

    return put_in


def _chunks_with_a_number() -> SearchStrategy[object]:
    return st.tuples(st.builds(torch.zeros, st.just((1, 2))), _NOT_TENSORS)


def _malformed_key(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    key = draw(st.sampled_from(["", ".", "codes.", ".audio", "codes..audio"]))
    arguments["entries"] = {**arguments["entries"], key: Append()}
    return ("entries", key), "format"


def _no_rule(draw: DrawFn, arguments: dict[str, Any]) -> tuple[Path, str]:
    bad = draw(st.sampled_from([None, "concat", 0, ItemRef("audio", 0)]))
    arguments["entries"] = {**arguments["entries"], "codes.audio": bad}
    return ("entries", "codes.audio"), "type"
