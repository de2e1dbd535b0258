"""The subject of an audit: a function that makes a release of given records, and its description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.mechanisms.moments import release as release_moments
from adlm.curator.noise import Source
from adlm.privacy.accounting import Charge
from adlm.privacy.release import Release
from adlm.public.domain import Domain
from adlm.public.features.identity import Identity

Reals = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """A data set: (n, k) values and (n,) class codes."""

    values: Reals
    codes: Codes

    def plus(self, other: Records) -> Records:
        """These records and then others."""
        return Records(np.vstack([self.values, other.values]), np.concatenate([self.codes, other.codes]))


def release_vectors(
    data: Records, domain: Domain, config: MomentConfig, ledger: Ledger, source: Source
) -> Release:
    """Make a moment release whose feature vectors are the records themselves.

    Parameters
    ----------
    data : (n, k) feature vectors with class codes.
    domain, config : the public settings.
    ledger, source : the ledger to charge, and the noise source.
    """
    return release_moments(
        lambda: [(data.values, data.codes)],
        domain=domain,
        features=Identity((config.k,)),
        config=config,
        ledger=ledger,
        source=source,
    )


Run = Callable[[Records, Ledger, Source], tuple[Charge, ...]]


@dataclass(frozen=True)
class Subject:
    """A mechanism under audit.

    Attributes
    ----------
    name, neighbours : of the mechanism and of the relation it is audited for.
    run : makes the release by the product's own code and returns the charges on its certificate.
    covers : for each draw of noise in order, the index of its charge; None for noise on no record.
    width, classes : of the records.
    focus : the charge that the search for the worst neighbours looks at; None for all together.
    tight : whether some pair of neighbours attains the proved bound.
    box : whether records lie in [0, 1] (raw records) or are unbounded (feature vectors).
    contributions : records in which neighbours differ.
    weaken : factor on every noise scale that the charges do not know of; 1 except for negative controls.
    """

    name: str
    neighbours: str
    run: Run
    covers: tuple[int | None, ...]
    width: int
    classes: int = 2
    focus: int | None = None
    tight: bool = True
    box: bool = False
    contributions: int = 1
    weaken: Fraction = Fraction(1)

    @property
    def label(self) -> str:
        """Name and relation in one line."""
        return f"{self.name}, {self.neighbours}"
