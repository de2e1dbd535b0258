"""Data of the experiments: data sets by name, their public features computed once, releases of them.

The data sets are public, so their features may be cached on disk; features of private records are private.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adlm.data import datasets
from adlm.domain import Domain
from adlm.engine.records import featurise
from adlm.features import Features, Narrowed, PairProducts, build, for_domain
from adlm.features import narrowed as features_of
from adlm.mechanism.planner import Plan, plan_arrays, plan_class_sums
from adlm.mechanism.privatise import release_by_plan
from adlm.model.metrics import Measures, measure
from adlm.privacy.accounting import Budget
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from benchmarks.experiments import table_split

_ROWS = 4000
TABLES = ("adult",)  # read as encoded records; their features are the cells of their columns


@dataclass(frozen=True, eq=False)
class Split:
    """Records of a split as published, and their class codes."""

    x: npt.NDArray[Any]
    y: npt.NDArray[np.int64]

    def first(self, n: int | None) -> Split:
        """The first n records, or all of them."""
        return self if n is None else Split(self.x[:n], self.y[:n])


@lru_cache(maxsize=1)
def _table(data: str) -> table_split.Split:
    return table_split.load(data, Path(os.environ.get("ADLM_DATA", "data")))


@lru_cache(maxsize=4)
def split(data: str, part: str) -> Split:
    """Load a split of a data set."""
    if data in TABLES:
        made = _table(data)
        return Split(made.x, made.y) if part == "train" else Split(made.test, made.truth)
    records = datasets.load(data, part)
    return Split(records.x, records.y)


def declared(data: str) -> Domain:
    """The domain of a data set, as it is published."""
    return _table(data).table.domain if data in TABLES else datasets.domain(data)


@lru_cache(maxsize=4)
def scaled(data: str, part: str) -> Tensor:
    """Records in [0, 1], (n, *shape)."""
    return torch.from_numpy(declared(data).scale(split(data, part).x))


@lru_cache(maxsize=4)
def features(data: str, wide: int | None = None) -> Features:
    """The public features for a data set; `wide` is a larger number of directions than the default."""
    if data in TABLES:
        return table_split.EvenBins(_table(data).table)
    suited = for_domain(declared(data))
    return suited if wide is None else build(suited.spec() | {"width": wide})


@lru_cache(maxsize=8)
def vectors(data: str, part: str, wide: int | None = None) -> npt.NDArray[np.float32]:
    """All features of a split, (n, width), cached on disk; without products, which are fast to compute."""
    return featurise(split(data, part).x, declared(data), without_products(features(data, wide)), cache=True)


def without_products(public: Features) -> Features:
    """Return the map whose coordinates are multiplied, if that is what features do."""
    return public.inner if isinstance(public, PairProducts) else public


def narrowed(
    data: str, part: str, width: int, n: int | None = None, wide: int | None = None
) -> npt.NDArray[np.float32]:
    """The leading `width` coordinates at unit norm, of the first n records.

    Parameters
    ----------
    data, part : data set, and `train` or `test`.
    width : coordinates to keep.
    n : records; None for all.
    wide : width that they are cut from.
    """
    return _taken(features_of(features(data, wide), width), vectors(data, part, wide)[:n])


def _taken(kept: Features, z: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The features of a map that is derived from the plain one, from the plain one's."""
    if not isinstance(kept, Narrowed | PairProducts):
        return z
    taken = np.empty((len(z), kept.width), np.float32)
    for start in range(0, len(z), _ROWS):
        rows = slice(start, start + _ROWS)
        taken[rows] = kept.of(torch.from_numpy(np.array(z[rows]))).numpy()
    return taken


def domain(data: str, neighbours: str) -> Domain:
    """The domain of a data set under a neighbouring relation."""
    return replace(declared(data), neighbours=neighbours)


@dataclass(frozen=True)
class ReleaseRequest:
    """Settings of a release besides its budget; by default those of `adlm.privatise`.

    `n` selects the first records, `classes` those of the first classes; `wide` uses more public directions
    than the default. `second` 0 gives class sums alone, as stored trials name it; the others override the
    planner.
    """

    n: int | None = None
    neighbours: str = "replace-one"
    k: int | None = None
    second: int | None = None
    allocation: str | None = None
    wide: int | None = None
    classes: int | None = None

    def domain(self, data: str) -> Domain:
        """The declared domain."""
        own = domain(data, self.neighbours)
        return own if self.classes is None else replace(own, classes=own.classes[: self.classes])

    def kept(self, data: str, part: str, n: int | None = None) -> npt.NDArray[np.bool_]:
        """Which records of a split have a class of the domain."""
        return np.asarray(split(data, part).first(n).y < len(self.domain(data).classes))


def planned(data: str, epsilon: str, delta: str, request: ReleaseRequest) -> Plan:
    """The plan that a release follows.

    Parameters
    ----------
    data : data set.
    epsilon, delta : the budget.
    request : what differs from the planner's settings.
    """
    own, public = request.domain(data), features(data, request.wide)
    n, classes = int(request.kept(data, "train", request.n).sum()), len(own.classes)
    choose = plan_arrays if request.second is None else plan_class_sums
    return choose(
        public,
        n,
        classes,
        float(epsilon),
        float(delta),
        request.neighbours,
        k=request.k,
        allocation=request.allocation,
    )


def dpsgd_width(data: str, epsilon: str, delta: str, neighbours: str) -> int:
    """Number of features for DP-SGD: all of them, with products of pairs where the rule uses those too.

    Parameters
    ----------
    data : data set.
    epsilon, delta : the budget.
    neighbours : the relation.
    """
    public = features(data)
    k = planned(data, epsilon, delta, ReleaseRequest(neighbours=neighbours)).k
    return max(k, without_products(public).width)


def moment_release(
    data: str, request: ReleaseRequest | None = None, *, epsilon: str, delta: str = "0", seed: int
) -> Release:
    """Make the same release as `adlm.privatise`, from cached features.

    Parameters
    ----------
    data : data set.
    request : what differs from the planner's settings.
    epsilon, delta : the budget.
    seed : of the noise.
    """
    request = request or ReleaseRequest()
    plan, public = planned(data, epsilon, delta, request), features(data, request.wide)
    kept = request.kept(data, "train", request.n)
    codes = split(data, "train").first(request.n).y[kept]
    released = features_of(public, plan.k)
    z = _taken(released, vectors(data, "train", request.wide)[: request.n])[kept]

    def batches() -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        return [(z[i : i + _ROWS], codes[i : i + _ROWS]) for i in range(0, len(z), _ROWS)]

    return release_by_plan(
        batches,
        request.domain(data),
        plan=plan,
        budget=Budget.of(epsilon, delta),
        ledger=Ledger(),
        source=Source.seeded_with(seed),
        features=released,
    )


def measured(
    head: torch.nn.Module, data: str, released: Features, request: ReleaseRequest | None = None
) -> Measures:
    """Measure a head on the features of a release against the test records.

    Parameters
    ----------
    head : classifier of features.
    data : data set.
    released : the features of the release.
    request : settings of the release.
    """
    request = request or ReleaseRequest()
    kept = request.kept(data, "test")
    z = torch.from_numpy(_taken(released, vectors(data, "test", request.wide))[kept])
    with torch.inference_mode():
        sure = head.eval()(z).double().softmax(1)
    return measure(sure.numpy(), split(data, "test").y[kept])
