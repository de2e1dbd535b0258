"""Controls that are wrong outside the mechanism: in its input, or in a number published besides its output.

The mechanism of each is the product's own and is sound. What is wrong is how records reach it, or a
number that is released with its output. Each must be reported as violated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from torch import Tensor

from adlm.audit.controls import Control, _attacked, _finding
from adlm.audit.finding import Finding
from adlm.audit.separability import batch_separability, trial_images
from adlm.audit.subject import Records, Subject, release_vectors
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.noise import Source
from adlm.privacy.accounting import Charge
from adlm.public.domain import Domain
from adlm.public.features.identity import Identity

Reals = npt.NDArray[np.float64]
LIMIT, N = 50, 60


def _subject(name: str, neighbours: str, reads: Callable[[Records], Records]) -> Subject:
    """A release of one class sum at epsilon 2, of the records as `reads` returns them."""
    domain = Domain((1,), 0.0, 1.0, ("a", "b"), neighbours)
    design = MomentConfig(Fraction(2), Fraction(0), 1, 1.0)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        return release_vectors(reads(data), domain, design, ledger, source).certificate.charges

    return Subject(name, neighbours, run, (0,), 1)


def shifting_window(runs: int, source: Source) -> Finding:
    """The first records of a file under add-remove: if one is removed, another one enters."""
    subject = _subject(
        "first records under add-remove",
        "add-remove",
        lambda data: Records(data.values[:LIMIT], data.codes[:LIMIT]),
    )
    values, codes = np.ones((N, 1)), np.arange(N) // LIMIT  # the record that enters is of the other class
    everybody, one_less = Records(values, codes), Records(values[1:], codes[1:])
    return _attacked(subject, everybody, one_less, max(runs, 20_000), source)


def batch_maximum(runs: int, source: Source) -> Finding:
    """Features divided by the largest value of their batch: one outlier changes all others."""
    subject = _subject(
        "features divided by their batch's maximum",
        "replace-one",
        lambda data: Records(data.values / data.values.max(), data.codes),
    )
    values, codes = np.full((N, 1), 0.01), np.zeros(N, dtype=np.int64)
    outlier = values.copy()
    outlier[-1] = 1.0
    return _attacked(subject, Records(values, codes), Records(outlier, codes), runs, source)


def exact_number(runs: int, source: Source) -> Finding:
    """The exact number of records where a person may have several: replacing a person changes it."""
    del source  # there is no noise on it
    worlds = np.full(runs, float(N)), np.full(runs, float(N - 1))
    return _finding("exact n, several records a person", Fraction(1), worlds, "n is released without noise")


def seeded_input(runs: int, source: Source) -> Finding:
    """A network of a seeded release passed on as private: whoever knows the seed can remove the noise."""
    del source  # it is the seed that is wrong
    scale, moved = Fraction(1 << 20), 1 << 20

    def noise() -> Reals:
        return np.asarray(Source.seeded_with(7).laplace(runs, scale), dtype=np.float64)

    worlds = moved + noise() - noise(), noise() - noise()
    return _finding(
        "relevance network of a seeded release", Fraction(1), worlds, "the seed's noise is subtracted"
    )


class BatchRounded(Identity):
    """Features divided by the number of records and multiplied by it again: only the last bits change."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / len(x) * len(x)


def batch_rounding(runs: int, source: Source) -> Finding:
    """Features whose last bits depend on the size of their batch."""
    del runs, source  # the features of every record are compared, bit by bit
    name = "features rounded by the size of their batch"
    finding = batch_separability(BatchRounded((20,)), trial_images(70, (20,)), "add-remove", name)
    return replace(finding, control=True)


INPUTS: tuple[Control, ...] = (shifting_window, batch_maximum, batch_rounding, exact_number, seeded_input)
