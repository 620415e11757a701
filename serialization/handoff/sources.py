"""`TensorSource`: what a channel attaches to a handle, so that it can be resolved."""

import torch

from omniwire.contracts.errors import HandoffError
from omniwire.serialization.handoff.lease import SlotBytes


class SlotSource:
    """A tensor in an arena. Keeps its slot; resolves any number of times, to the same memory.

    Args:
        tensor: A view of the slot; read-only by contract if it came from a peer.
    """

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def resolve_tensor(self) -> torch.Tensor:
        """The tensor."""
        return self._tensor


def as_tensor(
    content: SlotBytes | None, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Bytes of a slot as a tensor; None for a tensor without any.

    Raises:
        HandoffError: They are not as many as the tensor has.
    """
    if content is None:
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(content)
    try:
        return flat.view(dtype).view(shape)
    except RuntimeError as error:
        raise HandoffError(
            f"expected the bytes of the tensor, got {flat.nbytes}: {error}"
        ) from None
