"""Base of the classifier and the regressor: releases, ledgers, and warnings about what each fit spends."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, _clone_parametrized
from sklearn.utils.validation import check_is_fitted, validate_data

from adlm.analyst.model import Model
from adlm.analyst.search import train_on_release
from adlm.curator.ledger import Ledger
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.privacy.budget import Budget
from adlm.privacy.certificate import Certificate
from adlm.privacy.release import Release
from adlm.public.domain import Domain
from adlm.public.domain.encoding import column_names, encode_frame
from adlm.public.domain.table import TableDomain
from adlm.runtime.artefact import canonical, new_folder, read_json
from adlm.workflows.options import Fourier
from adlm.workflows.privatise import privatise
from adlm.workflows.sklearn.inputs import (
    PrivacyWarning,
    check_lengths,
    check_no_weights,
    column_labels,
    declared,
    encode_array,
    one_column,
    steps_before,
)

BATCH = 8192


@dataclass
class _FitCounts:
    """Counts that an estimator and its clones share."""

    fits: int = 0
    clones: int = 0


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator whose `fit` makes one release and trains on it; for parameters see `AdLMClassifier`."""

    _what = "estimator"
    release_: Release
    model_: Model
    _table: TableDomain | None
    _shape: tuple[int, ...] | None
    _source: Source | None = None  # of the noise, for the audit; None is that of `random_state`

    def __init__(
        self,
        epsilon: float | str | Fraction = 1.0,
        delta: float | str | Fraction = 0.0,
        domain: TableDomain | Domain | str | Path | None = None,
        ledger: str | Path | None = None,
        size: int | None = None,
        random_state: int | None = None,
        fourier: Fourier = 0,
        budget: float | str | Fraction | None = None,
        release: Release | str | Path | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.domain = domain
        self.ledger = ledger
        self.size = size
        self.random_state = random_state
        self.fourier = fourier
        self.budget = budget
        self.release = release
        self.training = training

    @classmethod
    def from_release(cls, release: Release | str | Path, **training: Any) -> Self:
        """Return an estimator that is trained on a release; `fit` then trains on it again at no cost.

        Parameters
        ----------
        release : the release, or its folder.
        training : settings that are free to tune, as the parameter of that name; `GridSearchCV` may search
            over it. Scores on private records are not accounted for: search on public ones.

        Raises
        ------
        UserError : the release has a numeric target where classes are predicted, or the other way round.

        Examples
        --------
        >>> AdLMClassifier.from_release("R", network="mlp").predict(frame)  # doctest: +SKIP
        """
        loaded = release if isinstance(release, Release) else Release.load(release)
        totals = loaded.certificate.totals
        parameters: dict[str, Any] = {"release": release, "training": training or None}
        estimator = cls(epsilon=float(totals.epsilon_proved), delta=float(totals.delta), **parameters)
        return estimator._fit_release(loaded, None)

    def __getattr__(self, name: str) -> Any:
        """Raise an error that says why there is no `partial_fit`; scikit-learn tests with `hasattr`."""
        if name == "partial_fit":
            raise AttributeError(
                f"{type(self).__name__} has no partial_fit: each part would be a release of its own and be "
                "charged; fit once on all records, or privatise a file of any size with adlm release"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_clone__(self) -> Any:
        """Clone, and share the counts: an estimator and its clones are counted together.

        A search makes its clones here, but may fit them in other processes, whose warnings are not shown;
        so the second clone warns.
        """
        counts = self._fit_counts()
        counts.clones += 1
        if counts.clones == 2 and self.release is None:
            self._warn_of_refits(stacklevel=5)
        clone = _clone_parametrized(self)
        clone._counts = counts
        return clone

    def fit(self, X: Any, y: Any, **refused: Any) -> Self:
        """Make a release of the records and train on it; with `release`, train on that alone.

        Parameters
        ----------
        X : private records: a DataFrame with the columns that the domain declares, an (n, d) array, or images
            of the domain's shape.
        y : (n,) class labels or target values; may be None when the estimator has a `release`.
        refused : sample weights are refused with the reason; there are no other options.

        Returns
        -------
        The estimator, with `release_`, `model_` and `certificate_`.

        Raises
        ------
        UserError : records do not match the domain, sample weights were given, a budget was given without a
            ledger, or the release would exceed the ledger's budget.

        Examples
        --------
        >>> AdLMClassifier(epsilon=1, domain="visits.toml").fit(frame, frame["ill"])  # doctest: +SKIP
        """
        release = self._start_fit(refused)
        if release is not None:
            return self._fit_release(release, y)
        learnt = self._pipeline_steps()
        known, x, answers = self._public(X, one_column(y))
        ledger = self._ledger()  # after the records were read: invalid ones must not set its budget
        if learnt:
            known = replace(known, bounds_learnt_from_data=True)
        self.release_ = self._privatised(known, x, answers, ledger)
        self.model_ = self._trained(self.release_)
        return self

    def _fit_release(self, release: Release, y: Any) -> Self:
        raise NotImplementedError

    def _public(
        self, X: Any, y: Any
    ) -> tuple[TableDomain | Domain, npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return the public domain, and the records encoded by it."""
        raise NotImplementedError

    def _set_frame(self, table: TableDomain, X: Any, y: Any) -> None:
        """Store the declared table and the names of a frame's columns."""
        names = column_names(X)
        self._table, self._shape, self.n_features_in_ = table, None, len(names)
        self.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
        check_lengths(X, y)

    def _start_fit(self, refused: MutableMapping[str, Any]) -> Release | None:
        """Count a fit and warn of refits; return the user's release, if any."""
        check_no_weights(refused)
        counts = self._fit_counts()
        counts.fits += 1
        self.fits_ = counts.fits
        if self.release is not None:
            return self.release if isinstance(self.release, Release) else Release.load(self.release)
        if counts.fits >= 2:
            self._warn_of_refits(stacklevel=4, fit=counts.fits)
        return None

    def _pipeline_steps(self) -> list[str]:
        """Name the steps that a pipeline fitted on the records, with a warning; and check the budget."""
        learnt = steps_before()
        if learnt:
            warnings.warn(
                f"the pipeline fitted {', '.join(learnt)} on the private records, which is not private: the "
                "certificate proves nothing; the domain's bounds scale records already, so leave it out",
                PrivacyWarning,
                stacklevel=3,
            )
        if self.budget is not None and self.ledger is None:
            raise UserError("a budget needs a ledger to be kept in; give ledger=FILE too")
        return learnt

    def _privatised(
        self,
        known: TableDomain | Domain,
        x: npt.NDArray[Any],
        codes: npt.NDArray[np.int64],
        book: Ledger | None,
    ) -> Release:
        """Make the release of records, with their class codes or positions of the target."""
        table = isinstance(known, TableDomain)
        batches = [(x[i : i + BATCH], codes[i : i + BATCH]) for i in range(0, len(codes), BATCH)]
        return privatise(
            (lambda: batches) if table else x,
            None if table else codes,
            known,
            epsilon=self.epsilon,
            delta=self.delta,
            ledger=book,
            source=self._source,
            seed=seed_of(self.random_state),
            size=self.size,
            fourier=self.fourier,
        )

    def _trained(self, release: Release) -> Model:
        """Train on a release, by the settings that are free to tune."""
        return train_on_release(release, self.training or {})

    def _adopt(self, release: Release, model: Model) -> None:
        """Store a release, its model, and the declared domain of its records."""
        table, domain = declared(release)
        self.release_, self.model_ = release, model
        self._table, self._shape = table, None if table is not None else domain.shape
        self.n_features_in_ = domain.size if table is None else len(table.features)
        names = [] if table is None else column_labels(table)
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)

    @property
    def _repr_html_(self) -> Any:
        diagram = super()._repr_html_  # scikit-learn's: none when its display is set to text
        return lambda: diagram() + self._privacy_html()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        shown: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        return shown | (
            {"text/html": shown["text/html"] + self._privacy_html()} if "text/html" in shown else {}
        )

    def _privacy_html(self) -> str:
        """The cost of the fit, shown below scikit-learn's diagram; empty before a fit."""
        return str(self.certificate_._repr_html_()) if hasattr(self, "release_") else ""

    @property
    def certificate_(self) -> Certificate:
        """The certificate of the release: its privacy cost and the proof."""
        check_is_fitted(self, "release_")
        return self.release_.certificate

    def save(self, folder: Path | str) -> None:
        """Write settings, release and model to a new folder; no pickle.

        Parameters
        ----------
        folder : must not exist.

        Raises
        ------
        UserError : the folder exists, or cannot be written.
        """
        check_is_fitted(self, "model_")
        summary = {
            "epsilon": str(self.epsilon),
            "delta": str(self.delta),
            "size": self.size,
            "random_state": seed_of(self.random_state),
            "columns": [str(name) for name in getattr(self, "feature_names_in_", [])],
            "width": int(getattr(self, "n_features_in_", 0)),
            "fourier": self.fourier,
        }
        with new_folder(Path(folder), what=self._what) as temporary:
            self.release_.save(temporary / "release")
            self.model_.save(temporary / "model")
            (temporary / "estimator.json").write_bytes(canonical(summary | self._state()))

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read a saved estimator, checking release and model; its domain comes from the certificate.

        Parameters
        ----------
        folder : one that `save` wrote.

        Raises
        ------
        UserError : the folder is no such estimator, or something in it was altered.
        """
        folder = Path(folder)
        summary = read_json(folder / "estimator.json", what=cls._what)
        release, model = Release.load(folder / "release"), Model.load(folder / "model")
        table, images = declared(release)
        estimator = cls(
            epsilon=number_of(summary["epsilon"]),
            delta=number_of(summary["delta"]),
            domain=images if table is None else table,
            size=summary["size"],
            random_state=summary["random_state"],
            fourier=summary["fourier"],
        )
        estimator._adopt(release, model)
        estimator.n_features_in_ = summary["width"]
        if summary["columns"]:
            estimator.feature_names_in_ = np.array(summary["columns"], dtype=object)
        estimator._restore(summary)
        return estimator

    def _state(self) -> dict[str, Any]:
        """Further JSON values that a subclass saves."""
        return {}

    def _restore(self, summary: Mapping[str, Any]) -> None:
        """Restore the values of `_state`."""

    def _ledger(self) -> Ledger | None:
        if self.ledger is None:
            return None
        if self.budget is None:
            return Ledger(Path(self.ledger))
        return Ledger(Path(self.ledger), Budget.parse(str(self.budget)))

    def _fit_counts(self) -> _FitCounts:
        if not hasattr(self, "_counts"):
            self._counts = _FitCounts()
        return self._counts

    def _warn_of_refits(self, stacklevel: int, fit: int | None = None) -> None:
        """Warn about each refit by its number; without a number once, for clones fitted elsewhere."""
        charged_to = "no ledger" if self.ledger is None else f"the ledger {self.ledger}"
        count = "are fitted several times" if fit is None else f"are fitted, for the time number {fit}"
        warnings.warn(
            f"this estimator or its clones {count}: each fit reads the records and spends epsilon "
            f"{self.epsilon}, charged to {charged_to}; search on one release instead "
            f"({type(self).__name__}.from_release, adlm.workflows.sklearn.estimator.search_on_release)",
            PrivacyWarning,
            stacklevel=stacklevel,
        )

    def _records(self, X: Any) -> npt.NDArray[Any]:
        if self._table is None:
            return np.asarray(X)
        if hasattr(X, "columns") and any(c.name in column_names(X) for c in self._table.features):
            return encode_frame(self._table, X)
        return encode_array(self._table, validate_data(self, X, reset=False, dtype="numeric"))


def number_of(text: str) -> float | Fraction:
    """A saved epsilon or delta: exact if it is a fraction."""
    return Fraction(text) if "/" in text else float(text)


def seed_of(random_state: Any) -> int | None:
    """The seed of a `random_state`; None if it is None."""
    if random_state is None or isinstance(random_state, int | np.integer):
        return None if random_state is None else int(random_state)
    return int(random_state.randint(2**31))
