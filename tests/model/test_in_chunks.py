"""A batch in chunks gives what the whole batch gives: the same outcome, the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adlm.model.training import Examples, TrainingConfig, separable, train
from adlm.model.training import forward_in_chunks as forward
from adlm.paper.networks import build


def gradients(network: nn.Module, outcome: Tensor, y: Tensor) -> list[Tensor]:
    network.zero_grad()
    torch.nn.functional.cross_entropy(outcome, y).backward()  # type: ignore[no-untyped-call]
    return [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("name", ["small-cnn", "cnn1d"])
def test_outcome_and_gradients_are_those_of_the_whole_batch(name: str) -> None:
    torch.manual_seed(0)
    shape = (12, 12) if name == "small-cnn" else (24,)
    network = build(name, shape, 3).train()
    x, y = torch.rand(50, *shape), torch.arange(50) % 3
    whole = network(x)
    chunked = forward(network, x, rows=16)
    torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=1e-4)
    expected = gradients(network, network(x), y)
    found = gradients(network, forward(network, x, rows=16), y)
    assert any(part.abs().max() > 0 for part in expected)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-3)


def test_layers_that_look_at_the_batch_or_are_unknown_end_the_chunks() -> None:
    network = build("paper-mnist", (28, 28), 10)
    assert isinstance(network, nn.Sequential)
    assert type(network[separable(network)]).__name__ == "MinMax"
    convolution = nn.Conv2d(1, 2, 3)
    assert separable(nn.Sequential(convolution, nn.BatchNorm2d(2), nn.ReLU())) == 1

    class Mixing(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    assert separable(nn.Sequential(convolution, Mixing())) == 1
    assert separable(nn.Sequential(Mixing(), convolution)) == 0
    assert separable(build("mlp", (28, 28), 10)) == 0  # nothing to gain
    assert separable(convolution) == 0


def test_a_layer_that_mixes_records_sees_all_of_them() -> None:
    """The min-max layer scales by the batch's extremes: they must be those of the batch, not of a chunk."""
    torch.manual_seed(1)
    one = build("small-cnn", (12, 12), 3).train()
    two = build("small-cnn", (12, 12), 3).train()
    two.load_state_dict(one.state_dict())
    x = torch.rand(40, 12, 12) * torch.linspace(0.1, 1, 40)[:, None, None]
    forward(one, x, rows=8)
    two(x)
    for name, buffer in two.named_buffers():
        torch.testing.assert_close(one.get_buffer(name), buffer)


def test_training_goes_in_chunks() -> None:
    seen: list[int] = []
    network = build("small-cnn", (12, 12), 3)
    assert isinstance(network, nn.Sequential)
    next(m for m in network if isinstance(m, nn.Conv2d)).register_forward_hook(
        lambda layer, given, made: seen.append(len(made))
    )
    train(
        network,
        Examples(torch.rand(300, 12, 12), torch.arange(300) % 3),
        TrainingConfig(epochs=1, batch_size=300),
    )
    assert seen == [100, 256, 44, 100]  # a few are asked for before and after, which must not get far worse
