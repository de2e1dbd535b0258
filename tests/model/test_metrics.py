"""Measures agree with scikit-learn's, which know nothing of ours."""

from __future__ import annotations

import numpy as np
import pytest

from adlm.errors import UserError
from adlm.model.metrics import measure
from sklearn import metrics


@pytest.mark.parametrize("classes", [2, 4])
def test_measures_agree_with_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    p = rng.dirichlet(np.ones(classes), 300).round(2) + 1e-6
    p /= p.sum(1, keepdims=True)
    y = rng.integers(0, classes, 300)
    found = measure(p, y)
    assert found.accuracy == pytest.approx(metrics.accuracy_score(y, p.argmax(1)))
    assert found.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(y, p.argmax(1)))
    assert found.log_loss == pytest.approx(metrics.log_loss(y, p))
    assert np.array(found.confusion).tolist() == metrics.confusion_matrix(y, p.argmax(1)).tolist()
    assert found.recalls == pytest.approx(metrics.recall_score(y, p.argmax(1), average=None))
    auc = (
        metrics.roc_auc_score(y, p[:, 1]) if classes == 2 else metrics.roc_auc_score(y, p, multi_class="ovr")
    )
    assert found.auc == pytest.approx(auc)


def test_a_calibrated_guess_has_no_calibration_error_and_a_boastful_one_has() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 50_000)
    right = rng.uniform(size=50_000) < confidence
    p = np.stack([confidence, 1 - confidence], 1)
    assert measure(p, np.where(right, 0, 1)).calibration_error < 0.02
    boastful = np.tile([0.99, 0.01], (50_000, 1))
    assert measure(boastful, np.where(right, 0, 1)).calibration_error > 0.2


def test_one_class_has_no_area_and_an_absent_one_no_recall() -> None:
    found = measure([[0.9, 0.1]], [0])
    assert found.auc is None
    assert found.recalls == (1.0, None)
    assert found.to_dict()["recalls"] == [1.0, None]


def test_labels_that_do_not_fit_are_one_sentence() -> None:
    with pytest.raises(UserError, match="n labels"):
        measure([[0.5, 0.5]], [0, 1])
