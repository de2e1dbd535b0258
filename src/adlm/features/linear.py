"""Products and norms whose last bits do not depend on the batch: the arithmetic below all image features.

A library may add in another order for another shape of a batch, another place in it, another alignment in
memory or another number of threads, and so round a record differently. Here are three ways around that:

- `map_records` hands records to compiled loops, one after the other, in several threads.
- `Directions`, `Resized` and `both_sides` are compiled products with one order of additions for every entry.
- `ExactDirections` and `exact_unit_norm` round entries to a grid so coarse that every sum of products is an
  integer below 2^53 steps, which a double holds exactly, so that the order of addition does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adlm.runtime.compiled import LANES, Compiled, Floats, Lanes, every, fused, load, numbers, store
from adlm.runtime.machine import keep_freed

ACCELERATED = 1024  # records in a batch on an accelerator, which needs large ones
EXACT = 53  # bits of an integer that a double holds
COARSEST = 20  # bits of the largest direction
PANEL = 2 * LANES  # directions side by side
TILE = 6  # rows that are multiplied together: their sums fill the registers
DEPTH = 128  # entries of a row at a time: those of a panel, and of all rows, stay in a core's caches
ROWS = 240  # that a thread takes at most: a panel is read once for all of them
FEW = 16  # records that are mapped to rows together
GRID = float(1 << 22)  # steps in one unit of a weight of resizing: a library's last bits are gone

# ---- Records one by one, in several threads ----


def is_plain_tensor(x: Tensor) -> bool:
    """Whether a tensor is one that compiled loops can read: on a processor, without graph or gradient."""
    exported = torch.onnx.is_in_onnx_export()
    return type(x) is Tensor and x.device.type == "cpu" and not x.requires_grad and not exported


def map_records(
    x: Tensor,
    shape: tuple[int, ...],
    compiled: Callable[[Floats], Floats],
    batched: Callable[[Tensor], Tensor],
    rows: int,
) -> Tensor:
    """Map records (n, ...) to (n, *shape): on a processor by compiled loops, else by PyTorch.

    Parameters
    ----------
    x : records.
    shape : of what a record is mapped to.
    compiled : maps arrays, record by record.
    batched : the same up to rounding, for gradients, ONNX files and accelerators.
    rows : records that a thread takes.

    Formal guarantees
    -----------------
    A compiled loop takes one record after the other, by elementary operations in the order of its source, so
    on a processor what comes out for a record is a function of that record alone. On an accelerator `batched`
    gets batches of one fixed shape; that a place in a batch does not matter there is measured (by the audit,
    as separability), for no library promises it.
    """
    if not is_plain_tensor(x):
        if x.device.type == "cpu" or x.requires_grad or torch.onnx.is_in_onnx_export():
            return batched(x)
        return torch.cat([_padded(batched, part) for part in torch.split(x, ACCELERATED)])
    out = np.empty((len(x), *shape), np.float32)
    records = x.detach().numpy()

    def work(start: int) -> None:
        out[start : start + rows] = compiled(np.ascontiguousarray(records[start : start + rows], np.float32))

    keep_freed()
    starts = range(0, len(x), rows)
    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        for start in starts:
            work(start)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work, start) for start in starts]:
                done.result()
    return torch.from_numpy(out)


def _padded(batched: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Map records of an accelerator in a batch of one fixed shape."""
    if len(x) == ACCELERATED:
        return batched(x)
    block = x.new_zeros(ACCELERATED, *x.shape[1:])
    block[: len(x)] = x
    return batched(block)[: len(x)]


# ---- Exact sums ----


class ExactDirections(nn.Module):
    """Product of rows with fixed directions (p, k), exact on a grid: (n, p) to (n, k) in doubles.

    Parameters
    ----------
    directions : (p, k). They are rounded to 20 bits of the largest.
    limit : entries of a row beyond it are cut off.
    """

    steps: Tensor

    def __init__(self, directions: Tensor, limit: float) -> None:
        super().__init__()
        wide, self.limit = directions.double(), limit
        self.unit = 2.0 ** (_exponent(float(wide.abs().max())) - COARSEST)
        # Not in the fingerprint: it is derived from what is.
        self.register_buffer("steps", (wide / self.unit).round(), persistent=False)
        longest = float(self.steps.abs().sum(0).max())
        self.grid = 2.0 ** (EXACT - 1 - _exponent(longest * limit))

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows (n, p) times the directions, in doubles."""
        if _rounded(rows):
            return rows @ (self.steps * self.unit).to(rows)
        integers = rows.double().clamp_(-self.limit, self.limit).mul_(self.grid).round_()
        product: Tensor = (integers @ self.steps).mul_(self.unit / self.grid)
        return product


def exact_unit_norm(z: Tensor, floor: float = 1e-6) -> Tensor:
    """Scale rows to L2 norm 1, as `unit_norm` does, with exact sums of squares: float32."""
    if _rounded(z):
        unit: Tensor = z / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min(floor)
        return unit.float()
    wide = z.double()
    largest = wide.abs().amax(1, keepdim=True).clamp_min(2.0**-200)
    power = largest / torch.frexp(largest).mantissa  # a power of two, next above the largest entry
    bits = (EXACT - 1 - math.ceil(math.log2(max(z.shape[1], 2)))) // 2
    integers = (wide / power).mul_(2.0**bits).round_()
    norm = integers.square_().sum(1, keepdim=True).sqrt_() * (power / 2.0**bits)
    return (wide / norm.clamp_min(floor)).float()


def _rounded(x: Tensor) -> bool:
    """Whether to use ordinary arithmetic: for gradients, which rounding has not, and for ONNX export."""
    return x.requires_grad or torch.onnx.is_in_onnx_export()


def _exponent(value: float) -> int:
    """Return the least e with |value| < 2^e."""
    return math.frexp(value)[1]


# ---- Directions, with one order of additions ----
#
# An entry of the product is the sum over p of x_p w_pk, each term fused, from the first to the last. Blocks
# only say which entries are computed next to each other.


def _tile(
    x: Floats, a: int, p: int, panels: Floats, w: int, depth: int, out: Floats, o: int, width: int
) -> None:
    """Add the products of `TILE` rows with a panel, over `depth` entries, to what was added before."""
    s0, t0, s1, t1 = load(out, o), load(out, o + LANES), load(out, o + width), load(out, o + width + LANES)
    o2, o4 = o + 2 * width, o + 4 * width
    s2, t2, s3, t3 = (
        load(out, o2),
        load(out, o2 + LANES),
        load(out, o2 + width),
        load(out, o2 + width + LANES),
    )
    s4, t4, s5, t5 = (
        load(out, o4),
        load(out, o4 + LANES),
        load(out, o4 + width),
        load(out, o4 + width + LANES),
    )
    for i in range(depth):
        u, v = load(panels, w + i * PANEL), load(panels, w + i * PANEL + LANES)
        c = every(x[a + i])
        s0, t0 = fused(c, u, s0), fused(c, v, t0)
        c = every(x[a + p + i])
        s1, t1 = fused(c, u, s1), fused(c, v, t1)
        c = every(x[a + 2 * p + i])
        s2, t2 = fused(c, u, s2), fused(c, v, t2)
        c = every(x[a + 3 * p + i])
        s3, t3 = fused(c, u, s3), fused(c, v, t3)
        c = every(x[a + 4 * p + i])
        s4, t4 = fused(c, u, s4), fused(c, v, t4)
        c = every(x[a + 5 * p + i])
        s5, t5 = fused(c, u, s5), fused(c, v, t5)
    _both(out, o, s0, t0)
    _both(out, o + width, s1, t1)
    _both(out, o2, s2, t2)
    _both(out, o2 + width, s3, t3)
    _both(out, o4, s4, t4)
    _both(out, o4 + width, s5, t5)


def _both(out: Floats, o: int, s: Lanes, t: Lanes) -> None:
    store(out, o, s)
    store(out, o + LANES, t)


def _multiply(x: Floats, p: int, panels: Floats, out: Floats, width: int) -> None:
    """Write rows (n, p) times directions to (n, width), all flat; n is a multiple of `TILE`.

    `panels` are (width / PANEL, p, PANEL).
    """
    rows, size = len(x) // p, len(out)
    left, right, sums = numbers(x), numbers(panels), numbers(out)
    for place in range(0, size, LANES):
        store(sums, place, every(np.float32(0.0)))
    for start in range(0, p, DEPTH):
        depth = min(DEPTH, p - start)
        for k in range(0, width, PANEL):
            for row in range(0, rows, TILE):
                a, w, o = row * p + start, k * p + start * PANEL, row * width + k
                _tile(left, a, p, right, w, depth, sums, o, width)


multiply = Compiled(_multiply)


class Directions(nn.Module):
    """Product of rows (n, p) with fixed directions (p, k): (n, k).

    Parameters
    ----------
    directions : (p, k).
    """

    weights: Tensor

    def __init__(self, directions: Tensor) -> None:
        super().__init__()
        # Not in the fingerprint: it is derived from what is.
        self.register_buffer("weights", directions.float().contiguous(), persistent=False)
        p, k = directions.shape
        padded = np.zeros((p, -(-k // PANEL) * PANEL), np.float32)
        padded[:, :k] = self.weights.numpy()
        self.panels = np.ascontiguousarray(padded.reshape(p, -1, PANEL).transpose(1, 0, 2)).reshape(-1)

    def forward(self, rows: Tensor, width: int | None = None) -> Tensor:
        """Return rows (n, p) times the first `width` directions; all of them if None."""
        return self.of(rows, lambda block: block, lambda block: block, width)

    def of(
        self,
        x: Tensor,
        compiled: Callable[[Floats], Floats],
        batched: Callable[[Tensor], Tensor],
        width: int | None = None,
    ) -> Tensor:
        """Map records to rows, and return the rows times directions: (n, width).

        Parameters
        ----------
        x : records.
        compiled, batched : both forms of the map to rows (n, p), as `map_records` takes them.
        width : how many directions; all of them if None.
        """
        p, most = self.weights.shape
        kept = most if width is None else width
        wide = -(-kept // PANEL) * PANEL

        def work(block: Floats) -> Floats:
            # Few records at a time: what they are mapped to is still in a core's cache when it is copied.
            rows = np.zeros((-(-len(block) // TILE) * TILE, p), np.float32)
            for start in range(0, len(block), FEW):
                rows[start : min(start + FEW, len(block))] = compiled(block[start : start + FEW])
            out = np.empty((len(rows), wide), np.float32)
            multiply(rows.reshape(-1), p, self.panels, out.reshape(-1), wide)
            return out[: len(block), :kept]

        share = -(-len(x) // torch.get_num_threads())
        return map_records(
            x, (kept,), work, lambda block: batched(block) @ self.weights[:, :kept], min(ROWS, max(share, 1))
        )


# ---- Resizing: products with a matrix on both sides ----


def _resizing(size: int, to: int, mode: str) -> Tensor:
    """Matrix of resizing along one side, with antialiasing: (to, size)."""
    lines = torch.eye(size).reshape(size, 1, size, 1).expand(-1, -1, -1, size)  # images that vary downwards
    resized = functional.interpolate(lines, (to, to), mode=mode, antialias=True)
    return (resized[:, 0, :, 0].T.double() * GRID).round().div(GRID).float().contiguous()


class Resized(nn.Module):
    """Images (n, ..., H, W) of another size, cut to [0, 1] and framed: (n, ..., side, side).

    Parameters
    ----------
    shape : H and W.
    inner : side that images are resized to.
    mode : of the interpolation.
    margin : pixels of zeros on every side; `side` is `inner` and twice the margin.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, shape: tuple[int, int], inner: int, mode: str, margin: int = 0) -> None:
        super().__init__()
        self.inner, self.margin = inner, margin
        self.register_buffer("rows", _resizing(shape[0], inner, mode), persistent=False)
        self.register_buffer("columns", _resizing(shape[1], inner, mode), persistent=False)

    def compiled(self, images: Floats) -> Floats:
        """Resize images, one by one."""
        resized = np.clip(both_sides(images, self.rows.numpy(), self.columns.numpy()), 0, 1)
        return np.pad(resized, [(0, 0)] * (images.ndim - 2) + [(self.margin,) * 2] * 2)

    def forward(self, x: Tensor) -> Tensor:
        """Resize images by PyTorch."""
        return functional.pad((self.rows @ x @ self.columns.T).clamp(0, 1), [self.margin] * 4)


def both_sides(maps: Floats, rows: Floats, columns: Floats) -> Floats:
    """Products rows @ map @ columns' of maps (..., H, W), with weights (a, H) and (b, W): (..., a, b)."""
    height, width = maps.shape[-2:]
    wide = -(-len(columns) // LANES) * LANES
    across = np.zeros((width, wide), np.float32)
    across[:, : len(columns)] = columns.T
    out = np.empty((*maps.shape[:-2], len(rows), wide), np.float32)
    spare = np.empty(height * wide, np.float32)
    flat = np.ascontiguousarray(maps).reshape(-1)
    multiply_both(
        flat,
        np.ascontiguousarray(rows).reshape(-1),
        across.reshape(-1),
        height,
        width,
        out.reshape(-1),
        spare,
    )
    return out[..., : len(columns)]


def _multiply_both(
    maps: Floats, rows: Floats, columns: Floats, height: int, width: int, out: Floats, spare: Floats
) -> None:
    """Write products on both sides, one map after the other: along rows, LANES columns at a time, then down.

    Parameters
    ----------
    maps, out : (n, H, W) and (n, a, b), flat; b is a multiple of LANES.
    rows, columns : (a, H) and (W, b) weights, flat.
    height, width : H and W.
    spare : (H, b) to work on.
    """
    tall, wide = len(rows) // height, len(columns) // width
    count = len(maps) // (height * width)
    across, down, line_sums, written = numbers(columns), numbers(rows), numbers(spare), numbers(out)
    for n in range(count):
        for y in range(height):
            line = (n * height + y) * width
            for x in range(0, wide, LANES):
                total = every(np.float32(0.0))
                for i in range(width):
                    total = fused(every(maps[line + i]), load(across, i * wide + x), total)
                store(line_sums, y * wide + x, total)
        for a in range(tall):
            for x in range(0, wide, LANES):
                total = every(np.float32(0.0))
                for i in range(height):
                    total = fused(every(down[a * height + i]), load(line_sums, i * wide + x), total)
                store(written, (n * tall + a) * wide + x, total)


multiply_both = Compiled(_multiply_both)
