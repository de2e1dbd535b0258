"""One line of an audit: the claimed epsilon, the proved one, and an attack's lower bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from adlm.privacy.accounting import Epsilon, number, show

COMMAND_ALPHA = 1e-3  # false-alarm rate of one whole command on a sound product
MOST_TESTS = 125  # statistical tests that one command makes at most
ALPHA = COMMAND_ALPHA / MOST_TESTS

HOLDS, ABOVE_CLAIM, VIOLATED, CAUGHT, MISSED = "holds", "above claim", "VIOLATED", "violated", "NOT CAUGHT"


@dataclass(frozen=True)
class Point:
    """A point of a ROC curve with its bounds, for the picture."""

    fpr: float
    tpr: float


@dataclass(frozen=True)
class Finding:
    """The result of one attack on one mechanism.

    Attributes
    ----------
    rung : `replay`, `worst case`, `two worlds`, `separability`, `reading`, `support`, `one run`, `control` or
        `artefact`.
    mechanism, neighbours : what was attacked, and under which relation.
    claimed : the epsilon that its authors claim; `proved` the one on the certificate.
    delta : for which both are.
    lower : lower bound on epsilon that the attack proves.
    confidence : probability that `lower` is a lower bound; 1 for an exact argument.
    runs : of the mechanism, or neighbours tried, or guesses made.
    control : whether this is a negative control, which must be violated.
    note : further remarks.
    curve : points of the ROC curve, when the attack has one.
    """

    rung: str
    mechanism: str
    neighbours: str
    claimed: Epsilon
    proved: Epsilon
    lower: float
    confidence: float
    runs: int
    delta: float = 0.0
    control: bool = False
    note: str = ""
    fault: bool = False
    curve: tuple[Point, ...] = ()

    @property
    def verdict(self) -> str:
        """Whether the attack refutes the proof, or the claim, or nothing.

        A control has no proof: it is tested against its claim.
        """
        refuted = self.fault or self.lower > float(self.claimed if self.control else self.proved) + 1e-9
        if self.control:
            return CAUGHT if refuted else MISSED
        if refuted:
            return VIOLATED
        return ABOVE_CLAIM if self.lower > float(self.claimed) + 1e-9 else HOLDS

    @property
    def passed(self) -> bool:
        """Whether the product holds, or the control was caught."""
        return self.verdict in (HOLDS, ABOVE_CLAIM, CAUGHT)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values under stable keys."""
        return {
            "rung": self.rung,
            "mechanism": self.mechanism,
            "neighbours": self.neighbours,
            "epsilon_claimed": number(self.claimed),
            "epsilon_proved": number(self.proved),
            "delta": self.delta,
            "epsilon_lower": self.lower if math.isfinite(self.lower) else None,
            "confidence": self.confidence,
            "runs": self.runs,
            "verdict": self.verdict,
            "control": self.control,
            "note": self.note,
            "curve": [[point.fpr, point.tpr] for point in self.curve],
        }

    def row(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        confidence = "exact" if self.confidence >= 1 else f"{100 * self.confidence:.5g}%"
        lower = "unbounded" if math.isinf(self.lower) else f"{self.lower:.3f}"
        return (
            self.mechanism,
            self.neighbours,
            self.rung,
            show(self.claimed),
            show(self.proved),
            lower,
            confidence,
            f"{self.runs:,}",
            self.verdict,
        )


HEADINGS = (
    "mechanism",
    "relation",
    "attack",
    "claimed",
    "proved",
    "lower bound",
    "confidence",
    "runs",
    "verdict",
)
