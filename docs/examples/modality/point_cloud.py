"""Point clouds as an output modality: a scanner model sends them a few points at a time."""

from collections.abc import Mapping
from typing import Any

import torch

import omniwire as ow

Points = tuple[torch.Tensor, ...]
"""Chunks of points so far; each of shape (points, 6): x, y, z and red, green, blue from 0 to 1."""


class PointCloudHandler:
    """Clouds of colored points: positions and colors come apart and are sent on as one tensor.

    A model output has them under `"points"`: `{"xyz": f32 (n, 3), "rgb": u8 (n, 3)}`. What a
    client gets is float32 of shape (points, 6), chunk after chunk.
    """

    modality: str = "points"

    def extract(self, output: ow.OmniOutput) -> torch.Tensor | None:
        """The points of one step, in the form that they are sent on in.

        Raises:
            ValueError: There is something else under `"points"`.
        """
        found: Any = output.multimodal_outputs.get(self.modality)
        if found is None:
            return None
        if not isinstance(found, Mapping) or found.keys() != {"xyz", "rgb"}:
            raise ValueError("expected a mapping of xyz and rgb")
        if found["rgb"].dtype != torch.uint8:
            raise ValueError(f"expected colors as uint8, got {found['rgb'].dtype}")
        return torch.cat([found["xyz"], found["rgb"].to(found["xyz"].dtype) / 255], dim=-1)

    def accumulate(self, existing: Points | None, incoming: torch.Tensor) -> Points:
        """Add a chunk of points.

        Raises:
            ValueError: The chunk is not of float32 (points, 6).
        """
        if incoming.ndim != 2 or incoming.shape[1] != 6 or incoming.dtype != torch.float32:
            got = f"{incoming.dtype} of {tuple(incoming.shape)}"
            raise ValueError(f"expected float32 of (points, 6), got {got}")
        return (*(() if existing is None else existing), incoming)

    def consolidate(self, accumulated: Points) -> torch.Tensor:
        """All points in one tensor."""
        return torch.cat(accumulated)

    def validate(self, value: torch.Tensor) -> bool:
        """Whether every point is somewhere: a scanner that lost its position sends NaN."""
        return bool(torch.isfinite(value).all())
