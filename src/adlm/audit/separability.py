"""Does a record's feature vector depend on that record alone? To the last bit, under either relation.

The proof of a moment release takes the other records' integers to be the same in neighbouring data sets. A
feature map computes batches in floating point, and a batched kernel may round a record differently at
another place of its batch. Under replace-one nobody changes place. Under add-remove everybody after the
record that was taken out does, and what moves then is not charged for.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch

from adlm.audit.finding import Finding
from adlm.curator.clipping import Clip
from adlm.curator.featurise import featurise
from adlm.public.domain import NEIGHBOURS, Domain
from adlm.public.features import Features


def moved(features: Features, domain: Domain, *, n: int = 40, seed: int = 0) -> float:
    """Return by how much all other records move together, as a share of what one record may move.

    Random records; the first is replaced, or taken out. Measured on the grid that class sums use, in L1.
    """
    x = np.random.default_rng(seed).random((n, *domain.shape))
    whole = featurise(_spread(x, domain), domain, features)
    if domain.neighbours == "add-remove":
        other = featurise(_spread(x[1:], domain), domain, features)
    else:
        changed = x.copy()
        changed[0] = 0.0
        other = featurise(_spread(changed, domain), domain, features)[1:]
    clip = Clip("l1", (1.0,) * features.width, math.sqrt(features.width))
    distance = np.abs(clip.integers(whole[1:]) - clip.integers(other)).sum()
    return float(distance / clip.record_norm_bound)


def _spread(
    x: np.ndarray[tuple[int, ...], np.dtype[np.float64]], domain: Domain
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Put values in [0, 1] between the bounds of the domain."""
    lower, upper = (
        np.broadcast_to(np.asarray(bound, dtype=np.float64), (domain.size,)).reshape(domain.shape)
        for bound in (domain.lower, domain.upper)
    )
    return np.asarray(lower + x * (upper - lower))


def separability(features: Features, domain: Domain, name: str) -> Finding:
    """Report whether other records stay where they are; a release of epsilon 1 is what is at stake."""
    share = moved(features, domain)
    return Finding(
        rung="separability",
        mechanism=name,
        neighbours=domain.neighbours,
        claimed=Fraction(1),
        proved=Fraction(1),
        lower=1 + share if share else 0.0,
        confidence=1.0,
        runs=1,
        note=f"40 other records move by {share:.3g} of a record together",
    )


def product_separability() -> list[Finding]:
    """Check features that are the record itself and features of images, under both relations."""
    from adlm.public.features import for_domain
    from adlm.public.features.identity import Identity

    found = []
    for relation in NEIGHBOURS:
        row = Domain((7,), 0.0, 1.0, ("a", "b"), relation)
        image = Domain((28, 28), 0.0, 1.0, ("a", "b"), relation, family="drawn")
        found.append(separability(Identity((7,)), row, "features: identity"))
        found.append(table_separability(relation))
        found.append(separability(for_domain(image), image, "features: drawn images"))
    return found


def table_separability(neighbours: str) -> Finding:
    """Map a table's records alone, in batches of several sizes and in another order: every bit must agree."""
    from adlm.public.domain.column import Column
    from adlm.public.domain.table import TableDomain
    from adlm.public.features.scaled_table import ScaledTable, TableIndicators

    table = TableDomain(
        (
            Column("age", "numeric", 0, 1),
            Column("pay", "numeric", 0, 1, missing="category"),
            Column("town", "categorical", values=tuple("abc")),
            Column("y", "label", classes=("no", "yes")),
        ),
        neighbours=neighbours,
    )
    blocks = TableIndicators(table).blocks
    rng = np.random.default_rng(0)
    even = [1 / len(b.entries) for b in blocks for _ in b.entries]
    features = ScaledTable(table, even, fourier=50, mixing=rng.normal(size=(2, 2)))
    x = torch.from_numpy(rng.random((301, table.domain.size)).astype(np.float32))
    x[:, 2] = (x[:, 2] > 0.8).float()
    whole = features(x)
    order = torch.from_numpy(rng.permutation(len(x)))
    parts = [torch.cat([features(x[i : i + step]) for i in range(0, len(x), step)]) for step in (1, 7, 64)]
    back = torch.empty_like(whole)
    back[order] = features(x[order])
    moved = max(float((part - whole).abs().sum()) for part in (*parts, back))
    return Finding(
        rung="separability",
        mechanism="features: scaled table",
        neighbours=neighbours,
        claimed=Fraction(1),
        proved=Fraction(1),
        lower=1 + moved if moved else 0.0,
        confidence=1.0,
        runs=1,
        note=f"301 records alone, in batches of 7 and 64 and shuffled move by {moved:.3g}",
    )
