"""A classifier with scikit-learn's manners: `fit` makes one release and trains on it.

>>> from sklearn.datasets import load_iris
>>> from adlm import AdLMClassifier
>>> from adlm.public.domain import Domain
>>> x, y = load_iris(return_X_y=True)
>>> domain = Domain((4,), 0, (8, 5, 7, 3), ("setosa", "versicolor", "virginica"))
>>> model = AdLMClassifier(epsilon=5, domain=domain).fit(x, y)
>>> model.certificate_.totals.neighbours
'replace-one'
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, _clone_parametrized
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from adlm.analyst.model import Model
from adlm.analyst.search import Search as Search
from adlm.analyst.search import search_on_release as search_on_release
from adlm.analyst.search import train_on_release
from adlm.curator.ledger import Ledger
from adlm.errors import UserError
from adlm.privacy.budget import Budget
from adlm.privacy.release import Certificate, Release
from adlm.public.domain import Domain
from adlm.public.domain.encoding import column_names, encode_frame
from adlm.public.domain.table import TableDomain
from adlm.readers.frames import kept_records
from adlm.runtime.artefact import canonical, new_folder, read_json
from adlm.workflows.options import Fourier
from adlm.workflows.privatise import privatise
from adlm.workflows.sklearn.inputs import PrivacyWarning as PrivacyWarning
from adlm.workflows.sklearn.inputs import (
    array_table,
    check_lengths,
    check_no_weights,
    coded,
    column_labels,
    declared,
    encode_array,
    labels_of,
    one_column,
    steps_before,
)

BATCH = 8192
IMAGES = ("drawn", "garments", "natural")


@dataclass
class _Family:
    """What an estimator and its clones have done together."""

    fits: int = 0
    clones: int = 0


class AdLMClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A private classifier: `fit` reads the records, makes one release, and trains on the release alone.

    Parameters
    ----------
    epsilon, delta : the privacy budget of each fit, a number or an exact one such as "1/3"; delta 0 is pure
        epsilon.
    domain : what is public: a `TableDomain` or a domain file (for DataFrames), a `Domain` (for arrays), or
        None. None learns bounds and classes from the data, warns, and stamps the certificate.
    ledger : file that every fit is charged to before noise is drawn; None keeps no account.
    budget : what the ledger may be charged in all: epsilon, or "EPSILON,DELTA". A fit that would exceed it is
        refused. None sets no limit: every fit is written down and none is refused, unless the ledger was
        made with a budget, which it keeps.
    size : public guess of the number of records, needed where that number is private.
    random_state : a whole number makes the noise repeatable: the certificate is then stamped
        `NOT PRIVATE: seeded`. None is the only setting that protects anybody.
    fourier : random Fourier features of a table's numeric columns together: a number, or `auto`.
    release : a release that was made already, or its folder. Then `fit` reads no record and spends nothing:
        it trains on the release. `from_release` makes such an estimator.
    training : settings of training, which are free to tune: `stages` and `noise_penalty` for an additive
        release of a table, `network`, `plan` and `draws` otherwise.

    Attributes
    ----------
    release_ : all that was learnt of the records; train on it again at no cost.
    certificate_ : what it cost, and the proof.
    model_ : the trained model.
    classes_ : class labels.
    n_features_in_, feature_names_in_ : columns, and their names where there are any.
    fits_ : how many fits this estimator and its clones have made in this process, this one included.

    Notes
    -----
    Formal guarantees. One fit costs what `certificate_` says. Several fits on the same records add up: a
    search that refits spends at each refit, and each refit warns. With `release` nothing is spent, and
    `search_on_release` searches on one release for nothing.

    There are no sample weights: a weight of 3 lets one record move a sum three times as far as the noise was
    made for. There is no `partial_fit`: each part would be a release of its own, and be charged.
    """

    _table: TableDomain | None
    _shape: tuple[int, ...] | None

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
    def from_release(cls, release: Release | str | Path, **training: Any) -> AdLMClassifier:
        """Return an estimator that is trained on a release, and again at each `fit`, for nothing.

        Parameters
        ----------
        release : the release, or its folder.
        training : what is free to tune, as for the parameter of that name; `GridSearchCV` may search over it.
            Scores on private records are statistics of them that nothing accounts for: search on public ones.
        """
        loaded = release if isinstance(release, Release) else Release.load(release)
        totals = loaded.certificate.totals
        made = cls(
            float(totals.epsilon_proved), float(totals.delta), release=release, training=training or None
        )
        return made._fit_release(loaded, None)

    def __getattr__(self, name: str) -> Any:
        """Say why there is no `partial_fit`; scikit-learn finds out by asking for it."""
        if name == "partial_fit":
            raise AttributeError(
                "AdLMClassifier has no partial_fit: each part would be a release of its own and be charged; "
                "fit once on all records, or privatise a file of any size with adlm release"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_clone__(self) -> Any:
        """Clone, and remember the family: its fits are counted together.

        A search makes its clones here, but may fit them in other processes, whose warnings nobody sees; so
        the second clone warns.
        """
        family = self._relatives()
        family.clones += 1
        if family.clones == 2 and self.release is None:
            self._warn_of_refits(stacklevel=5)
        made = _clone_parametrized(self)
        made._family = family
        return made

    def fit(self, X: Any, y: Any, **refused: Any) -> Self:
        """Make a release of the records and train on it; with `release`, train on that alone.

        Sample weights are refused, with the reason.
        """
        check_no_weights(refused)
        family = self._relatives()
        family.fits += 1
        self.fits_ = family.fits
        if self.release is not None:
            given = self.release if isinstance(self.release, Release) else Release.load(self.release)
            return self._fit_release(given, y)
        if family.fits >= 2:
            self._warn_of_refits(stacklevel=3, fit=family.fits)
        learnt = steps_before()
        if learnt:
            warnings.warn(
                f"the pipeline fitted {', '.join(learnt)} on the private records, which is not private and "
                "not in the certificate; the domain's bounds scale records already, so leave it out",
                PrivacyWarning,
                stacklevel=2,
            )
        if self.budget is not None and self.ledger is None:
            raise UserError("a budget needs a ledger to be kept in; give ledger=FILE too")
        table, domain, x, codes = self._public(X, one_column(y))
        ledger = self._ledger()  # after the records were read: a mistake in them decides no budget
        if learnt and table is not None:
            table = replace(table, bounds_learnt_from_data=True)
        batches = [(x[i : i + BATCH], codes[i : i + BATCH]) for i in range(0, len(codes), BATCH)]
        self.release_ = privatise(
            x if table is None else lambda: batches,
            codes if table is None else None,
            table or domain,
            epsilon=self.epsilon,
            delta=self.delta,
            ledger=ledger,
            seed=_seed(self.random_state),
            size=self.size,
            fourier=self.fourier,
        )
        self.model_ = train_on_release(self.release_, self.training or {})
        return self

    def _fit_release(self, release: Release, y: Any) -> Self:
        """Train on a release; labels, if there are any, say in which type classes are predicted."""
        table, domain = declared(release)
        model = train_on_release(release, self.training or {})
        if y is None:
            self.classes_ = np.array(domain.classes)
        elif table is not None:
            self.classes_, _ = labels_of(one_column(y), table)
        else:
            self.classes_, _ = coded(y, domain.encode_labels(y), domain.classes)
        self.release_, self.model_ = release, model
        self._table, self._shape = table, None if table is not None else domain.shape
        self.n_features_in_ = domain.size if table is None else len(table.features)
        names = [] if table is None else column_labels(table)
        if names:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

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
        """Say what a fit has cost, below scikit-learn's diagram; nothing before one."""
        return str(self.certificate_._repr_html_()) if hasattr(self, "release_") else ""

    @property
    def certificate_(self) -> Certificate:
        """What the release cost, and how to check it."""
        check_is_fitted(self, "release_")
        return self.release_.certificate

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return (n, M) class probabilities."""
        check_is_fitted(self, "model_")
        return self.model_.probabilities(self._records(X))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return (n,) class labels."""
        check_is_fitted(self, "model_")
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Return log odds, (n,) for two classes, or (n, M) logits."""
        check_is_fitted(self, "model_")
        logits = self.model_.logits(self._records(X)).double().numpy()
        return np.asarray(logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits)

    def save(self, folder: Path | str) -> None:
        """Write settings, release and model to a folder; no pickle."""
        check_is_fitted(self, "model_")
        summary = {
            "epsilon": str(self.epsilon), "delta": str(self.delta), "size": self.size,
            "random_state": _seed(self.random_state), "classes": self.classes_.tolist(),
            "columns": [str(name) for name in getattr(self, "feature_names_in_", [])],
            "width": int(getattr(self, "n_features_in_", 0)), "fourier": self.fourier,
        }  # fmt: skip
        with new_folder(Path(folder), what="classifier") as temporary:
            self.release_.save(temporary / "release")
            self.model_.save(temporary / "model")
            (temporary / "estimator.json").write_bytes(canonical(summary))

    @classmethod
    def load(cls, folder: Path | str) -> AdLMClassifier:
        """Read a saved classifier, checking release and model; its domain comes from the certificate."""
        folder = Path(folder)
        summary = read_json(folder / "estimator.json", what="classifier")
        release, model = Release.load(folder / "release"), Model.load(folder / "model")
        table, images = declared(release)
        domain = images if table is None else table
        made = cls(
            _number(summary["epsilon"]), _number(summary["delta"]), domain, None, summary["size"],
            summary["random_state"], summary["fourier"],
        )  # fmt: skip
        made.release_, made.model_, made.classes_ = release, model, np.array(summary["classes"])
        made._table = table
        made._shape = None if table is not None else images.shape
        made.n_features_in_ = summary["width"]
        if summary["columns"]:
            made.feature_names_in_ = np.array(summary["columns"], dtype=object)
        return made

    def _ledger(self) -> Ledger | None:
        if self.ledger is None:
            return None
        if self.budget is None:
            return Ledger(Path(self.ledger))
        return Ledger(Path(self.ledger), Budget.parse(str(self.budget)))

    def _relatives(self) -> _Family:
        if not hasattr(self, "_family"):
            self._family = _Family()
        return self._family

    def _warn_of_refits(self, stacklevel: int, fit: int | None = None) -> None:
        """Warn of each refit by its number; where clones are made and fits cannot be seen, once."""
        kept = "no ledger" if self.ledger is None else f"the ledger {self.ledger}"
        count = "are fitted several times" if fit is None else f"are fitted, for the time number {fit}"
        warnings.warn(
            f"this estimator or its clones {count}: each fit reads the records and spends epsilon "
            f"{self.epsilon}, charged to {kept}; search on one release instead "
            "(AdLMClassifier.from_release, adlm.workflows.sklearn.estimator.search_on_release)",
            PrivacyWarning,
            stacklevel=stacklevel,
        )

    def _public(
        self, X: Any, y: Any
    ) -> tuple[TableDomain | None, Domain | None, npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Find out what is public, and encode the records by it."""
        given = TableDomain.load(self.domain) if isinstance(self.domain, str | Path) else self.domain
        if isinstance(given, TableDomain) and hasattr(X, "columns"):
            self._table, self._shape = given, None
            names = column_names(X)
            self.n_features_in_ = len(names)
            self.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
            check_lengths(X, y)
            self.classes_, codes = labels_of(y, given)
            keep = kept_records(given, X)
            return given, None, encode_frame(given, X)[keep], codes[keep]
        if isinstance(given, Domain) and given.family in IMAGES:
            x = np.asarray(X)
            check_lengths(x, y)
            self._table, self._shape = None, given.shape
            self.n_features_in_ = given.size
            self.classes_, codes = coded(y, given.encode_labels(y), given.classes)
            return None, given, x, codes
        if isinstance(given, TableDomain) and given.person is not None:
            raise UserError(
                f"the domain names persons by column {given.person.name!r}; give a DataFrame with it"
            )
        x, labels = validate_data(self, X, y, dtype="numeric", ensure_min_samples=2)
        check_classification_targets(labels)
        table = given if isinstance(given, TableDomain) else array_table(x, labels, given)
        self._table, self._shape = table, None
        if isinstance(given, Domain):
            self.classes_, codes = coded(labels, given.encode_labels(labels), given.classes)
        elif given is None:
            self.classes_, codes = np.unique(labels, return_inverse=True)
        else:
            self.classes_, codes = labels_of(labels, table)
        return table, None, encode_array(table, x), codes.astype(np.int64)

    def _records(self, X: Any) -> npt.NDArray[Any]:
        if self._table is None:
            return np.asarray(X)
        if hasattr(X, "columns") and any(c.name in column_names(X) for c in self._table.features):
            return encode_frame(self._table, X)
        return encode_array(self._table, validate_data(self, X, reset=False, dtype="numeric"))


def _number(text: str) -> float | Fraction:
    """A saved epsilon or delta: exact where it was given as a fraction."""
    return Fraction(text) if "/" in text else float(text)


def _seed(random_state: Any) -> int | None:
    if random_state is None or isinstance(random_state, int | np.integer):
        return None if random_state is None else int(random_state)
    return int(random_state.randint(2**31))
