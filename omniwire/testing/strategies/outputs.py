"""What comes back from the executor."""

import functools
from collections.abc import Sequence
from typing import Final

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from omniwire.contracts import (
    AccumulationError,
    AdmissionError,
    Append,
    ArenaFull,
    ChunkKind,
    Concat,
    ContractTypeError,
    ContractValueError,
    DecodeError,
    EncodeError,
    HandlerNotFoundError,
    HandoffError,
    HandoffTimeout,
    OmniOutput,
    OmniwireError,
    OutputChunk,
    OutputSpec,
    PeerClosed,
    PeerDied,
    Problem,
    Replace,
    RequestOutput,
    Stack,
    TensorHandle,
    UnsupportedVersionError,
)
from omniwire.contracts.errors import DECODE_CODES, PROBLEM_CODES
from omniwire.testing.strategies.items import modalities
from omniwire.testing.strategies.payloads import scalars, tensors_or_handles
from omniwire.testing.strategies.tokens import token_ids

Rule = Concat | Stack | Replace | Append

_INT32: Final = st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1)
_TEXTS: Final = st.text(max_size=8)
_NAMES: Final = st.text(min_size=1, max_size=8)
_KEYS: Final = (
    st.sampled_from(["audio", "image", "codes", "sample_rate", "fps", "model_outputs"]) | _TEXTS
)
_NEW_TOKEN_IDS: Final = token_ids(max_size=4)
_STEPS: Final = st.integers(0, 5) | st.integers(0, 2**63 - 1)
_OUTPUT_TYPES: Final = st.lists(modalities(), min_size=1, max_size=3).map("+".join)
_KINDS: Final = st.sampled_from(ChunkKind)
_FINISH_REASONS: Final = st.sampled_from([None, "stop", "length"]) | _NAMES
_METADATA: Final = st.dictionaries(_KEYS, st.dictionaries(_KEYS, scalars(), max_size=2), max_size=2)


@st.composite
def omni_outputs(draw: DrawFn, *, handle_kinds: Sequence[str] = ()) -> OmniOutput:
    """Model outputs: tensors, scalars, strings and chunks, flat and nested.

    Args:
        draw: Supplied by Hypothesis.
        handle_kinds: Kinds of handles in the place of some tensors; by default none.
    """
    kinds = tuple(handle_kinds)
    trees = _output_trees(kinds)
    return OmniOutput(draw(_optional_tensors(kinds)), draw(trees), draw(trees))


@st.composite
def output_chunks(draw: DrawFn, *, handle_kinds: Sequence[str] = ()) -> OutputChunk:
    """Single chunks of any kind; they do not follow one another.

    Args:
        draw: Supplied by Hypothesis.
        handle_kinds: Kinds of handles in the place of some tensors; by default none.

    >>> from hypothesis import find
    >>> find(output_chunks(), lambda chunk: chunk.finish_reason == "stop").step
    0
    """
    return OutputChunk(
        draw(_NAMES),
        draw(_STEPS),
        draw(_OUTPUT_TYPES),
        draw(_NEW_TOKEN_IDS),
        draw(st.none() | omni_outputs(handle_kinds=handle_kinds)),
        draw(_KINDS),
        draw(_FINISH_REASONS),
    )


def concats() -> SearchStrategy[Concat]:
    """Concatenation along any dimension."""
    return st.builds(Concat, _INT32)


def stacks() -> SearchStrategy[Stack]:
    """Stacking along any dimension."""
    return st.builds(Stack, _INT32)


def accumulation_rules() -> SearchStrategy[Rule]:
    """Every rule of an `OutputSpec`."""
    return st.one_of(st.builds(Replace), st.builds(Append), concats(), stacks())


def output_specs() -> SearchStrategy[OutputSpec]:
    """Specs by modality and dotted key."""
    name = modalities() | _NAMES.filter(lambda text: "." not in text)
    keys = st.lists(name, min_size=1, max_size=3).map(".".join)
    return st.builds(OutputSpec, st.dictionaries(keys, accumulation_rules(), max_size=3))


@st.composite
def request_outputs(draw: DrawFn, *, handle_kinds: Sequence[str] = ()) -> RequestOutput:
    """What a client gets, with any combination of results and errors.

    Args:
        draw: Supplied by Hypothesis.
        handle_kinds: Kinds of handles in the place of some tensors; by default none.
    """
    results = _results(tuple(handle_kinds))
    return RequestOutput(
        draw(_NAMES),
        draw(_NEW_TOKEN_IDS),
        draw(results),
        draw(_METADATA),
        draw(results),
        draw(st.booleans()),
        draw(_FINISH_REASONS),
        draw(_ERRORS),
    )


@st.composite
def wire_errors(draw: DrawFn) -> OmniwireError:
    """Every class of error that may cross a process boundary."""
    kind = draw(st.sampled_from(_ERROR_ARGUMENTS_BY_KIND))
    return kind[0](*draw(kind[1]))


def problems() -> SearchStrategy[Problem]:
    """Problems with any path and code."""
    path = st.lists(_TEXTS | st.integers(0, 100), max_size=3).map(tuple)
    return st.builds(Problem, path, st.sampled_from(list(PROBLEM_CODES)), _TEXTS, _TEXTS)


@functools.cache
def _optional_tensors(
    handle_kinds: tuple[str, ...],
) -> SearchStrategy[torch.Tensor | TensorHandle | None]:
    return st.none() | tensors_or_handles(handle_kinds)


@functools.cache
def _tensors_or_tuples(handle_kinds: tuple[str, ...]) -> SearchStrategy[object]:
    each = tensors_or_handles(handle_kinds)
    return each | st.lists(each, max_size=2).map(tuple)


@functools.cache
def _results(handle_kinds: tuple[str, ...]) -> SearchStrategy[dict[str, object]]:
    return st.dictionaries(_KEYS, _tensors_or_tuples(handle_kinds), max_size=2)


@functools.cache
def _output_trees(handle_kinds: tuple[str, ...]) -> SearchStrategy[dict[str, object]]:
    leaves = scalars() | _tensors_or_tuples(handle_kinds)
    return _trees(leaves | _trees(leaves | _trees(leaves)))


def _trees(values: SearchStrategy[object]) -> SearchStrategy[dict[str, object]]:
    return st.dictionaries(_KEYS, values, max_size=2)


_SEVERAL_PROBLEMS: Final = st.lists(problems(), min_size=1, max_size=2)
_MESSAGES: Final = st.tuples(_TEXTS)
_ERROR_ARGUMENTS_BY_KIND: Final[
    list[tuple[type[OmniwireError], SearchStrategy[tuple[object, ...]]]]
] = [
    (OmniwireError, _MESSAGES),
    (ContractTypeError, st.tuples(_NAMES, _SEVERAL_PROBLEMS)),
    (ContractValueError, st.tuples(_NAMES, _SEVERAL_PROBLEMS)),
    (AdmissionError, st.tuples(_NAMES, _SEVERAL_PROBLEMS, _NAMES)),
    (EncodeError, st.tuples(_NAMES, problems())),
    (
        DecodeError,
        st.tuples(
            _TEXTS, st.sampled_from(list(DECODE_CODES)), st.none() | st.integers(0, 2**63 - 1)
        ),
    ),
    (UnsupportedVersionError, st.tuples(st.integers(0, 2**16), st.integers(0, 2**16))),
    (HandoffError, _MESSAGES),
    (PeerClosed, _MESSAGES),
    (PeerDied, _MESSAGES),
    (HandoffTimeout, _MESSAGES),
    (ArenaFull, _MESSAGES),
    (HandlerNotFoundError, st.tuples(_NAMES, st.lists(_NAMES, max_size=2))),
    (AccumulationError, st.tuples(_TEXTS, _NAMES, _TEXTS, _TEXTS)),
]
_ERRORS: Final = st.dictionaries(_KEYS, wire_errors(), max_size=2)
