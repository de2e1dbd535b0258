"""From a release to a model: draws of a release, and networks that fit what it gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adlm import Release, TrainingConfig, UserError, fit, privatise
from adlm.data import datasets
from adlm.model.closed_form import closed_form_model
from adlm.model.draws import labelled_draws

TEST = datasets.load("digits", "test")


@pytest.fixture(scope="module")
def digits() -> Release:
    train = datasets.load("digits", "train")
    return privatise(train.x, train.y, domain=train.domain, epsilon=8, delta="1e-5", seed=1)


def test_draws_lie_between_classes_and_the_head_labels_them(digits: Release) -> None:
    features = digits.features()
    examples, _ = labelled_draws(digits, features, 4000)
    head = closed_form_model(digits, features).head
    torch.testing.assert_close(examples.target, head(examples.x).softmax(1))
    z, _ = digits.sample(4000)
    wide = nn.functional.pad(z, (0, features.width - z.shape[1]))
    assert examples.target.amax(1).mean() < head(wide).softmax(1).amax(1).mean() - 0.05


def test_a_network_is_not_worse_than_the_closed_form_by_more_than_a_point(digits: Release) -> None:
    """360 test records of a seeded release; the network's seed is fixed too."""
    plan = TrainingConfig(steps=700, batch_size=200, learning_rate=3e-3, schedule="cosine")
    accuracy = [float((fit(digits, n, plan).predict(TEST.x) == TEST.y).mean()) for n in (None, "mlp")]
    assert accuracy[1] >= accuracy[0] - 0.01
    kind = fit(
        digits, "auto-encoder", TrainingConfig(steps=300, batch_size=100, learning_rate=5e-3), draws=2000
    )
    assert float((kind.predict(TEST.x) == TEST.y).mean()) > 0.6


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 2, 3)), "yours failed on it: "),
        (nn.LazyLinear(7), r"yours gives \(2, 7\)"),
    ],
)
def test_a_network_of_another_shape_is_told_what_the_release_gives_and_takes(
    digits: Release, network: nn.Module, why: str
) -> None:
    width = digits.features().width
    taken = (
        rf"gives vectors of {width} features, so a network must map \(n, {width}\) to \(n, 10\), and {why}"
    )
    with pytest.raises(UserError, match=taken):
        fit(digits, network)
