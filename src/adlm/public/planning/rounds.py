"""The rule for gradient rounds: how many, how long a step, from public quantities alone.

What noise does to a score is the same whatever the number of rounds: it grows with the *path*, the sum of all
steps, over signal = n mu / s, where s is the sensitivity in clip norms (1 under add-remove, 2 under
replace-one, times the records of a person). So the path follows the signal, and the number of rounds only
has to be large enough for the steps to be stable. The constants were settled on held-out training records
of MNIST, Fashion-MNIST and CIFAR-10 and of six tables (docs/reproduction.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adlm.errors import UserError

CLIP_NORM = 0.25
# Short clips bias the class shares of imbalanced data; a table that can afford it is clipped less.
WIDER_CLIPS = ((8_000.0, 0.5), (16_000.0, 1.0))
TABLE_PATH = 0.2  # step x clip norm x rounds, over the signal; images have their own, by kind
ROUNDS = (100, 200)  # usual and most
PURE_ROUNDS = 30  # under pure epsilon, where every round costs its share of epsilon
IMAGE_STEP, TABLE_STEP = 128.0, 32.0  # the longest stable steps, for a clip norm of CLIP_NORM
MOMENTUM = (0.9, 0.97)  # usual and most


@dataclass(frozen=True)
class GradientRounds:
    """Public settings of gradient rounds.

    Attributes
    ----------
    rounds : how often a noisy gradient is released.
    clip_norm : L2 bound on one record's gradient (p - y) x (constant, z).
    step : learning rate on the mean gradient.
    momentum : share of the previous step that is kept.
    constant : the coordinate beside z that carries the bias.
    average : share of the rounds, the last ones, whose heads are averaged.
    size : public number of records that turns a sum into a mean.
    """

    rounds: int
    clip_norm: float
    step: float
    size: int
    momentum: float = 0.9
    constant: float = 0.25
    average: float = 0.25

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.size < 1:
            raise UserError(f"rounds and size must be at least 1, got {self.rounds} and {self.size}")
        if not (0 < self.clip_norm < 2 and 0 < self.constant <= 1 and self.step > 0):
            raise UserError(
                "gradient rounds need a clip norm in (0, 2), a constant in (0, 1] and a positive step, got "
                f"{self.clip_norm}, {self.constant} and {self.step}"
            )
        if not (0 <= self.momentum < 1 and 0 < self.average <= 1):
            raise UserError(
                f"momentum must lie in [0, 1) and average in (0, 1], got {self.momentum} and {self.average}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> GradientRounds:
        """Read what `to_dict` wrote."""
        try:
            return cls(**raw)
        except TypeError as error:
            raise UserError(f"the settings of gradient rounds cannot be read: {error}") from None


def signal(n: int, mu: float, neighbours: str, contributions: int = 1) -> float:
    """Return n mu over the sensitivity, in clip norms."""
    return n * mu / ((1.0 if neighbours == "add-remove" else 2.0) * contributions)


def plan_rounds(
    n: int, strength: float, *, path: float, longest_step: float, clip_norm: float = CLIP_NORM
) -> GradientRounds:
    """Choose gradient rounds for n records and a signal.

    The path grows with the signal: first by longer steps, then by more rounds, then by more momentum.

    Parameters
    ----------
    n : public number of records.
    strength : what `signal` returns.
    path : step x clip norm x rounds, over the signal.
    longest_step : the longest stable step on the mean gradient, for a clip norm of CLIP_NORM.
    clip_norm : L2 bound on one record's gradient.
    """
    path, longest = path * strength, longest_step * CLIP_NORM / clip_norm
    rounds, momentum = ROUNDS[0], MOMENTUM[0]
    step = path / (clip_norm * rounds)
    if step > longest:
        rounds = min(ROUNDS[1], round(path / (clip_norm * longest)))
        step = path / (clip_norm * rounds)
    if step > longest:
        momentum = min(MOMENTUM[1], 1 - (1 - momentum) * longest / step)
        step = longest
    return GradientRounds(rounds, clip_norm, float(f"{step:.6g}"), n, momentum=float(f"{momentum:.6g}"))


def table_clip_norm(strength: float) -> float:
    """Return the clip norm of a table's gradients."""
    return max((norm for least, norm in WIDER_CLIPS if strength >= least), default=CLIP_NORM)
