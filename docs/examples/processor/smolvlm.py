"""A processor for SmolVLM, a small vision-language model, and the executor's side of it.

An image is cut into square tiles, and a thumbnail of the whole follows them; an image that fits
in one tile is the thumbnail alone. Each tile gives the same number of embedding rows. In the
prompt, every tile is announced by framing tokens that have no row of their own. The layout is
SmolVLM's; images are resized in a simpler way than by its own processor.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.nn.functional import interpolate

import omniwire as ow

Order = Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Tokens:
    """Ids of the tokens that stand for an image in the prompt.

    Attributes:
        image: One embedding row; in a prompt that is not expanded yet, a whole image.
        around: Before each tile, and after the last one.
        thumbnail: Announces the thumbnail.
        first_tile: Announces the tile of row 1 and column 1; the others follow, row by row.
        newline: Ends a row of tiles.
        max_columns: Number of tiles in a row that there are tokens for.
    """

    image: int = 49190
    around: int = 49189
    thumbnail: int = 49152
    first_tile: int = 49153
    newline: int = 198
    max_columns: int = 6


@dataclass(frozen=True)
class SmolVLMProcessor:
    """Turns images and a prompt into a request.

    Args:
        tile_size: Pixels along each side of a tile.
        patch_size: Pixels along each side of what the vision encoder calls a token.
        shuffle: Patches along each side of what becomes one embedding row.
        max_tiles: Most tiles along each side of an image.
        tokens: Those of the tokenizer.
    """

    tile_size: int = 512
    patch_size: int = 16
    shuffle: int = 4
    max_tiles: int = 4
    tokens: Tokens = field(default_factory=Tokens)

    @property
    def patches_per_tile(self) -> int:
        """What a tile costs the encoder, in encoder tokens."""
        side: int = (self.tile_size // self.patch_size) ** 2
        return side

    @property
    def rows_per_tile(self) -> int:
        """Embedding rows of a tile."""
        side: int = self.shuffle**2
        return self.patches_per_tile // side

    def prepare(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        images: Sequence[torch.Tensor],
        *,
        empty: Callable[[Sequence[int], torch.dtype], torch.Tensor] | None = None,
    ) -> ow.ProcessedRequest:
        """Make a request out of a prompt and its images.

        Args:
            request_id: Non-empty.
            prompt_token_ids: With one image token for each image.
            images: Per image, uint8 of shape (3, height, width); no side is empty.
            empty: Allocates the tiles: `channel.empty`, to write them where they are sent from.
        """
        payload = self.payload(images, empty=empty)
        grids = payload["image"]["tile_grid"].tolist()
        prompt, positions, lengths = self._expand(prompt_token_ids, grids)
        num_tiles = [_num_tiles(grid) for grid in grids]
        tiles = torch.split(payload["image"]["pixel_values"], num_tiles)
        digests = [ow.content_hash(one) for one in tiles]
        request = ow.prepare_request(
            self,
            request_id,
            prompt,
            payload,
            multimodal_input=ow.MultimodalInput.from_hexdigests(digests, positions, lengths),
        )
        return ow.check_producer(request)

    def payload(
        self,
        images: Sequence[torch.Tensor],
        *,
        empty: Callable[[Sequence[int], torch.dtype], torch.Tensor] | None = None,
    ) -> dict[str, dict[str, torch.Tensor]]:
        """What the encoder gets.

        Returns:
            Under `"image"`: `pixel_values`, the tiles of all images, float32 of shape
            (tiles, 3, tile_size, tile_size), from -1 to 1; and `tile_grid`, per image the tiles
            along its height and width, int64 of shape (images, 2).
        """
        grids = [self._grid(image) for image in images]
        num_tiles = sum(map(_num_tiles, grids))
        shape = (num_tiles, 3, self.tile_size, self.tile_size)
        tiles = torch.empty(shape) if empty is None else empty(shape, torch.float32)
        start = 0
        for image, grid in zip(images, grids, strict=True):
            stop = start + _num_tiles(grid)
            self._write_tiles(image.float(), grid, tiles[start:stop])
            start = stop
        tiles.div_(127.5).sub_(1)
        grid_tensor = torch.tensor(grids, dtype=torch.int64).reshape(len(grids), 2)
        return {"image": {"pixel_values": tiles, "tile_grid": grid_tensor}}

    def get_mm_item_metadata(
        self,
        prompt_token_ids: Sequence[int],
        multimodal_data: Mapping[str, Any],
        mm_item_order: Order | None = None,
    ) -> ow.MultimodalItemMetadata:
        """What the model knows of the images: costs, rows, and how the payload divides."""
        num_tiles = [_num_tiles(grid) for grid in multimodal_data["image"]["tile_grid"].tolist()]
        order = mm_item_order or [("image", index) for index in range(len(num_tiles))]
        return ow.MultimodalItemMetadata(
            order,
            encoder_token_lengths=[num_tiles[i] * self.patches_per_tile for _, i in order],
            output_embedding_lengths=[num_tiles[i] * self.rows_per_tile for _, i in order],
            input_partitions={
                "image": {
                    "pixel_values": ow.MultimodalItemPartition(num_tiles),
                    "tile_grid": ow.MultimodalItemPartition(),
                }
            },
        )

    def get_dummy_mm_data(self, max_items: Mapping[str, int]) -> Mapping[str, Any]:
        """A payload of the largest images, to profile the encoder with."""
        side = self.max_tiles * self.tile_size
        largest = torch.zeros(3, side, side, dtype=torch.uint8)
        data = self.payload([largest] * max_items["image"])
        return {**data, "item_metadata": self.get_mm_item_metadata((), data)}

    def _grid(self, image: torch.Tensor) -> tuple[int, int]:
        """Tiles along height and width."""
        height, width = (
            min(math.ceil(n / self.tile_size), self.max_tiles) for n in image.shape[1:]
        )
        return height, width

    def _write_tiles(self, image: torch.Tensor, grid: tuple[int, int], tiles: torch.Tensor) -> None:
        """Cut an image into tiles, row by row; the thumbnail is the last."""
        size = self.tile_size
        tiles[-1] = interpolate(image[None], (size, size), mode="area")[0]
        if len(tiles) > 1:
            rows, columns = grid
            whole = interpolate(image[None], (rows * size, columns * size), mode="area")[0]
            cut = whole.view(3, rows, size, columns, size).permute(1, 3, 0, 2, 4)
            tiles[:-1] = cut.reshape(-1, 3, size, size)

    def _expand(
        self, prompt_token_ids: Sequence[int], grids: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[int], list[int]]:
        """The prompt with all of each image's tokens; their first positions, and their numbers."""
        left = iter(grids)
        prompt: list[int] = []
        positions: list[int] = []
        lengths: list[int] = []
        for token in prompt_token_ids:
            if token != self.tokens.image:
                prompt.append(token)
                continue
            grid = next(left, None)
            if grid is None:
                raise ValueError(f"expected {len(grids)} image tokens in the prompt, got more")
            expanded = self._tokens_of(grid)
            positions.append(len(prompt))
            lengths.append(len(expanded))
            prompt += expanded
        if len(positions) < len(grids):
            raise ValueError(f"expected {len(grids)} image tokens in the prompt, got fewer")
        return prompt, positions, lengths

    def _tokens_of(self, grid: tuple[int, int]) -> list[int]:
        tokens = self.tokens
        rows = [tokens.image] * self.rows_per_tile
        expanded: list[int] = []
        if _num_tiles(grid) > 1:
            for row in range(grid[0]):
                for column in range(grid[1]):
                    tile = tokens.first_tile + row * tokens.max_columns + column
                    expanded += [tokens.around, tile, *rows]
                expanded.append(tokens.newline)
            expanded.append(tokens.newline)
        return [*expanded, tokens.around, tokens.thumbnail, *rows, tokens.around]


class SmolVLMEncoder(ow.MultimodalEncoderMixin, torch.nn.Module):
    """The executor's side: tiles become embedding rows.

    A stand-in for the vision encoder, with its shapes: patches, then pixel shuffle, then the
    projection to the language model's hidden size.

    Args:
        processor: What the tiles are cut by.
        hidden_size: Of the language model.
    """

    supports_mm_encoder_item_scheduling: ClassVar[bool] = True

    def __init__(self, processor: SmolVLMProcessor, hidden_size: int) -> None:
        super().__init__()
        patch, features = processor.patch_size, 8
        self.patches = torch.nn.Conv2d(3, features, patch, stride=patch)
        self.shuffle = torch.nn.PixelUnshuffle(processor.shuffle)
        self.projection = torch.nn.Linear(features * processor.shuffle**2, hidden_size)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Encode tiles: (tiles, 3, size, size) to (tiles * rows per tile, hidden)."""
        shuffled = self.shuffle(self.patches(pixel_values))
        rows: torch.Tensor = self.projection(shuffled.flatten(2).transpose(1, 2))
        return rows.flatten(0, 1)

    @torch.inference_mode()
    def encode_multimodal_inputs(self, params: list[ow.MultimodalParams]) -> list[torch.Tensor]:
        """Encode the tiles of all params at once; per params, the rows of its images in order."""
        tiles = [one.multimodal_data["image"]["pixel_values"] for one in params]
        rows = self(torch.cat(tiles))
        rows_per_tile = len(rows) // sum(map(len, tiles))
        return list(rows.split([len(one) * rows_per_tile for one in tiles]))


def _num_tiles(grid: Sequence[int]) -> int:
    """Tiles of an image, the thumbnail included."""
    count = math.prod(grid)
    return 1 if count == 1 else count + 1
