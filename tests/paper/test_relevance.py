"""Relevance: propagation against twins, the private average, what provenance does to the proof; ratios."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adlm.domain import Domain
from adlm.errors import UserError
from adlm.paper.relevance import (
    STEPS,
    RelevanceSource,
    budget_ratios,
    private_relevance,
    relevance,
    relevance_charge,
    relevance_sum,
    scaled,
)
from adlm.paper.relevance import relevance as propagate
from adlm.privacy.accounting import Budget, compose
from adlm.privacy.clipping import ALLOCATIONS, noise_scales
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source


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


# ---- The private relevance: scaling, Lemma 1, noise, what the network's provenance does to the proof; ratios


D = 6
DOMAIN = Domain(shape=(2, 3), lower=0.0, upper=10.0, classes=("a", "b"))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(D, 5), nn.ReLU(), nn.Linear(5, 2))


def records(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 10, (n, 2, 3))


def released(x: np.ndarray, ledger: Ledger | None = None, **changes):  # type: ignore[no-untyped-def]
    explained = RelevanceSource(network(), changes.pop("provenance", "public"))
    given: dict[str, Any] = {"epsilon": Fraction(1), "source": Source.seeded_with(1)} | changes
    return private_relevance(explained, x, DOMAIN, ledger=ledger or Ledger(), **given)


def test_the_sum_is_that_of_min_max_scaled_relevances_one_record_at_a_time() -> None:
    x = records(7)
    expected = np.zeros(D)
    for record in x:
        found = propagate(network(), torch.tensor(record / 10, dtype=torch.float32)[None]).features.flatten()
        expected += ((found - found.min()) / (found.max() - found.min())).numpy()
    assert relevance_sum(network(), x, DOMAIN) / STEPS == pytest.approx(expected, abs=1e-4)


def test_scaled_relevances_span_zero_to_one_and_strange_values_do_no_harm() -> None:
    rows = torch.tensor([[3.0, -1.0, 1.0], [2.0, 2.0, 2.0], [math.nan, math.inf, 1.0], [-1e308, 1e308, 0.0]])
    found = scaled(rows.double())
    assert found[0].tolist() == [1, 0, 0.5]
    assert found[1].tolist() == [0, 0, 0]
    assert bool(((found >= 0) & (found <= 1)).all())


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 5), st.lists(st.floats(-1e6, 1e6), min_size=D, max_size=D))
def test_replacing_one_record_moves_the_sums_within_the_stated_sensitivity(
    at: int, values: list[float]
) -> None:
    x = records(6)
    charge = relevance_charge(DOMAIN, 6, Fraction(1))
    other = x.copy()
    other[at] = np.reshape(values, (2, 3))
    moved = np.abs(relevance_sum(network(), x, DOMAIN) - relevance_sum(network(), other, DOMAIN)).sum()
    assert moved <= charge.sensitivity


def test_the_paper_charge_is_half_of_what_it_claims_and_the_tight_one_is_all_of_it() -> None:
    for sensitivity, proved in (("paper", Fraction(1, 2)), ("tight", Fraction(1))):
        (charge,) = released(records(9), sensitivity=sensitivity).charges
        assert charge.epsilon_proved == proved
        assert charge.claimed == 1
        factor = 2 if sensitivity == "paper" else 1
        assert charge.scale / STEPS / 9 == Fraction(factor * D, 9)  # Delta_R / eps1 on the average


def test_noise_has_the_scale_of_lemma_2() -> None:
    """Mean |noise| over 180 draws against 2d/(n eps): a false alarm is a 6-sigma event, below 1e-8."""
    x, clean = records(2), relevance_sum(network(), records(2), DOMAIN) / STEPS / 2
    source = Source.system()
    noise = np.abs([released(x, source=source).values - clean for _ in range(30)])
    expected = 2 * D / 2
    assert abs(noise.mean() - expected) < 6 * expected / math.sqrt(noise.size)


def test_a_subset_is_drawn_at_random_and_has_its_own_size_in_the_sensitivity() -> None:
    x = records(9)
    part = released(x, rows=4)
    assert part.settings["relevance_records"] == 4
    assert part.charges[0].what.endswith("over 4 records")
    source = Source.seeded_with(1)
    chosen = source.permutation(9)[:4]
    assert chosen.tolist() != [0, 1, 2, 3]
    noise = source.laplace(D, part.charges[0].scale)
    total = relevance_sum(network(), x[chosen], DOMAIN)
    assert part.values == pytest.approx((total + noise) / (4 * STEPS))


def test_a_private_network_makes_the_proved_epsilon_infinite_and_says_why() -> None:
    (charge,) = released(records(4), provenance="private").charges
    assert math.isinf(charge.epsilon_proved)
    assert charge.claimed == 1
    assert "trained on private records" in compose([charge]).sentence()


def test_a_network_with_a_certificate_brings_its_charges_along() -> None:
    from adlm.privacy.release import Release

    first = released(records(4))
    certificate = Release.make(
        {"t": torch.zeros(1)}, kind="records", domain=DOMAIN, features={}, settings={}, charges=first.charges
    ).certificate
    second = released(records(4), provenance=certificate)
    assert compose(second.charges).epsilon_proved == 1
    assert str(second.settings["relevance_network"]).startswith("certificate ")


def test_provenance_has_no_default_and_only_three_values() -> None:
    with pytest.raises(TypeError, match="provenance"):
        RelevanceSource(network())  # type: ignore[call-arg]
    with pytest.raises(UserError, match="'public', 'private' or a certificate"):
        released(records(4), provenance="trusted")


def test_an_overspent_ledger_stops_the_release_before_noise_is_drawn() -> None:
    class Silent(Source):
        def octets(self, count: int):  # type: ignore[no-untyped-def]
            raise AssertionError("noise was drawn")

    ledger = Ledger(budget=Budget(Fraction(1, 10)))
    with pytest.raises(UserError, match="overspent"):
        released(records(4), ledger, source=Silent(bytes(32), seeded=True))
    assert ledger.charges == ()


class OverTheBatch(nn.Module):
    """Min-max over the batch: harmless on a release, fatal on records."""

    lrp_pass_through = True

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return (h - h.amin(0)) / (h.amax(0) - h.amin(0) + 1e-6)


def test_a_network_that_couples_records_is_refused_before_anything_is_charged() -> None:
    coupled, ledger = nn.Sequential(nn.Flatten(), OverTheBatch(), nn.Linear(D, 2)), Ledger()
    with pytest.raises(UserError, match="depends on the other records"):
        private_relevance(
            RelevanceSource(coupled, "public"),
            records(4),
            DOMAIN,
            epsilon=Fraction(1),
            ledger=ledger,
            source=Source.system(),
        )
    assert ledger.charges == ()


class Capacity(nn.Module):
    """Takes eight records of a batch, as experts with a capacity do; the probe has no more."""

    lrp_pass_through = True

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h * (torch.arange(len(h)) < 8)[:, None]


def test_a_network_explains_each_record_alone_also_where_its_batches_would_couple_them() -> None:
    crowded, x = nn.Sequential(nn.Flatten(), Capacity(), nn.Linear(D, 2)), records(12)
    alone = sum(relevance_sum(crowded, x[i : i + 1], DOMAIN) for i in range(12))
    assert relevance_sum(crowded, x, DOMAIN).tolist() == np.asarray(alone).tolist()
    assert relevance_sum(crowded, x[8:], DOMAIN).any()


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.sampled_from(ALLOCATIONS))
def test_ratios_are_never_negative_and_always_sum_to_d(relevance: list[float], allocation: str) -> None:
    beta = budget_ratios(allocation, relevance)
    assert (beta >= 0).all()
    assert beta.sum() == pytest.approx(len(relevance))


def test_linear_ratios_are_equation_15_term_by_term() -> None:
    relevance = [0.2, -0.5, 0.0, 1.3]
    total = sum(abs(r) for r in relevance)
    assert budget_ratios("linear", relevance) == pytest.approx([4 * abs(r) / total for r in relevance])
    assert budget_ratios("identical", size=3).tolist() == [1, 1, 1]
    assert (
        budget_ratios("identical", [0.1, 0.9]).tolist()
        == budget_ratios("linear", [0.0, 0.0]).tolist()
        == [1, 1]
    )


def test_a_feature_without_relevance_is_withheld_and_its_budget_goes_to_the_others() -> None:
    for allocation in ("linear", "optimal"):
        with_it = budget_ratios(allocation, [0.0, 1.0, 3.0])
        without = budget_ratios(allocation, [1.0, 3.0])
        assert with_it[0] == 0
        assert with_it[1:] == pytest.approx(without * 3 / 2)


def test_ratios_and_scales_agree_for_features_of_range_one() -> None:
    relevance = np.array([0.1, 0.7, 0.4])
    for allocation in ALLOCATIONS:
        scales = noise_scales(allocation, np.ones(3), relevance**2, cost=3)
        assert 1 / scales == pytest.approx(budget_ratios(allocation, relevance))


def test_the_paper_allocation_loses_to_identical_noise_when_errors_cost_the_relevance_itself() -> None:
    weight = np.array([1e-4, 1.0])  # w = |R|, so the paper's eps_j is proportional to w, not to its root
    scales = 1 / budget_ratios("linear", weight)
    assert (
        weight * scales**2
    ).sum() > weight.sum()  # error sum_j w_j b_j^2, with b_j = 1 for identical noise


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="between 1 and 4 records"):
        released(records(4), rows=5)
    with pytest.raises(UserError, match="sensitivity must be one of paper, tight"):
        released(records(4), sensitivity="loose")
    with pytest.raises(UserError, match="allocation must be one of identical, linear, optimal"):
        budget_ratios("quadratic", [1.0])
    with pytest.raises(UserError, match="needs the relevance"):
        budget_ratios("linear")
    with pytest.raises(UserError, match="finite numbers"):
        budget_ratios("linear", [float("nan")])
