"""Calibration of noise to a plan and a budget, shared by all mechanisms.

Every kind of release goes `plan -> calibrate() -> Calibration(scales, charges) -> release()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from adlm.privacy.accounting import Charge, Mechanism, compose, gaussian_mu
from adlm.privacy.budget import Budget
from adlm.privacy.certificate import LEARNT_BOUNDS
from adlm.public.domain import Domain
from adlm.runtime.roots import root_down

Scales = TypeVar("Scales")


class Calibration(NamedTuple, Generic[Scales]):
    """Noise for every stage of a release.

    Attributes
    ----------
    scales : integer noise scales, in grid steps.
    charges : what they cost, in the order in which the stages are made.
    """

    scales: Scales
    charges: tuple[Charge, ...]

    def for_domain(self, domain: Domain) -> Calibration[Scales]:
        """Return it for a domain: nothing is proved where the bounds were learnt from the records."""
        if not domain.bounds_learnt_from_data:
            return self
        return Calibration(self.scales, tuple(replace(c, unproved=LEARNT_BOUNDS) for c in self.charges))


class Stage(NamedTuple):
    """One stage of a release: its content, sensitivity, noise and proof."""

    what: str
    sensitivity: Fraction
    scale: int
    proof: str


@dataclass
class Spending:
    """A budget that is spent share by share; all charges are made together, when every share is spent.

    Parameters
    ----------
    mechanism : the noise of every stage.
    neighbours : the relation of the charges.
    loss : privacy loss that the budget allows one record: mu for Gaussian noise, where mu^2 adds up, or
        epsilon for pure noise, which adds up.
    contributions : records that one person may have.
    delta : of the charges; 0 for pure noise.
    """

    mechanism: Mechanism
    neighbours: str
    loss: Fraction
    contributions: int = 1
    delta: Fraction = Fraction(0)
    stages: list[Stage] = field(default_factory=list)

    def scale(self, what: str, sensitivity: Fraction, share: Fraction, proof: str) -> int:
        """Return the smallest integer noise scale for a share of the budget, and record the stage.

        Parameters
        ----------
        what : what is released.
        sensitivity : to one record, in grid steps.
        share : of the budget.
        proof : page and theorem.
        """
        part = root_down(share) if self.mechanism == "gaussian" else share
        steps = math.ceil(sensitivity / (self.loss * part))
        self.stages.append(Stage(what, sensitivity * self.contributions, steps, proof))
        return steps

    def calibration(self, scales: Scales) -> Calibration[Scales]:
        """Return the scales of all stages with their charges."""
        charges = (
            Charge(
                what,
                self.mechanism,
                self.neighbours,
                moved,
                Fraction(steps),
                proof,
                self.delta,
                contributions=self.contributions,
            )
            for what, moved, steps, proof in self.stages
        )
        return Calibration(scales, tuple(charges))


def within_budget(
    calibrated: Callable[[Fraction], Calibration[Scales]], budget: Budget, contributions: int = 1
) -> Calibration[Scales]:
    """Return the calibration of the largest loss whose charges compose to at most the budget.

    Parameters
    ----------
    calibrated : returns scales and charges for the loss of one record: mu for Gaussian noise, epsilon for
        pure noise.
    budget : epsilon and delta; delta 0 gives pure noise.
    contributions : records that one person may have.
    """
    if not budget.delta:
        return calibrated(budget.epsilon / contributions)
    mu = gaussian_mu(budget.epsilon, budget.delta) / contributions
    while True:  # once, unless the charge is rounded up by more than mu was rounded down
        calibration = calibrated(mu)
        if compose(calibration.charges).epsilon_proved <= budget.epsilon:
            return calibration
        mu *= Fraction(999_999, 1_000_000)


@dataclass(frozen=True)
class Upstream:
    """Inputs that a release inherits from earlier steps.

    Attributes
    ----------
    settings : public facts for the certificate, such as the plan and its reasons.
    stamps, unproved : of the inputs: warnings, and why no epsilon is proved.
    charges : of private inputs to the settings, such as private relevances; in the ledger already.
    tensors : go into the release besides its own; private already, or public.
    charged : the release's own charges are in the ledger already, because a first stage has been made.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    stamps: tuple[str, ...] = ()
    unproved: str = ""
    charges: tuple[Charge, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    charged: bool = False


NOTHING_BEFORE = Upstream()


def off_diagonal(diagonal: int) -> int:
    """Return the smallest integer scale that is at least the diagonal's over sqrt(2)."""
    return math.isqrt((diagonal * diagonal - 1) // 2) + 1
