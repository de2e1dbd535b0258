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
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin, _clone_parametrized
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from adlm.analyst import tables
from adlm.analyst.fit import fit as fit_release
from adlm.analyst.model import Model
from adlm.artefact import canonical, new_folder, read_json
from adlm.curation import privatise
from adlm.curator.ledger import Ledger
from adlm.curator.persons import Persons
from adlm.errors import UserError
from adlm.privatise_table import Fourier, privatise_encoded
from adlm.public.columns import Column
from adlm.public.domain import Domain
from adlm.public.encoding import encode_frame, encode_labels
from adlm.public.tables import TableDomain
from adlm.release import Certificate, Release
from adlm.search import Search as Search
from adlm.search import search_on_release as search_on_release

BATCH = 8192
IMAGES = ("drawn", "garments", "natural")


class PrivacyWarning(UserWarning):
    """Something that is allowed, and that costs privacy."""


class AdLMClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A private classifier: `fit` reads the records, makes one release, and trains on the release alone.

    Parameters
    ----------
    epsilon, delta : the privacy budget of each fit; delta 0 is pure epsilon.
    domain : what is public: a `TableDomain` or a domain file (for DataFrames), a `Domain` (for arrays), or
        None. None learns bounds and classes from the data, warns, and stamps the certificate.
    ledger : file that every fit is charged to before noise is drawn; None keeps no account.
    size : public guess of the number of records, needed where that number is private.
    random_state : a whole number makes the noise repeatable: the certificate is then stamped
        `NOT PRIVATE: seeded`. None is the only setting that protects anybody.
    fourier : random Fourier features of a table's numeric columns together: a number, or `auto`.

    Attributes
    ----------
    release_ : all that was learnt of the records; train on it again at no cost.
    certificate_ : what it cost, and the proof.
    model_ : the trained model.
    classes_ : class labels.

    Formal guarantees
    -----------------
    One fit costs what `certificate_` says. Several fits on the same records add up: a search that refits
    spends at each refit. `search_on_release` searches on one release for nothing.
    """

    _table: TableDomain | None
    _shape: tuple[int, ...] | None

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 0.0,
        domain: TableDomain | Domain | str | Path | None = None,
        ledger: str | Path | None = None,
        size: int | None = None,
        random_state: int | None = None,
        fourier: Fourier = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.domain = domain
        self.ledger = ledger
        self.size = size
        self.random_state = random_state
        self.fourier = fourier

    def __sklearn_clone__(self) -> Any:
        """Clone, and remember the family: its fits are counted together."""
        if not hasattr(self, "_fits"):
            self._fits = [0]
        made = _clone_parametrized(self)
        made._fits = self._fits
        return made

    def fit(self, X: Any, y: Any) -> Self:
        """Make a release of the records and train on it."""
        self._warn_of_refits()
        table, domain, x, codes = self._public(X, y)
        seed = _seed(self.random_state)
        ledger = Ledger(Path(self.ledger)) if self.ledger is not None else None
        if table is not None:
            passes = [(x[i : i + BATCH], codes[i : i + BATCH]) for i in range(0, len(codes), BATCH)]
            self.release_ = privatise_encoded(
                lambda: passes, table, epsilon=self.epsilon, delta=self.delta, ledger=ledger, seed=seed,
                size=self.size, fourier=self.fourier,
            )  # fmt: skip
            self.model_ = tables.train(self.release_)
        else:
            assert domain is not None
            if self.fourier:
                raise UserError("fourier is for tables; leave it at 0 for images")
            self.release_ = privatise(
                x, codes, domain=domain, epsilon=self.epsilon, delta=self.delta, ledger=ledger, seed=seed,
                size=self.size,
            )  # fmt: skip
            self.model_ = fit_release(self.release_)
        return self

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
        told = {
            "epsilon": str(self.epsilon), "delta": str(self.delta), "size": self.size,
            "random_state": _seed(self.random_state), "classes": self.classes_.tolist(),
            "columns": [str(name) for name in getattr(self, "feature_names_in_", [])],
            "width": int(getattr(self, "n_features_in_", 0)), "fourier": self.fourier,
        }  # fmt: skip
        with new_folder(Path(folder), what="classifier") as temporary:
            self.release_.save(temporary / "release")
            self.model_.save(temporary / "model")
            (temporary / "estimator.json").write_bytes(canonical(told))

    @classmethod
    def load(cls, folder: Path | str) -> AdLMClassifier:
        """Read a saved classifier, checking release and model; its domain comes from the certificate."""
        folder = Path(folder)
        told = read_json(folder / "estimator.json", what="classifier")
        release, model = Release.load(folder / "release"), Model.load(folder / "model")
        spec = release.certificate.features["spec"]
        table = spec.get("name") == "tabular"
        domain = TableDomain.from_dict(spec["table"]) if table else release.certificate.domain
        made = cls(
            float(told["epsilon"]), float(told["delta"]), domain, None, told["size"], told["random_state"],
            told["fourier"],
        )  # fmt: skip
        made.release_, made.model_, made.classes_ = release, model, np.array(told["classes"])
        made._table = domain if isinstance(domain, TableDomain) else None
        made._shape = None if table else release.certificate.domain.shape
        made.n_features_in_ = told["width"]
        if told["columns"]:
            made.feature_names_in_ = np.array(told["columns"], dtype=object)
        return made

    def _warn_of_refits(self) -> None:
        if not hasattr(self, "_fits"):
            self._fits = [0]
        self._fits[0] += 1
        if self._fits[0] == 2:
            warnings.warn(
                "this estimator and its clones are fitted again: each fit reads the records and spends "
                f"epsilon {self.epsilon}; search on one release instead (adlm.estimator.search_on_release)",
                PrivacyWarning,
                stacklevel=3,
            )

    def _public(
        self, X: Any, y: Any
    ) -> tuple[TableDomain | None, Domain | None, npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Find out what is public, and encode the records by it."""
        given = TableDomain.load(self.domain) if isinstance(self.domain, str | Path) else self.domain
        if isinstance(given, TableDomain) and hasattr(X, "columns"):
            self._table, self._shape = given, None
            self.n_features_in_ = len(X.columns)
            self.feature_names_in_ = np.array([str(name) for name in X.columns], dtype=object)
            check_consistent_length(X, y)
            self.classes_, codes = _labels(y, given)
            keep = _bounded(given, X)
            return given, None, encode_frame(given, X)[keep], codes[keep]
        if isinstance(given, Domain) and given.family in IMAGES:
            x = np.asarray(X)
            check_consistent_length(x, y)
            self._table, self._shape = None, given.shape
            self.n_features_in_ = given.size
            self.classes_, codes = _coded(y, given.encode_labels(y), given.classes)
            return None, given, x, codes
        if isinstance(given, TableDomain) and given.person is not None:
            raise UserError(
                f"the domain names persons by column {given.person.name!r}; give a DataFrame with it"
            )
        x, labels = validate_data(self, X, y, dtype="numeric", ensure_min_samples=2)
        check_classification_targets(labels)
        table = given if isinstance(given, TableDomain) else _array_table(x, labels, given)
        self._table, self._shape = table, None
        if isinstance(given, Domain):
            self.classes_, codes = _coded(labels, given.encode_labels(labels), given.classes)
        elif given is None:
            self.classes_, codes = np.unique(labels, return_inverse=True)
        else:
            self.classes_, codes = _labels(labels, table)
        return table, None, _encode_array(table, x), codes.astype(np.int64)

    def _records(self, X: Any) -> npt.NDArray[Any]:
        if self._table is None:
            return np.asarray(X)
        if hasattr(X, "columns") and any(c.name in list(X.columns) for c in self._table.features):
            return encode_frame(self._table, X)
        return _encode_array(self._table, validate_data(self, X, reset=False, dtype="numeric"))


def _seed(random_state: Any) -> int | None:
    if random_state is None or isinstance(random_state, int | np.integer):
        return None if random_state is None else int(random_state)
    return int(random_state.randint(2**31))


def _bounded(table: TableDomain, frame: Any) -> npt.NDArray[np.bool_]:
    """Which records to keep: the first few of each person, as the domain allows; all without a person."""
    if table.person is None:
        return np.ones(len(frame), dtype=np.bool_)
    name = table.person.name
    if name not in list(frame.columns):
        raise UserError(f"the domain bounds records by person, but there is no column {name!r}; add it")
    with Persons(name, table.person.records) as persons:
        return persons.keep(pa.array(frame[name].astype(str)))


def _labels(y: Any, table: TableDomain) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    return _coded(y, encode_labels(table.label, y), table.label.classes)


def _coded(
    y: Any, codes: npt.NDArray[np.int64], names: tuple[str, ...]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Class labels in the type that the user gave: names for texts, numbers for numbers."""
    kind = np.asarray(y).dtype
    if kind.kind not in "iuf":
        return np.array(names), codes
    whole = (
        [int(name) for name in names] if all(n.lstrip("-").isdigit() for n in names) else range(len(names))
    )
    return np.array(list(whole), dtype=kind), codes


def _array_table(x: npt.NDArray[Any], y: npt.NDArray[Any], domain: Domain | None) -> TableDomain:
    """A table of numeric columns, with the bounds of a domain, or bounds learnt from data with a warning."""
    if domain is None:
        warnings.warn(
            "no domain was given: bounds and classes are learnt from the data, which is not private; the "
            "certificate says so",
            PrivacyWarning,
            stacklevel=4,
        )
        low, high = x.min(0).astype(float), x.max(0).astype(float)
        names: tuple[str, ...] = tuple(str(v) for v in np.unique(y))
        if len(names) < 2:
            raise UserError(
                "Classifier can't train when only one class is present; give at least two classes"
            )
        relation = "replace-one"
    else:
        if x.shape[1] != domain.size:
            raise UserError(f"records have {x.shape[1]} features, the domain has {domain.size}")
        low, high = np.broadcast_to(domain.lower, x.shape[1]), np.broadcast_to(domain.upper, x.shape[1])
        names, relation = domain.classes, domain.neighbours
    high = np.where(high > low, high, low + 1.0)
    columns = [Column(f"x{j}", "numeric", float(low[j]), float(high[j])) for j in range(x.shape[1])]
    label = Column("label", "label", classes=names)
    return TableDomain((*columns, label), neighbours=relation, bounds_learnt_from_data=domain is None)


def _encode_array(table: TableDomain, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Encode an array whose columns stand in the order of the table's."""
    if x.shape[1] != len(table.features):
        raise UserError(f"records have {x.shape[1]} columns, the table has {len(table.features)}")
    return encode_frame(table, _Columns([c.name for c in table.features], x))


class _Columns:
    """The columns of an array, by name."""

    def __init__(self, names: list[str], x: npt.NDArray[Any]) -> None:
        self.columns, self._x = names, x

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return np.ascontiguousarray(self._x[:, self.columns.index(name)])
