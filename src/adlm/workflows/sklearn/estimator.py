"""A classifier with the scikit-learn API: `fit` makes one release and trains on it.

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

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from adlm.analyst.class_weights import with_class_weights
from adlm.analyst.model import Model
from adlm.analyst.search import Search as Search
from adlm.analyst.search import search_on_release as search_on_release
from adlm.errors import UserError
from adlm.privacy.release import Release
from adlm.public.domain import Domain
from adlm.public.domain.encoding import encode_frame
from adlm.public.domain.table import TableDomain
from adlm.readers.frames import kept_records
from adlm.workflows.options import Fourier
from adlm.workflows.sklearn.inputs import PrivacyWarning as PrivacyWarning
from adlm.workflows.sklearn.inputs import (
    array_table,
    check_lengths,
    check_no_person,
    class_labels,
    column_labels,
    declared,
    encode_array,
    label_codes,
    one_column,
)
from adlm.workflows.sklearn.private import PrivateEstimator

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
    `search_on_release` searches on one release for nothing.

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
    ) -> None:
        super().__init__(
            epsilon, delta, domain, ledger, size, random_state, fourier, budget, release, training
        )
        self.class_weight = class_weight

    def _trained(self, release: Release) -> Model:
        """Train on a release; class weights are by label, as in `classes_`, or by name."""
        weights = self.class_weight
        if weights is not None and not isinstance(weights, str):
            if not isinstance(weights, Mapping):
                raise UserError(f"class_weight is a dict of labels or 'balanced' (got {weights!r})")
            names = release.certificate.domain.classes
            weights = {self._name_of(label, names): weight for label, weight in weights.items()}
        return with_class_weights(super()._trained(release), release, weights)

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
            codes = label_codes(y, given)
            self.classes_ = class_labels(given.label.classes)
            keep = kept_records(given, X, codes)
            return given, encode_frame(given, X)[keep], codes[keep]
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
