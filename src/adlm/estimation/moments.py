"""Released moments: class sums, counts and second moments, with the scale of their noise.

A moment release stores integers and the size of a grid step per coordinate; `Moments` holds the same in
real numbers, for the analyst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adlm.privacy.triangle import symmetric


@dataclass(frozen=True)
class Moments:
    """Noisy sums over the records, and the standard deviation of the noise on each.

    Attributes
    ----------
    sums : (M, k) class sums of the feature vectors z.
    counts : (M,) class counts.
    sd_sums : (k,) standard deviation of the noise on each column of `sums`.
    sd_counts : standard deviation of the noise on each count.
    n : number of records: public under replace-one, the sum of noisy counts under add-remove.
    second : (q, q) sum of z z' over all records, in the coordinates `basis`; None when not released.
    sd_second : (q, q) standard deviation of the noise on each entry.
    basis : (k, q) orthonormal columns: second moments are those of z @ basis. None means the first q
        coordinates.
    centres : (M, k) what was subtracted from z for the second moments, by class; None: nothing.
    cross : (k - q, p) sum of products of z @ outside with the first p coordinates of z @ basis, or None.
    sd_cross : standard deviation of the noise on each of its entries.
    outside : (k, k - q) orthonormal columns, orthogonal to the basis.
    """

    sums: Tensor
    counts: Tensor
    sd_sums: Tensor
    sd_counts: float
    n: float
    second: Tensor | None = None
    sd_second: Tensor | None = None
    basis: Tensor | None = None
    centres: Tensor | None = None
    cross: Tensor | None = None
    sd_cross: float = 0.0
    outside: Tensor | None = None

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Moments:
        """Turn released integers into real numbers: integer times grid step."""
        step = tensors["step"].double()
        table = tensors["class_sums"].double()
        counts = table[:, 0] * step[0]
        sd = float(settings["sd_sums"])
        n = float(settings["n"]) if settings["n"] is not None else float(counts.sum())
        second = sd_second = None
        if "second" in tensors:
            fine = tensors["step_second"].double()
            grid = torch.outer(fine, fine)
            second = torch.from_numpy(symmetric(tensors["second"].numpy())) * grid
            sd_second = torch.full_like(grid, float(settings["sd_second"]))
            sd_second.fill_diagonal_(float(settings["sd_second_diagonal"]))
            sd_second = sd_second * grid
        return cls(
            sums=table[:, 1:] * step[1:],
            counts=counts,
            sd_sums=sd * step[1:],
            sd_counts=sd * float(step[0]),
            n=n,
            second=second,
            sd_second=sd_second,
            basis=tensors["basis"].double() if "basis" in tensors else None,
            centres=tensors["centres"].double() if "centres" in tensors else None,
            cross=tensors["cross"].double() * tensors["step_cross"] if "cross" in tensors else None,
            sd_cross=float(settings["sd_cross"] * tensors["step_cross"]) if "cross" in tensors else 0.0,
            outside=tensors["outside"].double() if "cross" in tensors else None,
        )
