"""The paper's networks and layers: sizes, bounds, formulas, and relevance through all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.paper.networks import (
    NETWORKS,
    LocalResponseNorm,
    MinMax,
    batch_size,
    build,
    layer_sizes,
    name_of,
    perturb_bias,
    proposed,
)
from adlm.paper.relevance import relevance


def test_local_response_normalisation_is_its_formula_neuron_by_neuron() -> None:
    torch.manual_seed(0)
    h = torch.relu(torch.randn(2, 9, 3, 4, dtype=torch.double)) * 30
    found = LocalResponseNorm(q=2, l=5, alpha=1e-2, beta=0.75)(h)
    assert bool((found == 1).any() and (found < 0.9).any())
    for n, k, i, j in torch.cartesian_prod(*(torch.arange(s) for s in h.shape)).tolist():
        around = sum(float(h[n, m, i, j]) ** 2 for m in range(max(0, k - 2), min(8, k + 2) + 1))
        expected = float(h[n, k, i, j]) / max(float(h[n, k, i, j]), (2 + 1e-2 * around) ** 0.75)
        assert float(found[n, k, i, j]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("beta", [0.75, 0.5])
@pytest.mark.parametrize("shape", [(2, 7, 3, 3), (2, 4, 5)])
def test_the_derivative_by_hand_is_that_of_the_formula(beta: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = LocalResponseNorm(alpha=0.1, beta=beta)
    h = (torch.randn(shape, dtype=torch.double) * 3).requires_grad_()
    weight = torch.randn(shape, dtype=torch.double)
    slow, fast = layer.eval()(h), layer.train()(h)
    torch.testing.assert_close(slow, fast)
    assert bool((fast == 1).any())
    (expected,) = torch.autograd.grad((slow * weight).sum(), h)
    (found,) = torch.autograd.grad((fast * weight).sum(), h)
    torch.testing.assert_close(found, expected)


def test_normalised_neurons_stay_in_the_unit_interval_however_large_they_were() -> None:
    h = torch.relu(torch.randn(4, 6, 5, 5)) * 1e4
    assert 0 <= float(LocalResponseNorm()(h).min()) <= float(LocalResponseNorm()(h).max()) <= 1
    assert float(nn.LocalResponseNorm(5, 1e-4, 0.75, 2.0)(h).max()) > 1
    dense = MinMax(3)
    assert float(dense(torch.randn(8, 3) * 100).max()) == pytest.approx(1)
    assert float(dense.eval()(torch.randn(8, 3) * 1e6).max()) <= 1


def test_min_max_uses_the_batch_while_training_and_nothing_of_it_in_evaluation() -> None:
    dense = MinMax(2)
    first = torch.tensor([[0.0, -4.0], [10.0, 4.0]])
    torch.testing.assert_close(dense(first), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    dense(first + 10)
    torch.testing.assert_close(dense.low, torch.tensor([1.0, -3.0]))
    dense.eval()
    alone = dense(torch.tensor([[5.0, 0.0]]))
    together = dense(torch.tensor([[5.0, 0.0], [99.0, -99.0]]))
    torch.testing.assert_close(alone[0], together[0])


def test_a_constant_neuron_is_not_divided_by_zero() -> None:
    assert torch.isfinite(MinMax(2)(torch.ones(5, 2))).all()


def test_the_paper_network_for_mnist_has_the_sizes_of_the_text() -> None:
    network = build("paper-mnist", (28, 28), 10)
    sizes = [tuple(p.shape) for name, p in network.named_parameters() if name.endswith("weight")]
    assert sizes == [(32, 1, 5, 5), (64, 32, 5, 5), (25, 64 * 7 * 7), (10, 25)]
    found = layer_sizes(network, (28, 28))
    assert (found.neurons, found.features, found.hidden) == (25_088, 784, 25)
    assert found.counted == 2 * 25_088 * 784
    assert found.per_patch == 9_800


def test_the_paper_network_for_cifar10_has_the_sizes_of_the_text() -> None:
    network = build("paper-cifar10", (3, 32, 32), 10)
    sizes = [tuple(p.shape) for name, p in network.named_parameters() if name.endswith("weight")]
    assert sizes == [(128, 3, 3, 3), (128, 128, 5, 5), (256, 128, 5, 5), (30, 256 * 16), (10, 30)]
    assert layer_sizes(network, (3, 32, 32)).neurons == 128 * 32 * 32


NOT_EXPLAINED = ("attention", "recurrent")  # relevance cannot be followed through them


@pytest.mark.parametrize("name", NOT_EXPLAINED)
def test_a_network_that_reads_place_by_place_says_that_it_cannot_be_explained(name: str) -> None:
    with pytest.raises(UserError, match="relevance"):
        relevance(build(name, (12, 12), 4), torch.rand(3, 12, 12))


@pytest.mark.parametrize("name", sorted(set(NETWORKS) - set(NOT_EXPLAINED)))
def test_every_network_gives_class_scores_and_can_be_explained(name: str) -> None:
    torch.manual_seed(0)
    shape = {"cnn1d": (30,), "paper-cifar10": (3, 8, 8), "authors-cifar10": (3, 26, 26)}.get(name, (12, 12))
    network = build(name, shape, 4)
    x = torch.rand(3, *shape)
    network(x)
    found = relevance(network, x)
    assert found.features.shape == x.shape
    assert network.eval()(x).shape == (3, 4)
    assert float(found.features.abs().sum()) > 0
    torch.testing.assert_close(
        found.features.flatten(1).sum(1) + found.bias + found.stabiliser, found.outcome, rtol=1e-3, atol=1e-4
    )


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="network must be one of paper-mnist"):
        build("resnet", (28, 28), 10)
    with pytest.raises(UserError, match="choose mlp"):
        build("paper-mnist", (14,), 2)
    with pytest.raises(UserError, match="no first layer"):
        layer_sizes(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4)), (4,))


@pytest.mark.parametrize(
    ("shape", "name"),
    [((7,), "mlp"), ((8, 8), "paper-mnist"), ((1, 28, 28), "paper-mnist"), ((3, 32, 32), "paper-cifar10")],
)
def test_records_of_each_shape_have_a_network_that_takes_them(shape: tuple[int, ...], name: str) -> None:
    assert proposed(shape) == name
    network = build(name, shape, 3).eval()
    assert network(torch.rand(2, *shape)).shape == (2, 3)
    assert name_of(network) == name
    assert "built_as" not in network.state_dict()


def test_batch_sizes_are_the_papers_for_its_networks_and_1800_for_others() -> None:
    assert [batch_size(name) for name in ("paper-cifar10", "paper-mnist", "mlp", None)] == [7200] + 3 * [1800]


# ---- Layers are counted as a record meets them, however the network is written


class Recurrent(nn.Module):
    """The rows of an image as a series."""

    def __init__(self, kind: Any = nn.LSTM, **options: bool) -> None:
        super().__init__()
        self.series = kind(8, 32, batch_first=True, **options)
        self.out = nn.Linear(64 if options.get("bidirectional") else 32, 10)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.series(x)[0][:, -1])
        return answer


class Pooled(nn.Module):
    """A convolution whose pooling is a function, not a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Conv2d(1, 6, 5, padding=2), nn.Linear(6 * 49, 10)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(F.adaptive_avg_pool2d(self.first(x[:, None]).relu(), 7).flatten(1))
        return answer


def test_a_recurrent_layer_counts_every_gate_at_every_step() -> None:
    found = layer_sizes(Recurrent(), (8, 8))
    assert (found.neurons, found.patch, found.hidden, found.outputs) == (8 * 4 * 32, 8, 32, 10)
    assert found.counted == 131_072
    assert layer_sizes(Recurrent(nn.GRU), (8, 8)).neurons == 8 * 3 * 32
    assert layer_sizes(Recurrent(nn.RNN, bidirectional=True), (8, 8)).neurons == 8 * 2 * 32


def test_the_bias_of_the_layer_that_meets_the_record_is_perturbed_and_no_other() -> None:
    network = Recurrent()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    perturb_bias(network, (8, 8), -3.0)
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (-3.0 if name.startswith("series.bias") else 1))


def test_pooling_by_a_function_or_to_a_given_size_is_counted() -> None:
    assert layer_sizes(Pooled(), (28, 28)).per_patch == 2 * 49 * 25
    head = (nn.AdaptiveMaxPool2d(7), nn.Flatten(), nn.Linear(6 * 49, 10))
    layers = nn.Sequential(nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), *head)
    assert layer_sizes(layers, (28, 28)).per_patch == 2_450


def test_attention_counts_queries_keys_and_values_of_every_place() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = layer_sizes(nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3)), (5, 8))
    assert (found.neurons, found.patch, found.hidden) == (5 * 3 * 8, 8, 40)


def test_the_authors_networks_count_what_their_code_states() -> None:
    assert layer_sizes(build("authors-mnist", (28, 28), 10), (28, 28)).per_patch == 9_800
    assert layer_sizes(build("authors-cifar10", (3, 32, 32), 10), (3, 32, 32)).per_patch == 5_400
    assert layer_sizes(build("paper-cifar10", (3, 32, 32), 10), (3, 32, 32)).per_patch == 13_824


def test_maps_that_are_mixed_before_the_next_layer_cannot_be_counted_per_patch() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = nn.Conv1d(1, 3, 3, padding=1), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.out(self.first(x[:, None]).mean(1))
            return answer

    found = layer_sizes(Mixed(), (4,))
    assert found.counted == 2 * 12 * 4
    with pytest.raises(UserError, match="cannot be counted per patch"):
        _ = found.per_patch


@pytest.mark.parametrize("first", [nn.PReLU(), nn.Embedding(2, 3), nn.ConvTranspose1d(1, 1, 1)])
def test_a_first_layer_whose_neurons_cannot_be_counted_is_refused(first: nn.Module) -> None:
    class After(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = first, nn.LazyLinear(2)

        def forward(self, x: Tensor) -> Tensor:
            x = x.long() if isinstance(self.first, nn.Embedding) else x[:, None]
            answer: Tensor = self.out(self.first(x).flatten(1))
            return answer

    network = After()
    network(torch.zeros(1, 4))
    if isinstance(first, nn.PReLU):  # an activation is no layer
        assert layer_sizes(network, (4,)).neurons == 2
        return
    with pytest.raises(UserError, match=f"first layer with weights is {type(first).__name__}"):
        layer_sizes(network, (4,))
