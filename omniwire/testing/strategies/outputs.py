"""What comes back from the executor."""

import functools
from collections.abc import Sequence
from typing import Final, Unpack

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
    UnsupportedVersionError,
)
from omniwire.contracts.errors import DECODE_CODES, PROBLEM_CODES
from omniwire.testing.strategies.items import modality_names
from omniwire.testing.strategies.knobs import (
    OUTPUT_LAYOUTS,
    TensorKinds,
    TensorKnobs,
    check_names,
)
from omniwire.testing.strategies.payloads import scalars, tensors_of
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
_OUTPUT_TYPES: Final = st.lists(modality_names(), min_size=1, max_size=3).map("+".join)
_KINDS: Final = st.sampled_from(ChunkKind)
_FINISH_REASONS: Final = st.sampled_from([None, "stop", "length"]) | _NAMES
_METADATA: Final = st.dictionaries(_KEYS, scalars(), max_size=2)


def omni_outputs(
    *,
    modalities: Sequence[str] | None = None,
    payload_layouts: Sequence[str] = OUTPUT_LAYOUTS,
    **knobs: Unpack[TensorKnobs],
) -> SearchStrategy[OmniOutput]:
    """Model outputs: tensors, scalars, strings and chunks, flat and nested.

    Args:
        modalities: Modalities that there may be something of, under their own names: a tensor or
            a tuple of chunks, which nested stands among scalars. By default, keys and values are
            any that are legal, whatever a handler would make of them.
        payload_layouts: `"flat"`, `"nested"` or both.
        **knobs: Which tensors there are: `TensorKnobs`.

    Raises:
        ValueError: A layout is unknown.

    >>> from hypothesis import find
    >>> nested = omni_outputs(modalities=["audio"], payload_layouts=["nested"])
    >>> output = find(nested, lambda output: output.multimodal_outputs)
    >>> list(output.multimodal_outputs["audio"])
    ['audio']
    """
    trees = _payloads(modalities, payload_layouts, knobs)
    hidden = st.none() | tensors_of(TensorKinds.of(knobs))
    return st.builds(OmniOutput, hidden, trees, trees)


def output_chunks(
    *,
    modalities: Sequence[str] | None = None,
    payload_layouts: Sequence[str] = OUTPUT_LAYOUTS,
    **knobs: Unpack[TensorKnobs],
) -> SearchStrategy[OutputChunk]:
    """Single chunks of any kind; they do not follow one another.

    Args:
        modalities: Modalities of the output type and, as for `omni_outputs`, of the output.
        payload_layouts: As for `omni_outputs`.
        **knobs: Which tensors there are: `TensorKnobs`.

    >>> from hypothesis import find
    >>> find(output_chunks(), lambda chunk: chunk.finish_reason == "stop").step
    0
    """
    outputs = omni_outputs(modalities=modalities, payload_layouts=payload_layouts, **knobs)
    output_types = _OUTPUT_TYPES if modalities is None else st.just("+".join(modalities))
    return st.builds(
        OutputChunk,
        _NAMES,
        _STEPS,
        output_types,
        _NEW_TOKEN_IDS,
        st.none() | outputs,
        _KINDS,
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
    name = modality_names() | _NAMES.filter(lambda text: "." not in text)
    keys = st.lists(name, min_size=1, max_size=3).map(".".join)
    return st.builds(OutputSpec, st.dictionaries(keys, accumulation_rules(), max_size=3))


def request_outputs(
    *, modalities: Sequence[str] | None = None, **knobs: Unpack[TensorKnobs]
) -> SearchStrategy[RequestOutput]:
    """What a client gets, with any combination of results and errors.

    Args:
        modalities: Modalities of the results, their metadata and errors; by default any keys.
        **knobs: Which tensors there are: `TensorKnobs`.
    """
    values = _tensors_or_tuples(TensorKinds.of(knobs))
    keys = _KEYS if modalities is None else st.sampled_from(list(modalities))
    error_keys = _KEYS if modalities is None else st.sampled_from(["", *modalities])
    return st.builds(
        RequestOutput,
        _NAMES,
        _NEW_TOKEN_IDS,
        st.dictionaries(keys, values, max_size=2),
        st.dictionaries(keys, _METADATA, max_size=2),
        st.dictionaries(_KEYS, values, max_size=2),
        st.booleans(),
        _FINISH_REASONS,
        st.dictionaries(error_keys, wire_errors(), max_size=2),
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
def _tensors_or_tuples(kinds: TensorKinds) -> SearchStrategy[object]:
    each = tensors_of(kinds)
    return each | st.lists(each, max_size=2).map(tuple)


def _payloads(
    modalities: Sequence[str] | None, layouts: Sequence[str], knobs: TensorKnobs
) -> SearchStrategy[dict[str, object]]:
    check_names("payload_layouts", layouts, OUTPUT_LAYOUTS)
    kinds = TensorKinds.of(knobs)
    if modalities is None:
        return _any_trees(kinds, tuple(layouts))
    return _trees_of_modalities(kinds, tuple(layouts), tuple(modalities))


@functools.cache
def _any_trees(kinds: TensorKinds, layouts: tuple[str, ...]) -> SearchStrategy[dict[str, object]]:
    leaves = scalars() | _tensors_or_tuples(kinds)
    nested = _trees(leaves | _trees(leaves))
    return _trees(st.one_of([{"flat": leaves, "nested": nested}[layout] for layout in layouts]))


@functools.cache
def _trees_of_modalities(
    kinds: TensorKinds, layouts: tuple[str, ...], modalities: tuple[str, ...]
) -> SearchStrategy[dict[str, object]]:
    """Payloads with no part that could belong to another modality than the one it is under."""
    values = _tensors_or_tuples(kinds)
    names = _KEYS.filter(lambda name: name not in modalities)
    parts = {
        modality: {
            "flat": values,
            "nested": st.builds(
                lambda value, rest, name=modality: {**rest, name: value},
                values,
                st.dictionaries(names, scalars(), max_size=2),
            ),
        }
        for modality in modalities
    }
    return st.fixed_dictionaries(
        {},
        optional={
            modality: st.one_of([forms[layout] for layout in layouts])
            for modality, forms in parts.items()
        },
    )


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
