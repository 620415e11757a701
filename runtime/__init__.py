"""What both sides do with contracts: select, schedule, assemble inputs; accumulate outputs."""

from omniwire.runtime.assembly import EncoderGroup
from omniwire.runtime.cache import CacheLease, TensorLRUCache
from omniwire.runtime.cache_keys import EncoderCacheKey, encoder_cache_key
from omniwire.runtime.chunks import chunk_embeddings
from omniwire.runtime.disaggregation import (
    PrefillHook,
    export_embeddings,
    import_embeddings,
    record_rows,
)
from omniwire.runtime.encoder import (
    MultimodalEncoder,
    MultimodalEncoderMixin,
    mm_item_scheduling_enabled,
    validate_mm_encoder_scheduling_compatibility,
)
from omniwire.runtime.encoder_state import MultimodalEncoderRequestState
from omniwire.runtime.encoding import encode_scheduled
from omniwire.runtime.handlers import (
    AudioHandler,
    ImageHandler,
    LatentHandler,
    ModalityHandler,
    TensorHandler,
    TextHandler,
    TokenIdsHandler,
    VideoHandler,
)
from omniwire.runtime.output_processor import MultimodalOutputProcessor
from omniwire.runtime.output_state import OmniRequestState
from omniwire.runtime.output_stream import OutputStream
from omniwire.runtime.processor import ItemMetadataSource, MultimodalProcessor, prepare_request
from omniwire.runtime.registry import ModalityRegistry, default_registry
from omniwire.runtime.router import OutputRouter
from omniwire.runtime.scheduler import ItemScheduler
from omniwire.runtime.selection import select, select_inputs

__all__ = [
    "AudioHandler",
    "CacheLease",
    "EncoderCacheKey",
    "EncoderGroup",
    "ImageHandler",
    "ItemMetadataSource",
    "ItemScheduler",
    "LatentHandler",
    "ModalityHandler",
    "ModalityRegistry",
    "MultimodalEncoder",
    "MultimodalEncoderMixin",
    "MultimodalEncoderRequestState",
    "MultimodalOutputProcessor",
    "MultimodalProcessor",
    "OmniRequestState",
    "OutputRouter",
    "OutputStream",
    "PrefillHook",
    "TensorHandler",
    "TensorLRUCache",
    "TextHandler",
    "TokenIdsHandler",
    "VideoHandler",
    "chunk_embeddings",
    "default_registry",
    "encode_scheduled",
    "encoder_cache_key",
    "export_embeddings",
    "import_embeddings",
    "mm_item_scheduling_enabled",
    "prepare_request",
    "record_rows",
    "select",
    "select_inputs",
    "validate_mm_encoder_scheduling_compatibility",
]
