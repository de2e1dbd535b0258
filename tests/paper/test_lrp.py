"""Relevance propagation against a twin written from Eqs. 4-9, against captum, and by conservation."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.paper.relevance import relevance


def share(p: Tensor, weight: Tensor, bias: Tensor, above: Tensor, mu: float) -> Tensor:
    """Eqs. 4-7 for one record, one pair of neurons at a time."""
    below = torch.zeros_like(p)
    for m in range(len(above)):
        z = sum((p[q] * weight[m, q] for q in range(len(p))), start=bias[m])
        for q in range(len(p)):
            below[q] += p[q] * weight[m, q] / (z + mu if z >= 0 else z - mu) * above[m]
    return below


def as_matrix(layer: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Weight (m, p) and bias (m,) of an affine layer between flattened records, column by column."""
    size = int(torch.tensor(shape).prod())
    bias = layer(torch.zeros(1, *shape, dtype=torch.double)).detach().flatten()
    columns = [
        layer(torch.eye(size, dtype=torch.double)[q].view(1, *shape)).detach().flatten() - bias
        for q in range(size)
    ]
    return torch.stack(columns, dim=1), bias


def slow(layers: nn.Sequential, x: Tensor, mu: float) -> Tensor:
    """The twin: every affine layer as an explicit matrix, max pooling as the matrix of its winners."""
    values = [x.unsqueeze(0)]
    for layer in layers:
        values.append(layer(values[-1]).detach())
    above = torch.zeros_like(values[-1].flatten())
    top = int(values[-1].argmax())
    above[top] = values[-1].flatten()[top]
    for layer, value in zip(reversed(list(layers)), reversed(values[:-1]), strict=True):
        if isinstance(layer, nn.MaxPool2d | nn.MaxPool1d):
            pooled, where = type(layer)(layer.kernel_size, return_indices=True)(value)
            per_map = value[0, 0].numel()
            weight = torch.zeros(pooled.numel(), value.numel(), dtype=torch.double)
            for m, index in enumerate(where.flatten(2)[0].flatten()):
                channel = m // pooled[0, 0].numel()
                weight[m, channel * per_map + index] = 1
            above = share(value.flatten(), weight, torch.zeros(len(weight), dtype=torch.double), above, mu)
        elif isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d):
            above = share(value.flatten(), *as_matrix(layer, tuple(value.shape[1:])), above, mu)
    return above.view(x.shape)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(12, 7),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(7, 6),
        nn.Tanh(),
        nn.Linear(6, 3),
    ).double()


def cnn(activation: type[nn.Module] = nn.Sigmoid) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 4, 2), activation(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(4, 3)),
    ).double()


def cnn1d() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        *(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.MaxPool1d(2)), *(nn.Flatten(), nn.Linear(12, 4))
    ).double()


CASES = [(mlp, (3, 4)), (cnn, (1, 6, 6)), (cnn1d, (2, 10))]


@pytest.mark.parametrize(("make", "shape"), CASES)
@pytest.mark.parametrize("mu", [1e-6, 0.05])
def test_every_rule_agrees_with_the_equations_term_by_term(make, shape, mu) -> None:  # type: ignore[no-untyped-def]
    network = make().eval()
    x = torch.rand(3, *shape, dtype=torch.double)
    fast = relevance(network, x, mu=mu, batch_size=2).features
    for at in (0, 2):  # of the first batch, and of the second
        torch.testing.assert_close(fast[at], slow(network, x[at], mu), rtol=1e-9, atol=1e-12)


class Unrolled(nn.Module):
    """The same layers with flatten as a function, the only form captum takes."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.flatten_at = [isinstance(layer, nn.Flatten) for layer in layers].index(True)
        for name, layer in layers.named_children():
            if not isinstance(layer, nn.Flatten):
                self.add_module(f"layer{name}", layer)

    def forward(self, x: Tensor) -> Tensor:
        for name, layer in self.named_children():
            x = layer(x.flatten(1) if int(name.removeprefix("layer")) == self.flatten_at + 1 else x)
        return x


CAPTUM_CASES = [
    *((mlp, (3, 4)), (lambda: cnn(nn.Tanh), (1, 6, 6))),
    *((cnn1d, (2, 10)), (lambda: with_batch_norm(folded=True), (1, 6, 6))),
]


@pytest.mark.parametrize(("make", "shape"), CAPTUM_CASES)
@pytest.mark.parametrize("mu", [1e-9, 0.01])
def test_agrees_with_captum_under_the_epsilon_rule(make, shape, mu) -> None:  # type: ignore[no-untyped-def]
    import captum.attr
    from captum.attr._utils.lrp_rules import EpsilonRule

    network = make().eval()
    x = torch.rand(5, *shape, dtype=torch.double)
    target = network(x).argmax(1)
    ours = relevance(network, x, mu=mu).features
    for layer in network:
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.MaxPool1d | nn.MaxPool2d | nn.AvgPool2d):
            layer.rule = EpsilonRule(mu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = (
            captum.attr.LRP(Unrolled(network)).attribute(x.clone().requires_grad_(), target=target).detach()
        )
    assert (ours - theirs).norm() / theirs.norm() < 1e-4
    assert theirs.norm() > 0


@pytest.mark.parametrize(("make", "shape"), CASES)
@pytest.mark.parametrize("mu", [0.0, 1e-3, 0.1])
def test_the_outcome_is_conserved_up_to_what_bias_and_stabiliser_absorb(make, shape, mu) -> None:  # type: ignore[no-untyped-def]
    x = torch.rand(4, *shape, dtype=torch.double)
    found = relevance(make(), x, mu=mu)
    torch.testing.assert_close(
        found.features.flatten(1).sum(1) + found.bias + found.stabiliser, found.outcome
    )
    assert found.bias.abs().min() > 0
    assert (found.stabiliser.abs().max() > 0) == (mu > 0)


def test_without_biases_and_stabiliser_the_features_carry_the_whole_outcome() -> None:
    network = nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False)).double()
    found = relevance(network, torch.rand(8, 6, dtype=torch.double), mu=0.0)
    torch.testing.assert_close(found.features.sum(1), found.outcome)


class Written(nn.Module):
    """The network `cnn` written with functions and methods instead of layers."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.first, self.second, self.out = layers[0], layers[3], layers[7]

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.first(x)), 2)
        h = F.avg_pool2d(torch.sigmoid(self.second(h)), kernel_size=2)
        return self.out(F.dropout(h, 0.5, self.training).view(h.size(0), -1))  # type: ignore[no-any-return]


def test_functions_and_methods_are_followed_like_layers() -> None:
    x = torch.rand(3, 1, 6, 6, dtype=torch.double)
    torch.testing.assert_close(relevance(Written(cnn()), x).features, relevance(cnn(), x).features)


class Branched(nn.Module):
    """Two branches over rearranged input, joined, averaged over places, with constants added."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.left, self.right = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 2, 1)
        self.shift = nn.Parameter(torch.rand(5))
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = x.permute(0, 3, 1, 2)
        joined = torch.cat([torch.relu(self.left(maps)), self.right(maps).tanh()], dim=1)
        return self.out(joined.mean((2, 3)) + self.shift + 0.5)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mu", [1e-6, 0.05])
def test_branches_joins_averages_and_constants_agree_with_the_equations(mu: float) -> None:
    network = Branched().double().eval()
    x = torch.rand(2, 3, 3, 2, dtype=torch.double)
    found = relevance(network, x, mu=mu)
    torch.testing.assert_close(
        found.features.flatten(1).sum(1) + found.bias + found.stabiliser, found.outcome
    )
    for record, expected in zip(x, found.features, strict=True):
        maps = record.permute(2, 0, 1)[None]
        left, right = network.left(maps).detach().relu(), network.right(maps).detach().tanh()
        joined = torch.cat([left, right], dim=1)
        mean = joined.mean((2, 3))[0]
        shifted = mean + network.shift.detach()
        hidden = shifted + 0.5
        scores = network.out(hidden).detach()
        above = torch.zeros(3, dtype=torch.double)
        above[scores.argmax()] = scores.max()
        above = share(hidden, network.out.weight.detach(), network.out.bias.detach(), above, mu)
        above = share(shifted, torch.eye(5).double(), torch.full((5,), 0.5).double(), above, mu)
        above = share(mean, torch.eye(5).double(), network.shift.detach(), above, mu)
        average = torch.eye(5).double().repeat_interleave(9, dim=1) / 9
        above = share(joined.flatten(), average, torch.zeros(5).double(), above, mu)
        below = torch.zeros(18, dtype=torch.double)
        for layer, part in ((network.left, above[:27]), (network.right, above[27:])):
            below += share(maps.flatten(), *as_matrix(layer, (2, 3, 3)), part, mu)
        torch.testing.assert_close(expected, below.view(2, 3, 3).permute(1, 2, 0), rtol=1e-6, atol=1e-9)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5, bias=False)
        self.out = nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + F.relu(self.inner(x)))  # type: ignore[no-any-return]


def test_a_residual_sum_is_the_linear_layer_that_adds_its_two_halves() -> None:
    torch.manual_seed(3)
    network = Residual().double()
    split, add = nn.Linear(5, 10, bias=False).double(), nn.Linear(10, 5, bias=False).double()
    with torch.no_grad():
        split.weight.copy_(torch.cat([torch.eye(5), network.inner.weight]))
        add.weight.copy_(torch.cat([torch.eye(5), torch.eye(5)], dim=1))
    x = torch.rand(6, 5, dtype=torch.double)
    expected = relevance(nn.Sequential(split, nn.ReLU(), add, network.out), x, mu=1e-9)
    found = relevance(network, x, mu=1e-9)
    torch.testing.assert_close(found.features, expected.features, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(found.features.sum(1), found.outcome, rtol=1e-5, atol=1e-7)


def with_batch_norm(folded: bool) -> nn.Sequential:
    torch.manual_seed(4)
    conv, norm = nn.Conv2d(1, 3, 3).double(), nn.BatchNorm2d(3).double()
    norm.running_mean, norm.running_var = torch.randn(3).double(), torch.rand(3).double() + 0.5
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias)
    tail = (nn.ReLU(inplace=not folded), nn.Flatten(), nn.Linear(48, 4).double())
    if not folded:
        return nn.Sequential(conv, norm, *tail).eval()
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    fused = nn.Conv2d(1, 3, 3).double()
    with torch.no_grad():
        fused.weight.copy_(conv.weight * scale.view(-1, 1, 1, 1))
        fused.bias.copy_((conv.bias - norm.running_mean) * scale + norm.bias)  # type: ignore[union-attr,operator]
    return nn.Sequential(fused, *tail).eval()


def test_batch_norm_is_folded_into_the_convolution_before_it() -> None:
    x = torch.rand(3, 1, 6, 6, dtype=torch.double)
    found = relevance(with_batch_norm(folded=False), x)
    torch.testing.assert_close(found.features, relevance(with_batch_norm(folded=True), x).features)


def test_a_record_has_the_same_relevance_alone_and_in_company() -> None:
    network = nn.Sequential(with_batch_norm(folded=False)).train()
    x = torch.rand(7, 1, 6, 6, dtype=torch.double)
    together = relevance(network, x, batch_size=7).features
    torch.testing.assert_close(together[2:3], relevance(network, x[2:3]).features)
    assert network.training


def test_the_part_that_an_index_leaves_out_has_no_relevance() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, 1:]

    found = relevance(nn.Sequential(Cut(), nn.Linear(3, 2)), torch.rand(2, 4)).features
    assert not found[:, 0].any()
    assert found[:, 1:].all()


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=1)), "layer 'softmax' is not supported"),
        (nn.Sequential(nn.LSTM(4, 4)), "layer 'lstm' is not supported"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)), "couples the records"),
    ],
)
def test_an_unsupported_layer_is_named(network: nn.Module, named: str) -> None:
    with pytest.raises(UserError, match=named):
        relevance(network, torch.rand(2, 4))


@pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf")])
def test_a_stabiliser_that_is_negative_or_no_number_is_refused(mu: float) -> None:
    with pytest.raises(UserError, match="mu must be finite and not negative"):
        relevance(nn.Linear(2, 2), torch.rand(1, 2), mu=mu)
