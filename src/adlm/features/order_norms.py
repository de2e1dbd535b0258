"""Root, centre and scale coefficients within each order: of one record, for all orders.

A constant order becomes exactly zero.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from adlm.runtime.compiled import LANES, Compiled, Floats, every, fused, larger, load, numbers, root, store

NOTHING = 1e-30  # a squared norm
ZERO = np.float32(0.0)


class OrderNorms(nn.Module):
    """Rooted, centred and scaled coefficients of each order.

    With c the coefficients of an order, r = sqrt(max(c, share * max(mean(c), 0))), or r = c in an order that
    is not rooted; the result is (r - mean(r)) / max(|r - mean(r)| + added, least).

    Parameters
    ----------
    orders : (width,) order of each coordinate, in rising order.
    share : of the mean: what is less is raised to it.
    added : to the norm of each order.
    least : norm of an order that is scaled to one; shorter ones stay short.
    plain : orders, from the first on, that are not rooted.
    """

    members: Tensor
    first: Tensor
    averages: Tensor
    added: Tensor

    def __init__(
        self, orders: Tensor, share: float, added: tuple[float, ...], least: float, plain: int = 0
    ) -> None:
        super().__init__()
        members = functional.one_hot(orders).float().T.contiguous()
        self.register_buffer("members", members, persistent=False)
        self.register_buffer("first", members.argmax(1), persistent=False)
        self.register_buffer("averages", members / members.sum(1, keepdim=True), persistent=False)
        self.register_buffer("added", torch.tensor(added[: len(members)]), persistent=False)
        self.share, self.least, self.plain = share, least, plain
        self.bounds = np.array([0, *np.cumsum(members.sum(1).numpy())], np.int64)

    def compiled(self, rows: Floats) -> Floats:
        """Write over coefficients (n, width), record by record, and return them."""
        settings = np.array([self.share, self.least, self.plain, *self.added.tolist()], np.float32)
        norm_orders(rows.reshape(-1), self.bounds, settings, np.empty(LANES, np.float32))
        return rows

    def forward(self, rows: Tensor) -> Tensor:
        """Map (n, width), by operations that have gradients and can be exported."""
        raised = rows.maximum(self._spread(self.share * self._means(rows).clamp_min(0.0)))
        if self.plain:
            kept = int(self.bounds[self.plain])
            roots = torch.cat([rows[:, :kept], raised[:, kept:].clamp_min(NOTHING).sqrt()], 1)
        else:
            roots = raised.clamp_min(NOTHING).sqrt()
        uneven = roots - self._spread(roots.index_select(1, self.first))
        centred = uneven - self._spread(self._means(uneven))
        norms = (centred.square() @ self.members.T).clamp_min(NOTHING).sqrt()
        return centred * self._spread((norms + self.added).clamp_min(self.least).reciprocal())

    def _means(self, rows: Tensor) -> Tensor:
        """Mean of each order of rows (n, width): (n, orders)."""
        return rows @ self.averages.T

    def _spread(self, values: Tensor) -> Tensor:
        """Put a value of each order (n, orders) in all places of that order: (n, width)."""
        return values @ self.members


def _total(x: Floats, start: int, stop: int, spare: Floats) -> np.float32:
    """Sum of some numbers: eight sums of every eighth, then those, then the numbers that are left."""
    total = every(ZERO)
    whole = start + (stop - start) // LANES * LANES
    for i in range(start, whole, LANES):
        total = total + load(x, i)
    return _joined(x, total, whole, stop, spare)


def _joined(x: Floats, total: NDArray[np.float32], start: int, stop: int, spare: Floats) -> np.float32:
    store(spare, 0, total)
    value = ZERO
    for lane in range(LANES):
        value += spare[lane]
    for i in range(start, stop):
        value += x[i]
    return value


def _norm_orders(rows: Floats, bounds: NDArray[np.int64], settings: Floats, spare: Floats) -> None:
    """Root, centre and scale the coefficients (n, width) of each record, flat, in place.

    Parameters
    ----------
    rows : coefficients of one record after the other.
    bounds : where each order starts, then the width.
    settings : `share`, `least`, `plain` and `added` of `OrderNorms`.
    spare : eight numbers to work on.
    """
    width, size, orders = bounds[len(bounds) - 1], len(rows), len(bounds) - 1
    x, eight = numbers(rows), numbers(spare)
    for record in range(0, size, width):
        for order in range(orders):
            start, stop = record + bounds[order], record + bounds[order + 1]
            count, whole = np.float32(stop - start), start + (stop - start) // LANES * LANES
            if order >= settings[2]:
                floor = settings[0] * max(_total(x, start, stop, eight) / count, ZERO)
                for i in range(start, whole, LANES):
                    store(x, i, root(larger(load(x, i), every(floor))))
                for i in range(whole, stop):
                    x[i] = np.sqrt(max(x[i], floor))
            first = x[start]
            for i in range(start, whole, LANES):
                store(x, i, load(x, i) - every(first))
            for i in range(whole, stop):
                x[i] -= first
            mean = _total(x, start, stop, eight) / count
            square = every(ZERO)
            for i in range(start, whole, LANES):
                centred = load(x, i) - every(mean)
                store(x, i, centred)
                square = fused(centred, centred, square)
            for i in range(whole, stop):
                x[i] -= mean
            length = _joined(x, square, whole, whole, eight)
            for i in range(whole, stop):
                length += x[i] * x[i]
            scale = np.float32(1.0) / max(np.sqrt(length) + settings[3 + order], settings[1])
            for i in range(start, whole, LANES):
                store(x, i, load(x, i) * every(scale))
            for i in range(whole, stop):
                x[i] *= scale


norm_orders = Compiled(_norm_orders)
