"""Labelled draws of a release with gradient rounds."""

from __future__ import annotations

import pytest
import torch

from adlm import Release, TrainingConfig, fit, privatise
from adlm.data import datasets
from adlm.model.closed_form import usable_head
from adlm.model.estimates import fit_class_model
from adlm.model.fit import labelled_draws


@pytest.fixture(scope="module")
def digits() -> Release:
    train = datasets.load("digits", "train")
    return privatise(train.x, train.y, domain=train.domain, epsilon=8, delta="1e-5", seed=1)


def test_draws_lie_between_classes_and_the_head_labels_them(digits: Release) -> None:
    features = digits.features()
    examples, _ = labelled_draws(digits, features, 4000, TrainingConfig(steps=1))
    head = usable_head(digits, features)
    width = head.weight.shape[1]
    assert isinstance(examples.target, torch.Tensor)
    assert torch.allclose(examples.target, head(examples.x[:, :width].double()).softmax(1).float(), atol=1e-6)
    of_classes = fit_class_model(digits.moments(), features.prior).sample(4000)[0]
    amid = head(of_classes.double()).softmax(1).amax(1)
    assert examples.target.amax(1).mean() < amid.mean() - 0.05


def test_a_network_is_not_worse_than_the_closed_form_by_more_than_a_point(digits: Release) -> None:
    """360 test records of a seeded release; the network's seed is fixed too."""
    test = datasets.load("digits", "test")
    accuracy = [float((fit(digits, name).predict(test.x) == test.y).mean()) for name in (None, "mlp")]
    assert accuracy[1] >= accuracy[0] - 0.01
