"""Classes that are too small for the noise, found from released counts.

Noise is the same for every class, so a small class is learnt worst. Everything here reads released numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adlm.privacy.release import Release

CLEAR = 2.0  # standard deviations of its noise that a count must exceed to be distinguished from 0
BELOW = 3.0  # standard deviations by which a count must stay below n / M for its class to be called small
MOST_SHOWN = 5  # classes that are listed one by one


@dataclass(frozen=True)
class SmallClass:
    """A class whose released count is not distinguishable from noise.

    Attributes
    ----------
    count : as it was released; it may be negative.
    sd : standard deviation of the noise on it.
    """

    name: str
    count: float
    sd: float

    def sentence(self) -> str:
        """Describe the problem and what to do about it."""
        return (
            f"class {self.name!r} may be smaller than its noise: released count {self.count:.0f}, noise of "
            f"standard deviation {self.sd:.0f}; do not expect it to be predicted well: raise epsilon, or "
            "merge classes"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"class": self.name, "count": round(self.count, 1), "sd": round(self.sd, 1)}


def small_classes(release: Release) -> tuple[SmallClass, ...]:
    """Return the classes that may be smaller than the noise on their count.

    A class is named when its released count is at most twice the standard deviation of its noise, and
    three of them below n / M. A moment release spends little on counts, so noise alone does not make a
    class small. Where that deviation exceeds n / M, all classes are named. A record release holds no counts,
    so none is named.
    """
    tensors, settings = release.tensors, release.certificate.settings
    if not {"class_sums", "step"} <= set(tensors) or "sd_sums" not in settings:
        return ()
    step = float(tensors["step"][0])
    counts, sd = (tensors["class_sums"][:, 0].double() * step).tolist(), float(settings["sd_sums"]) * step
    n = settings.get("n")
    uniform = max(float(n) if isinstance(n, int) else sum(counts), 0.0) / len(counts)
    names = release.certificate.domain.classes
    return tuple(
        SmallClass(name, count, sd)
        for name, count in zip(names, counts, strict=True)
        if uniform <= sd or (count <= CLEAR * sd and count + BELOW * sd < uniform)
    )


def sentences(small: Sequence[SmallClass]) -> list[str]:
    """One sentence for each small class, at most a few."""
    shown = [one.sentence() for one in small[:MOST_SHOWN]]
    rest = len(small) - len(shown)
    return [*shown, f"and so may be {rest} more classes"] if rest else shown
