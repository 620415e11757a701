"""The immutable, validated types that cross a process boundary, and the checks around them."""

from omniwire.contracts.boundaries import check_admission, check_producer
from omniwire.contracts.budget import EncoderBudget, EncoderCapability
from omniwire.contracts.errors import (
    AccumulationError,
    AdmissionError,
    ArenaFull,
    ContractError,
    ContractTypeError,
    ContractValueError,
    DecodeError,
    EncodeError,
    HandlerNotFoundError,
    HandoffError,
    HandoffTimeout,
    OmniwireError,
    PeerClosed,
    PeerDied,
    Problem,
    UnsupportedVersionError,
)
from omniwire.contracts.frozen import FrozenMapping
from omniwire.contracts.handles import TensorHandle, TensorSource
from omniwire.contracts.hashing import content_hash
from omniwire.contracts.inputs import MultimodalInput
from omniwire.contracts.items import ItemRef, MultimodalItemMetadata, MultimodalItemPartition
from omniwire.contracts.outputs import (
    Append,
    ChunkKind,
    Concat,
    OmniOutput,
    OutputChunk,
    OutputKind,
    OutputSpec,
    Replace,
    RequestOutput,
    Stack,
)
from omniwire.contracts.params import MultimodalParams
from omniwire.contracts.requests import DisaggregatedParams, ProcessedRequest
from omniwire.contracts.runtime_data import MultimodalRuntimeData
from omniwire.contracts.tokens import TokenIds

__all__ = [
    "AccumulationError",
    "AdmissionError",
    "Append",
    "ArenaFull",
    "ChunkKind",
    "Concat",
    "ContractError",
    "ContractTypeError",
    "ContractValueError",
    "DecodeError",
    "DisaggregatedParams",
    "EncodeError",
    "EncoderBudget",
    "EncoderCapability",
    "FrozenMapping",
    "HandlerNotFoundError",
    "HandoffError",
    "HandoffTimeout",
    "ItemRef",
    "MultimodalInput",
    "MultimodalItemMetadata",
    "MultimodalItemPartition",
    "MultimodalParams",
    "MultimodalRuntimeData",
    "OmniOutput",
    "OmniwireError",
    "OutputChunk",
    "OutputKind",
    "OutputSpec",
    "PeerClosed",
    "PeerDied",
    "Problem",
    "ProcessedRequest",
    "Replace",
    "RequestOutput",
    "Stack",
    "TensorHandle",
    "TensorSource",
    "TokenIds",
    "UnsupportedVersionError",
    "check_admission",
    "check_producer",
    "content_hash",
]
