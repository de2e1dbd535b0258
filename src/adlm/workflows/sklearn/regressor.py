"""A regressor with the scikit-learn API: `fit` makes one release and trains on it.

>>> from sklearn.datasets import load_diabetes
>>> from adlm import AdLMRegressor
>>> from adlm.public.domain import Domain
>>> x, y = load_diabetes(return_X_y=True)
>>> domain = Domain((10,), -0.2, 0.2, (), target=(0, 400))
>>> model = AdLMRegressor(epsilon=3, delta=1e-5, domain=domain).fit(x, y)
>>> model.certificate_.totals.neighbours
'replace-one'
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from adlm.errors import UserError
from adlm.privacy.release import Release
from adlm.public.domain.encoding import encode_frame, encode_target
from adlm.public.domain.table import TableDomain
from adlm.readers.frames import kept_records
from adlm.workflows.sklearn.inputs import check_no_person, declared, encode_array, target_table
from adlm.workflows.sklearn.private import PrivateEstimator


class AdLMRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A private regressor: `fit` reads the records, makes one release, and trains on it alone.

    Parameters
    ----------
    epsilon, delta : the privacy budget of each fit, a number or an exact one such as "1/3"; delta 0 is pure
        epsilon.
    domain : the public domain: a `TableDomain` or a domain file with a column of kind target (for
        DataFrames), a `Domain` with `target=(lower, upper)` (for arrays), or None. None learns bounds from
        the data, warns, and stamps the certificate.
    ledger, budget : file that every fit is charged to before noise is drawn, and the total that it may be
        charged; as for `AdLMClassifier`.
    size : public guess of the number of records, needed where that number is private.
    random_state : an integer makes the noise reproducible: the certificate is then stamped
        `NOT PRIVATE: seeded`. Only None protects the records.
    fourier : random Fourier features of the numeric columns together: a number, or `auto`; 0 is the rule's.
    release : an existing release, or its folder. Then `fit` reads no record and spends nothing.
    training : settings of training; a regression model has none so far.

    Attributes
    ----------
    release_ : the release of the records.
    certificate_ : its privacy cost, and the proof.
    model_ : the trained model; `model_.training` has the R2 that was released and charged.
    n_features_in_, feature_names_in_ : number of columns, and their names if any.
    fits_ : number of fits of this estimator and its clones in this process, this one included.

    Notes
    -----
    Formal guarantees. One fit costs what `certificate_` says. Several fits on the same records add up: a
    search that refits spends at each refit, and each refit warns. With `release` nothing is spent.

    A model whose released R2 is no better than the mean's predicts the mean, with a warning in
    `model_.training["warning"]`. There are no sample weights and no `partial_fit`; see `AdLMClassifier`.
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
                keep = kept_records(given, X)
                positions = encode_target(given.target, y, given.missing)
                return given, encode_frame(given, X)[keep], positions[keep]
            check_no_person(given)
        x, values = validate_data(self, X, y, dtype="numeric", ensure_min_samples=2, y_numeric=True)
        table = given if isinstance(given, TableDomain) else target_table(x, values, given)
        self._table, self._shape = table, None
        assert table.target is not None
        return table, encode_array(table, x), encode_target(table.target, values, table.missing)
