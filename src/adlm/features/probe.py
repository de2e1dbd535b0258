"""Test a map on random records: its output for a record must not depend on other records.

The proof takes the features of a record, and its relevances, to be a function of that record alone. A
user-supplied map is called on random records one by one, in a batch, in another order and again. This finds
batch statistics and changing state. It cannot find dependence that shows only on some records (experts with a
capacity that random records do not exceed), only in larger batches than the one tried, or only after more
calls. So a user-supplied feature map (`engine.records`) and a relevance network (`paper.relevance`) are
given one record at a time, and of their batches nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PROBES = 8


def coupling(
    forward: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    *,
    device: torch.device | str = "cpu",
    rtol: float = 1e-3,
    atol: float = 1e-4,
) -> str | None:
    """Return what else than the record a map's output for it depends on, or None if nothing was found.

    Parameters
    ----------
    forward : takes (n, *shape) in [0, 1]; whatever it raises is raised.
    rtol, atol : tolerances for rounding between two outputs.
    """
    noise = torch.rand(PROBES, *shape, generator=torch.Generator().manual_seed(0))
    noise[0], noise[1] = 0.0, 1.0  # extremes, which move a statistic of a batch most
    noise[3] *= 0.01
    noise = noise.to(device)
    order = torch.randperm(PROBES, generator=torch.Generator().manual_seed(1)).to(device)

    def same(one: Tensor, two: Tensor) -> bool:
        return torch.allclose(one.double(), two.double(), rtol=rtol, atol=atol, equal_nan=True)

    with torch.no_grad():
        alone = torch.cat([forward(noise[i : i + 1]) for i in range(PROBES)])
        together = forward(noise)
        if not same(alone, together):
            return "the other records of its batch"
        if not same(together[order], forward(noise[order])):
            return "its place in the batch"
        if not same(together, forward(noise)):
            return "what the map was asked before"
    return None
