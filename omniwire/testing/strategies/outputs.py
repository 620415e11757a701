"""What comes back from the executor."""

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
from omniwire.testing.strategies.arrays import tensors
from omniwire.testing.strategies.items import modalities
from omniwire.testing.strategies.payloads import scalars, tensor_handles
from omniwire.testing.strategies.tokens import token_ids

Rule = Concat | Stack | Replace | Append

_INT32: Final = st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1)
_TEXTS: Final = st.text(max_size=8)
_NAMES: Final = st.text(min_size=1, max_size=8)
_KEYS: Final = (
    st.sampled_from(["audio", "image", "codes", "sample_rate", "fps", "model_outputs"]) | _TEXTS
)
_TENSORS: Final[SearchStrategy[torch.Tensor | TensorHandle]] = tensors() | tensor_handles()
_OPTIONAL_TENSORS: Final = st.none() | _TENSORS
_TENSORS_OR_TUPLES: Final = _TENSORS | st.lists(_TENSORS, max_size=2).map(tuple)
_FINISH_REASONS: Final = st.sampled_from([None, "stop", "length"]) | _NAMES
_RESULTS: Final = st.dictionaries(_KEYS, _TENSORS_OR_TUPLES, max_size=2)
_METADATA: Final = st.dictionaries(_KEYS, st.dictionaries(_KEYS, scalars(), max_size=2), max_size=2)


@st.composite
def omni_outputs(draw: DrawFn) -> OmniOutput:
    """Model outputs: tensors, scalars, strings and chunks, flat and nested."""
    return OmniOutput(draw(_OPTIONAL_TENSORS), draw(_OUTPUT_TREES), draw(_OUTPUT_TREES))


def output_chunks() -> SearchStrategy[OutputChunk]:
    """Single chunks of any kind; they do not follow one another.

    >>> from hypothesis import find
    >>> find(output_chunks(), lambda chunk: chunk.finish_reason == "stop").step
    0
    """
    return st.builds(
        OutputChunk,
        _NAMES,
        st.integers(0, 5) | st.integers(0, 2**63 - 1),
        st.lists(modalities(), min_size=1, max_size=3).map("+".join),
        token_ids(max_size=4),
        st.none() | omni_outputs(),
        st.sampled_from(ChunkKind),
        _FINISH_REASONS,
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
def request_outputs(draw: DrawFn) -> RequestOutput:
    """What a client gets, with any combination of results and errors."""
    return RequestOutput(
        draw(_NAMES),
        draw(token_ids(max_size=4)),
        draw(_RESULTS),
        draw(_METADATA),
        draw(_RESULTS),
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


def _trees(values: SearchStrategy[object]) -> SearchStrategy[dict[str, object]]:
    return st.dictionaries(_KEYS, values, max_size=2)


_OUTPUT_LEAVES: Final[SearchStrategy[object]] = scalars() | _TENSORS_OR_TUPLES
_OUTPUT_TREES: Final = _trees(_OUTPUT_LEAVES | _trees(_OUTPUT_LEAVES | _trees(_OUTPUT_LEAVES)))
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
