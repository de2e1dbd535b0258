"""Sequence networks: recurrent, and with attention.

The steps of the sequence (`places`) are the rows of an image, or the numbers of a flat record. The first
affine transformation, which Delta_h0 counts, is that of every gate at every step for the recurrent network,
and the embedding of every step for the other. Relevance propagation does not support them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adlm.analyst.heads import bounded_head
from adlm.errors import UserError

Shape = tuple[int, ...]


def places(shape: Shape) -> tuple[int, int]:
    """Number of steps of a record, and of numbers in each: rows of an image, else single numbers."""
    if not 1 <= len(shape) <= 3:
        raise UserError(f"this network takes records of one to three axes, got shape {shape}; choose mlp")
    if len(shape) == 1:
        return shape[0], 1
    return (shape[0], shape[1]) if len(shape) == 2 else (shape[1], shape[0] * shape[2])


class _ByPlace(nn.Module):
    """A network on sequences (n, places, numbers)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, (self.count, self.width) = shape, places(shape)

    def _series(self, x: Tensor) -> Tensor:
        rows = x.movedim(1, 2) if len(self.shape) == 3 else x
        return rows.reshape(len(x), self.count, self.width)


class Recurrent(_ByPlace):
    """An LSTM of 32 units; its last state, in [-1, 1], is the input of the bounded head."""

    def __init__(self, shape: Shape, classes: int, units: int = 32) -> None:
        super().__init__(shape)
        self.series = nn.LSTM(self.width, units, batch_first=True)
        self.head = bounded_head(units, 25, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        answer: Tensor = self.head(self.series(self._series(x))[0][:, -1])
        return answer


class Attention(_ByPlace):
    """Embeddings in 32 dimensions with learnt positions, one layer of attention, and mean pooling."""

    def __init__(self, shape: Shape, classes: int, units: int = 32) -> None:
        super().__init__(shape)
        self.embed = nn.Linear(self.width, units)
        self.position = nn.Embedding(self.count, units)
        self.encoder = nn.TransformerEncoderLayer(units, 4, 2 * units, dropout=0.0, batch_first=True)
        self.head = bounded_head(units, 25, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        embedded = self.embed(self._series(x))
        position = self.position(torch.arange(self.count, device=x.device))
        answer: Tensor = self.head(self.encoder(embedded + position).mean(1))
        return answer
