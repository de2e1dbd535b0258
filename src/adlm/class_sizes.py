"""Classes that are too small for the noise: what released counts, and the noise on them, say of class sizes.

Noise is the same for every class, so a small class is learnt worst. Everything here reads released numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adlm.release import Release

CLEAR = 2.0  # standard deviations of its noise that a count must exceed to be told from none


@dataclass(frozen=True)
class SmallClass:
    """A class whose released count is not clear of its noise.

    Attributes
    ----------
    count : as it was released; it may be negative.
    sd : standard deviation of the noise on it.
    """

    name: str
    count: float
    sd: float

    def sentence(self) -> str:
        """Say what was found and what to make of it."""
        return (
            f"class {self.name!r} is smaller than its noise: released count {self.count:.0f}, noise of "
            f"standard deviation {self.sd:.0f}; do not expect it to be predicted well: raise epsilon, or "
            "merge classes"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"class": self.name, "count": round(self.count, 1), "sd": round(self.sd, 1)}


def small_classes(release: Release) -> tuple[SmallClass, ...]:
    """Return the classes whose released count is at most twice the standard deviation of its noise.

    A release record by record holds no counts, and none is found in it.
    """
    tensors, settings = release.tensors, release.certificate.settings
    if not {"class_sums", "step"} <= set(tensors) or "sd_sums" not in settings:
        return ()
    step = float(tensors["step"][0])
    counts, sd = (tensors["class_sums"][:, 0].double() * step).tolist(), float(settings["sd_sums"]) * step
    names = release.certificate.domain.classes
    return tuple(
        SmallClass(name, count, sd) for name, count in zip(names, counts, strict=True) if count <= CLEAR * sd
    )
