"""What both sides do with contracts: select, schedule, assemble inputs; accumulate outputs."""

from omniwire.runtime.assembly import EncoderGroup
from omniwire.runtime.cache import CacheLease, TensorLRUCache
from omniwire.runtime.chunks import chunk_embeddings
from omniwire.runtime.encoder import (
    MultimodalEncoder,
    MultimodalEncoderMixin,
    mm_item_scheduling_enabled,
    validate_mm_encoder_scheduling_compatibility,
)
from omniwire.runtime.encoder_state import MultimodalEncoderRequestState
from omniwire.runtime.processor import MultimodalProcessor, prepare_request
from omniwire.runtime.scheduler import ItemScheduler
from omniwire.runtime.selection import select, select_inputs

__all__ = [
    "CacheLease",
    "EncoderGroup",
    "ItemScheduler",
    "MultimodalEncoder",
    "MultimodalEncoderMixin",
    "MultimodalEncoderRequestState",
    "MultimodalProcessor",
    "TensorLRUCache",
    "chunk_embeddings",
    "mm_item_scheduling_enabled",
    "prepare_request",
    "select",
    "select_inputs",
    "validate_mm_encoder_scheduling_compatibility",
]
