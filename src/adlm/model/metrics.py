"""Metrics of predictions against known labels or values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from adlm.errors import UserError

BINS = 15


@dataclass(frozen=True)
class Measures:
    """Measures of a classifier on n labelled records.

    Attributes
    ----------
    accuracy : share of records that are classified correctly.
    balanced_accuracy : mean recall over present classes.
    recalls : recall by class; None for a class without records.
    auc : area under the ROC curve: of class 1 for two classes, else the mean of one class against the rest;
        None where only one class is present.
    calibration_error : mean gap between confidence and accuracy over 15 bins of confidence.
    log_loss : mean of minus the logarithm of the probability of the true class.
    confusion : confusion[i][j] records of class i were predicted as class j.
    """

    n: int
    accuracy: float
    balanced_accuracy: float
    auc: float | None
    calibration_error: float
    log_loss: float
    confusion: tuple[tuple[int, ...], ...]
    recalls: tuple[float | None, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self) | {
            "confusion": [list(row) for row in self.confusion],
            "recalls": list(self.recalls),
        }


@dataclass(frozen=True)
class NumericMeasures:
    """Measures of predictions of a numeric target on n records.

    Attributes
    ----------
    rmse : root of the mean squared error, in the units of the target.
    mae : mean absolute error, in the units of the target.
    r2 : share of the variance of the target that is explained; None where the target does not vary.
    bias : mean of prediction less truth.
    """

    n: int
    rmse: float
    mae: float
    r2: float | None
    bias: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def measure_values(predicted: npt.ArrayLike, truth: npt.ArrayLike) -> NumericMeasures:
    """Measure (n,) predictions against (n,) true values of a numeric target."""
    p, y = np.asarray(predicted, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    if p.ndim != 1 or p.shape != y.shape or not len(y):
        raise UserError(f"measuring needs n predictions and n values, got {p.shape} and {y.shape}")
    error, around = p - y, y - y.mean()
    variance = float((around**2).mean())
    return NumericMeasures(
        n=len(y),
        rmse=float(np.sqrt((error**2).mean())),
        mae=float(np.abs(error).mean()),
        r2=1 - float((error**2).mean()) / variance if variance > 0 else None,
        bias=float(error.mean()),
    )


def measure(probabilities: npt.ArrayLike, codes: npt.ArrayLike) -> Measures:
    """Measure (n, M) class probabilities against (n,) class codes."""
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(codes, dtype=np.int64)
    if p.ndim != 2 or len(p) != len(y) or len(y) == 0:
        raise UserError(f"measuring needs (n, M) probabilities and n labels, got {p.shape} and {y.shape}")
    classes, guess = p.shape[1], p.argmax(1)
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (y, guess), 1)
    present = confusion.sum(1) > 0
    recalls = confusion.diagonal()[present] / confusion.sum(1)[present]
    return Measures(
        n=len(y),
        accuracy=float((guess == y).mean()),
        balanced_accuracy=float(recalls.mean()),
        auc=_auc(p, y),
        calibration_error=_calibration_error(p.max(1), guess == y),
        log_loss=float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean()),
        confusion=tuple(tuple(int(v) for v in row) for row in confusion),
        recalls=tuple(float(row[i] / row.sum()) if row.sum() else None for i, row in enumerate(confusion)),
    )


def _auc(p: npt.NDArray[np.float64], y: npt.NDArray[np.int64]) -> float | None:
    columns = [1] if p.shape[1] == 2 else range(p.shape[1])
    areas = [_area(p[:, c], y == c) for c in columns if 0 < (y == c).sum() < len(y)]
    return float(np.mean(areas)) if areas else None


def _area(score: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> float:
    """Return the share of (positive, negative) pairs in the right order; a tie counts half."""
    ones, zeros = int(positive.sum()), int((~positive).sum())
    return float((rankdata(score)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _calibration_error(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> float:
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(right))
