"""Does a record's feature vector depend on that record alone? To the last bit, under either relation.

The proofs of a release assume that the other records' integers are the same in neighbouring data sets.
A feature map computes batches in floating point. A batched kernel may round a record differently in a batch
of another size, at another position, or with another number of threads; no charge covers such changes. So one
record is removed or replaced and all others are compared. The map is also run on the same records in batches
of several sizes, alone, shuffled and with several threads, where every bit must agree. A user-supplied map
is stood for by one that lets records meet in a batch on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor, nn

from adlm.audit.statistics import Finding
from adlm.domain import NEIGHBOURS, Domain
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.engine.records import featurise
from adlm.features import Backbone, Features, Narrowed, RandomDirections, for_domain
from adlm.features.base import Identity, PairProducts
from adlm.features.drawn import PriorProjection
from adlm.features.photographs import NaturalImages
from adlm.features.tables import CentredTable, IndicatorTable, ScaledTable, TableIndicators
from adlm.privacy.clipping import Clip

SIZES = (7, 33)  # of batches; neither divides a block
THREADS = (1, 3)
ALONE = 3  # records that are mapped alone


def moved(features: Features, domain: Domain, *, n: int = 40, seed: int = 0) -> float:
    """Return the total change of all other records, as a share of one record's sensitivity.

    Random records; the first is replaced, or removed. Measured on the grid that class sums use, in L1.

    Parameters
    ----------
    features, domain : the map, and the domain of its records.
    n : random records.
    seed : of the records.
    """
    x = np.random.default_rng(seed).random((n, *domain.shape))
    together = featurise(_spread(x, domain), domain, features)
    if domain.neighbours == "add-remove":
        other = featurise(_spread(x[1:], domain), domain, features)
    else:
        changed = x.copy()
        changed[0] = 0.0
        other = featurise(_spread(changed, domain), domain, features)[1:]
    clip = Clip("l1", (1.0,) * features.width, math.sqrt(features.width))
    distance = np.abs(clip.integers(together[1:]) - clip.integers(other)).sum()
    return float(distance / clip.record_norm_bound)


def _spread(
    x: np.ndarray[tuple[int, ...], np.dtype[np.float64]], domain: Domain
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Scale values in [0, 1] to the bounds of the domain."""
    lower, upper = (
        np.broadcast_to(np.asarray(bound, dtype=np.float64), (domain.size,)).reshape(domain.shape)
        for bound in (domain.lower, domain.upper)
    )
    return np.asarray(lower + x * (upper - lower))


def separability(features: Features, domain: Domain, name: str) -> Finding:
    """Report whether other records stay the same, as an attack on a release of epsilon 1."""
    share = moved(features, domain)
    note = f"40 other records move by {share:.3g} of a record together"
    return _exact(name, domain.neighbours, share, note)


def _exact(name: str, neighbours: str, changed: float, note: str) -> Finding:
    """Return the finding of an exact comparison: any change at all refutes a release of epsilon 1."""
    return Finding(
        attack="separability",
        mechanism=name,
        neighbours=neighbours,
        claimed=Fraction(1),
        proved=Fraction(1),
        lower=1.0 + changed if changed else 0.0,
        confidence=1.0,
        runs=1,
        note=note,
    )


def regrouped(features: Features, x: Tensor) -> list[int]:
    """Return the records (n, *shape) in [0, 1] whose features change with batch, position or threads."""
    own, n = torch.get_num_threads(), len(x)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    back = order.argsort()
    changed = torch.zeros(n, dtype=torch.bool)
    with torch.inference_mode():
        together = features(x).clone()
        try:
            for threads in THREADS:
                torch.set_num_threads(threads)
                mapped = [features(x), features(x[order])[back], features(x.flip(0)).flip(0)]
                mapped += [torch.cat([features(part) for part in torch.split(x, size)]) for size in SIZES]
                for other in mapped:
                    changed |= (other != together).any(1)
        finally:
            torch.set_num_threads(own)
        few = range(0, n, max(n // ALONE, 1))  # a record alone costs a whole block
        for i in few:
            changed[i] |= bool((features(x[i : i + 1]) != together[i : i + 1]).any())
    return [int(i) for i in changed.nonzero().flatten()]


def batch_separability(features: Features, x: Tensor, neighbours: str, name: str) -> Finding:
    """Report whether batch size, position and threads change a record, and how many they change.

    Parameters
    ----------
    features : the map.
    x : (n, *shape) scaled records.
    neighbours : the relation that is reported.
    name : of the finding.
    """
    changed = regrouped(features, x)
    note = (
        f"{len(changed)} of {len(x)} records change in batches of {', '.join(map(str, SIZES))}, alone, "
        f"shuffled or with {', '.join(map(str, THREADS))} threads"
    )
    return _exact(name, neighbours, len(changed), note)


def trial_records(n: int, shape: tuple[int, ...]) -> Tensor:
    """Draw random records in [0, 1], the first ones all 0, all 1 and nearly constant: (n, *shape)."""
    x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))
    x[0], x[1] = 0.0, 1.0
    x[2] = 0.5 + 0.01 * (x[2] - 0.5)
    return x


class BatchMean(nn.Module):
    """An encoder that subtracts the mean of its batch, as a user's could."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, d) to (n, d)."""
        return x if len(x) == 1 else x - x.mean(0)


def _tables() -> dict[str, Features]:
    """Features of tables: indicators alone, scaled by released counts, and around a released centre."""
    columns = (
        Column("age", "numeric", 0, 1),
        Column("pay", "numeric", 0, 1, missing="category"),
        Column("town", "categorical", values=tuple("abc")),
    )
    table = TableDomain((*columns, Column("y", "label", classes=("no", "yes"))))
    rng = np.random.default_rng(0)
    even = [1 / len(b.entries) for b in TableIndicators(table).blocks for _ in b.entries]
    return {
        "indicators": IndicatorTable(table),
        "scaled": ScaledTable(table, even, fourier=50, mixing=rng.normal(size=(2, 2))),
        "centred": CentredTable(table, rng.random(table.domain.size), 0.7, 50),
    }


# Every kind of features: how it is made, the shape of a record, and how many records are tried.
MAPS: dict[str, tuple[Callable[[], Features], tuple[int, ...], int]] = {
    "drawn images": (lambda: PriorProjection("drawn"), (28, 28), 40),
    "small drawn images": (lambda: PriorProjection("drawn", (8, 8)), (8, 8), 40),
    "garments": (lambda: PriorProjection("garments"), (28, 28), 40),
    "narrowed images": (lambda: Narrowed(PriorProjection("drawn"), 40), (28, 28), 40),
    "random directions": (lambda: RandomDirections(Identity((28, 28)), 100), (28, 28), 300),
    "photographs": (lambda: NaturalImages(width=100), (3, 32, 32), 35),
    "products of photographs": (lambda: PairProducts(NaturalImages(width=100), 20), (3, 32, 32), 35),
    "larger photographs": (lambda: NaturalImages((3, 70, 66)), (3, 70, 66), 35),
    "indicators of a table": (lambda: _tables()["indicators"], (6,), 300),
    "scaled table": (lambda: _tables()["scaled"], (6,), 300),
    "centred table": (lambda: _tables()["centred"], (6,), 300),
}


def product_separability(maps: Iterable[str] = tuple(MAPS)) -> list[Finding]:
    """Check every kind of public features: other records, batches, positions and threads."""
    findings = []
    for relation in NEIGHBOURS:
        row = Domain((7,), 0.0, 1.0, ("a", "b"), relation)
        image = Domain((28, 28), 0.0, 1.0, ("a", "b"), relation, family="drawn")
        findings.append(separability(Identity((7,)), row, "features: identity"))
        encoder = Backbone(BatchMean(), (7,), provenance="public")
        findings.append(separability(encoder, row, "features: user-supplied encoder"))
        findings.append(separability(for_domain(image), image, "features: drawn images"))
    for name in maps:
        made, shape, n = MAPS[name]
        findings.append(
            batch_separability(made(), trial_records(n, shape), "add-remove", f"features in batches: {name}")
        )
    return findings
