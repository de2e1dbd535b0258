"""Accuracies that others have published, for dotted marks beside what is measured here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """One figure from a paper; epsilon is as its authors state it."""

    data: str
    epsilon: float
    accuracy: float
    what: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


_ADLM = "Phan, Wu, Hu, Dou 2017 (corrected version)"
_HAND = "Tramer and Boneh 2021"
_NOISE = "Tang et al. 2023, random-process priors"

FIGURES = (
    Published("mnist", 0.25, 0.902, "AdLM, claimed", _ADLM),
    Published("mnist", 0.25, 0.8846, "ILM, claimed", _ADLM),
    Published("mnist", 0.25, 0.8209, "pSGD", _ADLM),
    Published("mnist", 0.5, 0.9366, "AdLM, claimed", _ADLM),
    Published("mnist", 0.5, 0.9239, "ILM, claimed", _ADLM),
    Published("mnist", 0.5, 0.8859, "pSGD", _ADLM),
    Published("mnist", 3.0, 0.987, "DP-SGD on scattering, delta 1e-5", _HAND),
    Published("fashion-mnist", 3.0, 0.897, "DP-SGD on scattering, delta 1e-5", _HAND),
    Published("cifar10", 1.0, 0.609, "DP-SGD on scattering, delta 1e-5", _HAND),
    Published("cifar10", 3.0, 0.67, "DP-SGD on scattering, linear, delta 1e-5", _HAND),
    Published("cifar10", 3.0, 0.69, "DP-SGD on scattering, CNN, delta 1e-5", _HAND),
    Published("cifar10", 1.0, 0.723, "DP-SGD with priors from random processes, delta 1e-5", _NOISE),
)


def of(data: str) -> tuple[Published, ...]:
    """What is published for a data set."""
    return tuple(figure for figure in FIGURES if figure.data == data)
