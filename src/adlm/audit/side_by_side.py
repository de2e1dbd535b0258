"""Many runs in each release: one-dimensional worst cases, through the whole pipeline.

A release of class sums puts independent noise on each class, and a class's number depends on its own records
alone. So one release of records of many classes is as many runs of the mechanism on one class, side by side:
every step of the product is taken (clipping, sums, charge, noise, units), and nothing is done twice.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from adlm.audit.finding import ALPHA, Finding
from adlm.audit.subject import Reals, Records, release_vectors
from adlm.audit.two_worlds import judge
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.noise import Source
from adlm.privacy.accounting import Charge
from adlm.public.domain import Domain

CLASSES = 500  # runs in one release; its time grows with their square
BYSTANDER = 0.25  # a record in each class that is the same in both worlds


def released(
    design: MomentConfig, neighbours: str, runs: int, record: float | None, source: Source
) -> tuple[Reals, tuple[Charge, ...]]:
    """Return (runs,) released sums of as many classes, and the charges of each release.

    Parameters
    ----------
    record : the value of the record besides the bystander in every class; None for no such record.
    """
    classes = min(runs, CLASSES)
    domain = Domain((1,), -1.0, 1.0, tuple(map(str, range(classes))), neighbours)
    codes = np.arange(classes)
    values = np.full((classes, 1), BYSTANDER)
    if record is not None:
        values, codes = np.vstack([values, np.full((classes, 1), record)]), np.concatenate([codes, codes])
    sums: list[Reals] = []
    charges: tuple[Charge, ...] = ()
    for _ in range(-(-runs // classes)):
        release = release_vectors(Records(values, codes), domain, design, Ledger(), source)
        charges = release.certificate.charges
        sums.append(release.moments().sums[:, 0].numpy())
    return np.concatenate(sums)[:runs], charges


def side_by_side(
    epsilon: Fraction, delta: Fraction, neighbours: str, runs: int, source: Source, *, alpha: float = ALPHA
) -> Finding:
    """Distinguish two neighbours by the released sum of one class: a record at one end of its bound, or not.

    The released number is the score. The noise has a monotone likelihood ratio in one dimension, so this
    test is optimal.

    Parameters
    ----------
    epsilon, delta : the budget.
    neighbours : the relation.
    runs : of each world.
    source : of the noise.
    alpha : level of the test.
    """
    design = MomentConfig(epsilon, delta, 1, 1.0, constant=0.0)
    with_record, charges = released(design, neighbours, runs, 1.0, source)
    opposite = None if neighbours == "add-remove" else -1.0
    without, _ = released(design, neighbours, runs, opposite, source)
    name = f"one class sum, {'Gaussian' if delta else 'Laplace'}, from the released numbers"
    rung = "two worlds, whole release"
    return judge(name, neighbours, charges, (with_record, without), rung=rung, alpha=alpha)
