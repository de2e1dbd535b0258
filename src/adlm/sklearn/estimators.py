"""A classifier and a regressor with the scikit-learn API: `fit` makes one release and trains on it.

>>> from sklearn.datasets import load_iris
>>> from adlm import AdLMClassifier
>>> from adlm.domain import Domain
>>> x, y = load_iris(return_X_y=True)
>>> domain = Domain((4,), 0, (8, 5, 7, 3), ("setosa", "versicolor", "virginica"))
>>> model = AdLMClassifier(epsilon=5, domain=domain).fit(x, y)
>>> model.certificate_.totals.neighbours
'replace-one'

>>> from sklearn.datasets import load_diabetes
>>> from adlm import AdLMRegressor
>>> from adlm.domain import Domain
>>> x, y = load_diabetes(return_X_y=True)
>>> domain = Domain((10,), -0.2, 0.2, (), target=(0, 400))
>>> model = AdLMRegressor(epsilon=3, delta=1e-5, domain=domain).fit(x, y)
>>> model.certificate_.totals.neighbours
'replace-one'
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, _clone_parametrized
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from adlm.data.reading import read_frame
from adlm.domain import Domain
from adlm.domain.encoding import column_names, encode_frame, encode_target
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.mechanism.privatise import Fourier, privatise
from adlm.model.fit import fit as fit_release
from adlm.model.model import Model
from adlm.privacy.accounting import Budget
from adlm.privacy.certificate import Certificate
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime.artefact import canonical, new_folder, read_json
from adlm.sklearn.inputs import (
    PrivacyWarning,
    array_table,
    check_lengths,
    check_no_person,
    check_no_weights,
    class_labels,
    column_labels,
    declared,
    encode_array,
    label_codes,
    one_column,
    steps_before,
    target_table,
)

# ---- Base of the classifier and the regressor: releases, ledgers, and warnings about what each fit spends.

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
        neighbours: str | None = None,
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
        self.neighbours = neighbours

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
                f"scikit-learn fitted {', '.join(learnt)} on the private records, which is not private: the "
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
        if self.neighbours is not None:
            known = replace(known, neighbours=self.neighbours)
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
        options = dict(self.training or {})
        known = list(inspect.signature(fit_release).parameters)[1:]
        for name in options:
            if name not in known:
                raise UserError(f"there is no setting {name!r} of training; it has {', '.join(known)}")
        return fit_release(release, **{"class_weight": self._weights(release)} | options)

    def _weights(self, release: Release) -> Mapping[str, float] | str | None:
        """Return class weights by name."""
        return None

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
        count = "are fitted several times" if fit is None else f"are fitted for the {_ordinal(fit)} time"
        warnings.warn(
            f"this estimator or its clones {count}: each fit reads the records and spends epsilon "
            f"{self.epsilon}, charged to {charged_to}; search on one release instead "
            f"({type(self).__name__}.from_release, adlm.fit)",
            PrivacyWarning,
            stacklevel=stacklevel,
        )

    def _records(self, X: Any) -> npt.NDArray[Any]:
        if self._table is None:
            return np.asarray(X)
        if hasattr(X, "columns") and any(c.name in column_names(X) for c in self._table.features):
            return encode_frame(self._table, X)
        names = column_labels(self._table)
        if names and not hasattr(X, "columns"):
            raise UserError(
                f"this {self._what} was fitted on a DataFrame; give one with the columns {', '.join(names)} "
                f"(got an array of shape {np.shape(X)})"
            )
        return encode_array(self._table, validate_data(self, X, reset=False, dtype="numeric"))


def _ordinal(number: int) -> str:
    """2nd, 3rd, 11th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def number_of(text: str) -> float | Fraction:
    """A saved epsilon or delta: exact if it is a fraction."""
    return Fraction(text) if "/" in text else float(text)


def seed_of(random_state: Any) -> int | None:
    """The seed of a `random_state`; None if it is None."""
    if random_state is None or isinstance(random_state, int | np.integer):
        return None if random_state is None else int(random_state)
    return int(random_state.randint(2**31))


# ---- A classifier with the scikit-learn API: `fit` makes one release and trains on it.

IMAGES = ("drawn", "garments", "natural")


class AdLMClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A private classifier: `fit` reads the records, makes one release, and trains on the release alone.

    Parameters
    ----------
    epsilon, delta : the privacy budget of each fit, a number or an exact one such as "1/3"; delta 0 is pure
        epsilon.
    domain : the public domain: a `TableDomain` or a domain file (for DataFrames), a `Domain` (for arrays), or
        None. None learns bounds and classes from the data, warns, and stamps the certificate.
    ledger : file that every fit is charged to before noise is drawn; None keeps no account.
    budget : total that the ledger may be charged: epsilon, or "EPSILON,DELTA". A fit that would exceed it is
        refused. None sets no limit: every fit is recorded and none is refused, unless the ledger was
        created with a budget.
    size : public guess of the number of records, needed where that number is private.
    neighbours : `replace-one` or `add-remove`, instead of the relation that the domain declares.
    random_state : an integer makes the noise reproducible: the certificate is then stamped
        `NOT PRIVATE: seeded`. Only None protects the records.
    fourier : random Fourier features of a table's numeric columns together: a number, or `auto`.
    release : an existing release, or its folder. Then `fit` reads no record and spends nothing:
        it trains on the release. `from_release` makes such an estimator.
    training : settings of training, which are free to tune: `network`, `plan` and `draws`; `class_weight`
        for any linear model.
    class_weight : weights of the classes, at no privacy cost: public weights by label, or `balanced`, from
        the released counts, never from the labels given to `fit`. Free to tune.

    Attributes
    ----------
    release_ : the release of the records; train on it again at no cost.
    certificate_ : its privacy cost, and the proof.
    model_ : the trained model.
    classes_ : class labels, from the declared classes alone: integers if every class is named by one, False
        and True if these are the classes, else the names.
    n_features_in_, feature_names_in_ : number of columns, and their names if any.
    fits_ : number of fits of this estimator and its clones in this process, this one included.

    Notes
    -----
    Formal guarantees. One fit costs what `certificate_` says. Several fits on the same records add up: a
    search that refits spends at each refit, and each refit warns. With `release` nothing is spent, and
    `adlm.fit` trains on one release as often as you like, for nothing.

    There are no sample weights: a weight of 3 would triple the sensitivity that the noise is calibrated to.
    There is no `partial_fit`: each part would be a separate release, and be charged.
    """

    _what = "classifier"

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
        class_weight: Mapping[Any, float] | str | None = None,
        neighbours: str | None = None,
    ) -> None:
        super().__init__(
            epsilon, delta, domain, ledger, size, random_state, fourier, budget, release, training, neighbours
        )
        self.class_weight = class_weight

    def _weights(self, release: Release) -> Mapping[str, float] | str | None:
        """Return class weights by name; they are given by label, as in `classes_`, or by name."""
        weights = self.class_weight
        if weights is not None and not isinstance(weights, str):
            if not isinstance(weights, Mapping):
                raise UserError(f"class_weight is a dict of labels or 'balanced' (got {weights!r})")
            names = release.certificate.domain.classes
            weights = {self._name_of(label, names): weight for label, weight in weights.items()}
        return weights

    def _name_of(self, label: Any, names: tuple[str, ...]) -> str:
        """Return the declared name of a class that is given by label, name or code."""
        by_label: dict[Any, str] = dict(zip(self.classes_.tolist(), names, strict=True))
        if label in by_label or str(label) in names:
            return by_label.get(label, str(label))
        is_code = (
            isinstance(label, int | np.integer)
            and self.classes_.dtype.kind not in "iuf"
            and 0 <= label < len(names)
        )
        return names[label] if is_code else str(label)

    def _fit_release(self, release: Release, y: Any) -> Self:
        """Train on a release; the labels of records are not read."""
        del y
        domain = declared(release)[1]
        if domain.target is not None:
            raise UserError("this release has a numeric target, not classes; train AdLMRegressor on it")
        self.classes_ = class_labels(domain.classes)
        self._adopt(release, self._trained(release))
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on records whose labels are spelt in any way that `fit` takes.

        It is a statistic of the records that it is measured on, and not private.

        Parameters
        ----------
        X : records, as `fit` takes them; a label column is not needed.
        y : (n,) labels: class labels as in `classes_`, or as the domain declares them.
        sample_weight : (n,) weights of the records in the average; None for equal ones.
        """
        check_is_fitted(self, "model_")
        check_lengths(X, y)
        right = self.predict_proba(X).argmax(1) == self._codes(one_column(y))
        return float(np.average(right, weights=sample_weight))

    def _codes(self, y: Any) -> npt.NDArray[np.int64]:
        """Return the (n,) class codes of labels as in `classes_`, or as the domain declares them."""
        code_of = {label: code for code, label in enumerate(self.classes_.tolist())}
        labels = np.asarray(y)
        if labels.ndim == 1 and all(label in code_of for label in labels.tolist()):
            return np.array([code_of[label] for label in labels.tolist()], dtype=np.int64)
        if self._table is not None and column_labels(self._table):
            return label_codes(y, self._table)
        return declared(self.release_)[1].encode_labels(y)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return (n, M) class probabilities, in the order of `classes_`.

        Parameters
        ----------
        X : records, as `fit` takes them; a label column is not needed.
        """
        check_is_fitted(self, "model_")
        return self.model_.probabilities(self._records(X))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return (n,) class labels.

        Parameters
        ----------
        X : records, as `fit` takes them; a label column is not needed.
        """
        check_is_fitted(self, "model_")
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Return log odds, (n,) for two classes, or (n, M) logits."""
        check_is_fitted(self, "model_")
        logits = self.model_.logits(self._records(X)).double().numpy()
        return np.asarray(logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits)

    def _state(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "class_weight": self.class_weight}

    def _restore(self, summary: Mapping[str, Any]) -> None:
        self.classes_ = np.array(summary["classes"])
        self.class_weight = summary.get("class_weight")

    def _public(
        self, X: Any, y: Any
    ) -> tuple[TableDomain | Domain, npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return the public domain, and the records encoded by it."""
        given = TableDomain.load(self.domain) if isinstance(self.domain, str | Path) else self.domain
        if given is not None and given.target is not None:
            raise UserError("the domain declares a numeric target, not classes; take AdLMRegressor")
        if isinstance(given, TableDomain) and hasattr(X, "columns"):
            self._set_frame(given, X, y)
            self.classes_ = class_labels(given.label.classes)
            batch = read_frame(X, given, y)
            return given, batch.x, batch.y
        if isinstance(given, Domain) and given.family in IMAGES:
            x = np.asarray(X)
            check_lengths(x, y)
            self._table, self._shape = None, given.shape
            self.n_features_in_ = given.size
            self.classes_ = class_labels(given.classes)
            return given, x, given.encode_labels(y)
        check_no_person(given)
        x, labels = validate_data(self, X, y, dtype="numeric", ensure_min_samples=2)
        check_classification_targets(labels)
        table = given if isinstance(given, TableDomain) else array_table(x, labels, given)
        self._table, self._shape = table, None
        if given is None:  # learnt from the data, as the certificate says
            self.classes_, codes = np.unique(labels, return_inverse=True)
        else:
            codes = given.encode_labels(labels) if isinstance(given, Domain) else label_codes(labels, table)
            self.classes_ = class_labels(table.label.classes)
        return table, encode_array(table, x), codes.astype(np.int64)


# ---- A regressor with the scikit-learn API: `fit` makes one release and trains on it.


class AdLMRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A private regressor: `fit` reads the records, makes one release, and trains on it alone.

    Parameters
    ----------
    domain : the public domain: a `TableDomain` or a domain file with a column of kind target (for
        DataFrames), a `Domain` with `target=(lower, upper)` (for arrays), or None. None learns bounds from
        the data, warns, and stamps the certificate.
    epsilon, delta, ledger, budget, size, neighbours, random_state, fourier, release, training : as for
        `AdLMClassifier`; a regression model has no settings of training so far.

    Attributes
    ----------
    release_, certificate_, n_features_in_, feature_names_in_, fits_ : as those of `AdLMClassifier`.
    model_ : the trained model; `model_.training` has the R2 that was released and charged. A model whose
        R2 is no better than the mean's predicts the mean, with a warning in `model_.training["warning"]`.

    Notes
    -----
    Formal guarantees. As for `AdLMClassifier`: one fit costs what `certificate_` says, and fits add up.
    """

    _what = "regressor"

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return (n,) predictions, within the declared bounds of the target.

        Parameters
        ----------
        X : records, as `fit` takes them; a target column is not needed.
        """
        check_is_fitted(self, "model_")
        return self.model_.values(self._records(X))

    def _fit_release(self, release: Release, y: Any) -> Self:
        """Train on a release; the targets of records are not read."""
        del y
        if declared(release)[1].target is None:
            raise UserError("this release has classes, not a numeric target; train AdLMClassifier on it")
        self._adopt(release, self._trained(release))
        return self

    def _public(self, X: Any, y: Any) -> tuple[TableDomain, npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return the public domain, and the records encoded by it."""
        given = TableDomain.load(self.domain) if isinstance(self.domain, str | Path) else self.domain
        if isinstance(given, TableDomain):
            if given.target is None:
                raise UserError(
                    f"column {given.answer.name!r} of the domain is a label with classes, and a regressor "
                    "needs a column of kind target, with lower and upper; or take AdLMClassifier"
                )
            if hasattr(X, "columns"):
                self._set_frame(given, X, y)
                batch = read_frame(X, given, y)
                return given, batch.x, batch.y
            check_no_person(given)
        x, values = validate_data(self, X, y, dtype="numeric", ensure_min_samples=2, y_numeric=True)
        table = given if isinstance(given, TableDomain) else target_table(x, values, given)
        self._table, self._shape = table, None
        assert table.target is not None
        return table, encode_array(table, x), encode_target(table.target, values, table.missing)
