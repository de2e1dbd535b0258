"""Hyper-parameter search on one release, at no privacy cost."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from adlm.analyst.class_weights import with_class_weights
from adlm.analyst.fit import fit
from adlm.analyst.model import Model
from adlm.errors import UserError
from adlm.privacy.release import Release

WEIGHTS = "class_weight"


@dataclass(frozen=True)
class Search:
    """Models trained on one release, with their settings and scores, best first."""

    models: tuple[Model, ...]
    settings: tuple[Mapping[str, Any], ...]
    scores: tuple[float, ...]

    @property
    def best(self) -> Model:
        """The model with the highest score."""
        return self.models[0]


def search_on_release(release: Release, settings: Iterable[Mapping[str, Any]], score: Any) -> Search:
    """Train on one release with several settings, at no privacy cost if `score` reads nothing private.

    Parameters
    ----------
    release : to train on.
    settings : keyword arguments of `adlm.fit` (`network`, `plan`, `draws`); `class_weight` for any linear
        model, while that of a network is in its plan.
    score : from a `Model` to a number, larger is better. It should read public or drawn records: a choice by
        private ones is a statistic of them that is not charged.

    Returns
    -------
    The models with their settings and scores, best first.

    Raises
    ------
    UserError : there are no settings, or one is not for this kind of release; nothing is trained then.

    Examples
    --------
    >>> search = search_on_release(release, [{}, {"network": "mlp"}], score)  # doctest: +SKIP
    >>> search.best.save("M")  # doctest: +SKIP
    """
    tried = [dict(s) for s in settings]
    if not tried:
        raise UserError("there is nothing to search; give at least one set of settings")
    for options in tried:  # check all before training any
        _check(options)
    models = [train_on_release(release, options) for options in tried]
    scores = [float(score(model)) for model in models]
    order = sorted(range(len(models)), key=lambda i: -scores[i])
    return Search(
        tuple(models[i] for i in order), tuple(tried[i] for i in order), tuple(scores[i] for i in order)
    )


def train_on_release(release: Release, settings: Mapping[str, Any]) -> Model:
    """Train on a release with settings as for `search_on_release`.

    It warns, with `NoisyModelWarning`, of a model that may be no better than the largest class, whatever the
    kind of the release.
    """
    _check(settings)
    options = {name: value for name, value in settings.items() if name != WEIGHTS}
    model: Model = fit(release, **options)
    if settings.get("network") is None:  # those of a network are in its plan
        model = with_class_weights(model, release, settings.get(WEIGHTS))
    return replace(model, release_signature=release.signature)


def _check(settings: Mapping[str, Any]) -> None:
    if settings.get(WEIGHTS) is not None and settings.get("network") is not None:
        raise UserError("the class weights of a network go into its plan: TrainingConfig(class_weight=...)")
    known = [*list(inspect.signature(fit).parameters)[1:], WEIGHTS]
    for name in settings:
        if name not in known:
            raise UserError(f"there is no setting {name!r} for this release; it has {', '.join(known)}")
