"""Layers are counted as a record meets them, however the network is written, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.paper.networks import build, layer_sizes, perturb_bias


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


def test_a_transposed_convolution_counts_the_inputs_that_meet_in_a_neuron() -> None:
    up = nn.ConvTranspose2d(2, 3, 4, stride=2, padding=1)
    weight = up.weight.detach().clone()
    found = layer_sizes(nn.Sequential(up, nn.Flatten(), nn.Linear(3 * 64, 5)), (2, 4, 4))
    assert (found.neurons, found.patch, found.places) == (3 * 8 * 8, 2 * 2 * 2, 64)
    torch.testing.assert_close(up.weight.detach(), weight)


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


def test_a_first_layer_of_an_unknown_kind_is_refused() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.by

    with pytest.raises(UserError, match="first layer with weights is Scale"):
        layer_sizes(nn.Sequential(Scale(), nn.Linear(4, 2)), (4,))
