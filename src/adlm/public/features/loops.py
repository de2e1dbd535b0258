"""The innermost loops of a table's features, to be compiled (`runtime.compiled`): the same bits as PyTorch's.

Their twins, which small data sets, exports and accelerators use: `cosine`, `table_indicators.indicators` and
`ScaledTable.forward`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adlm.runtime.compiled import Compiled

Reals = npt.NDArray[np.float64]
SINE = tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(9, -1, -1))  # of x^19 to x
HALF_PI = (1.5707963267341256, 6.077100506506192e-11)  # high part, whose small multiples are exact, and low


def _waves(angles: Reals, factor: float, phases: Reals) -> None:
    """Replace (n, k) angles by the cosines of angle x factor + phase."""
    for row in range(len(angles)):
        wave = angles[row]
        for j in range(len(phases)):
            angle = wave[j] * factor + phases[j]
            quarter = np.rint(angle * (2 / np.pi))
            inner = (angle - quarter * HALF_PI[0]) - quarter * HALF_PI[1]
            turn = quarter + 1.0
            turn -= np.floor(turn * 0.25) * 4.0
            back = np.floor(turn * 0.5)
            odd = turn - back * 2.0
            inner = (np.pi / 2 - abs(inner)) * odd + inner * (1.0 - odd)
            square = inner * inner
            value = (square * SINE[0] + SINE[1]) * square  # written out, so that the loop is vectorised
            value = (value + SINE[2]) * square
            value = (value + SINE[3]) * square
            value = (value + SINE[4]) * square
            value = (value + SINE[5]) * square
            value = (value + SINE[6]) * square
            value = (value + SINE[7]) * square
            value = (value + SINE[8]) * square
            value = (value + SINE[9]) * inner
            wave[j] = value * (back * -2.0 + 1.0)


def _hats(places: Reals, knots: Reals, out: Reals) -> None:
    """Write the memberships of (n, c) places in the c m piecewise-linear bins of m knots: (n, c m)."""
    width = len(knots)
    for row in range(len(places)):
        for column in range(places.shape[1]):
            place, bins = places[row, column], out[row, column * width : (column + 1) * width]
            below = 1.0  # cumulative membership of the bins from this one on
            for j in range(width - 1):
                above = min(max((place - knots[j]) / (knots[j + 1] - knots[j]), 0.0), 1.0)
                bins[j] = below - above
                below = above
            bins[width - 1] = below


def _table_rows(
    values: Reals,
    counted: Reals,
    waves: Reals,
    centre: Reals,
    scales: tuple[float, Reals, float],
    unit: float,
    out: npt.NDArray[np.float32],
) -> None:
    """Write rows of scaled values, centred indicators and waves, of length 1, on a grid of 1 / `unit`.

    Parameters
    ----------
    values, counted, waves : (n, d) values, (n, e) indicators and (n, f) cosines.
    centre : (e,) what to subtract from each indicator.
    scales : what to multiply values, each indicator, and cosines by.
    unit : grid steps in one.
    out : (n, d + e + f).
    """
    d, e, f = values.shape[1], counted.shape[1], waves.shape[1]
    value_scale, scale, wave_scale = scales
    row = np.empty(d + e + f)
    for i in range(len(out)):
        for j in range(d):
            row[j] = np.rint(values[i, j] * value_scale)
        for j in range(e):
            row[d + j] = np.rint((counted[i, j] - centre[j]) * scale[j])
        for j in range(f):
            row[d + e + j] = np.rint(waves[i, j] * wave_scale)
        square = np.int64(0)
        for j in range(len(row)):
            square += np.int64(row[j]) * np.int64(row[j])  # exact, like a sum of doubles below 2^53
        length, target = max(np.sqrt(float(square)), 1.0) * (1 / unit), out[i]
        for j in range(len(row)):
            target[j] = np.float32(np.trunc(row[j] / length)) * np.float32(1 / unit)


def plain(x: Tensor) -> bool:
    """Whether a tensor is one that compiled loops can read: on a processor, without graph or gradient."""
    exported = torch.onnx.is_in_onnx_export()
    return type(x) is Tensor and x.device.type == "cpu" and not x.requires_grad and not exported


hats = Compiled(_hats)
table_rows = Compiled(_table_rows)
waves = Compiled(_waves)
