"""Methods on image data sets, each a function from a trial to figures, and what they share.

Every outcome has the keys `accuracy` (a share of the public test split), `epsilon_claimed`, `epsilon_proved`,
`delta` and `neighbours`; curves over epochs have `history`, points of epoch and accuracy. The data sets are
public, so their features may be cached on disk; features of private records are private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from adlm.data import datasets
from adlm.domain import Domain
from adlm.engine.records import featurise
from adlm.errors import UserError
from adlm.features import Features, Narrowed, PairProducts, for_domain
from adlm.features import narrowed as features_of
from adlm.mechanism.forecast import forecast
from adlm.mechanism.planner import Plan, plan_arrays, plan_class_sums
from adlm.mechanism.privatise import release_by_plan
from adlm.model.estimates import fit_class_model
from adlm.model.fit import fit
from adlm.model.metrics import Measures, measure
from adlm.model.training import Examples, TrainingConfig, train
from adlm.paper import networks
from adlm.privacy.accounting import Budget
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime.artefact import canonical
from benchmarks import dpsgd
from benchmarks.runner import mechanism
from benchmarks.trials import Outcome, Trial

ROWS = 4000
NOTHING = "0.000001"  # an epsilon at which a release carries no information on the records

# ---- data and public features


@dataclass(frozen=True, eq=False)
class Split:
    """Records of a split as published, and their class codes."""

    x: npt.NDArray[Any]
    y: npt.NDArray[np.int64]

    def first(self, n: int | None) -> Split:
        """The first n records, or all of them."""
        return self if n is None else Split(self.x[:n], self.y[:n])


@lru_cache(maxsize=4)
def split(data: str, part: str) -> Split:
    """Load a split of a data set."""
    records = datasets.load(data, part)
    return Split(records.x, records.y)


@lru_cache(maxsize=4)
def scaled(data: str, part: str) -> Tensor:
    """Records in [0, 1], (n, *shape)."""
    return torch.from_numpy(datasets.domain(data).scale(split(data, part).x))


@lru_cache(maxsize=4)
def features(data: str) -> Features:
    """The public features for a data set."""
    return for_domain(datasets.domain(data))


@lru_cache(maxsize=8)
def vectors(data: str, part: str) -> npt.NDArray[np.float32]:
    """All features of a split, (n, width), cached on disk; without products, which are fast to compute."""
    plain = without_products(features(data))
    return featurise(split(data, part).x, datasets.domain(data), plain, cache=True)


def without_products(public: Features) -> Features:
    """Return the map whose coordinates are multiplied, if that is what features do."""
    return public.inner if isinstance(public, PairProducts) else public


@lru_cache(maxsize=4)
def fingerprint(data: str) -> str:
    """Short name of the public features of a data set; the planner chooses the products."""
    return without_products(features(data)).fingerprint()[:16]


def taken(kept: Features, z: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The features of a map that is derived from the plain one, from the plain one's."""
    if not isinstance(kept, Narrowed | PairProducts):
        return z
    made = np.empty((len(z), kept.width), np.float32)
    for start in range(0, len(z), ROWS):
        rows = slice(start, start + ROWS)
        made[rows] = kept.of(torch.from_numpy(np.array(z[rows]))).numpy()
    return made


def leading(data: str, part: str, width: int, n: int | None = None) -> tuple[Tensor, npt.NDArray[np.int64]]:
    """The leading `width` coordinates at unit norm of the first n records, and their classes."""
    z = taken(features_of(features(data), width), vectors(data, part)[:n])
    return torch.from_numpy(np.array(z)), split(data, part).y[:n]


# ---- releases


@dataclass(frozen=True)
class ReleaseRequest:
    """Settings of a release besides its budget; by default those of `adlm.privatise`.

    `n` selects the first records. `second` 0 gives class sums alone, as stored trials name it; `k` and
    `allocation` override the planner.
    """

    n: int | None = None
    neighbours: str = "replace-one"
    k: int | None = None
    second: int | None = None
    allocation: str | None = None


def domain(data: str, neighbours: str = "replace-one") -> Domain:
    """The domain of a data set under a neighbouring relation."""
    return replace(datasets.domain(data), neighbours=neighbours)


def planned(data: str, epsilon: str, delta: str, request: ReleaseRequest) -> Plan:
    """The plan that a release follows."""
    n, classes = len(split(data, "train").first(request.n).y), len(datasets.domain(data).classes)
    choose = plan_arrays if request.second is None else plan_class_sums
    return choose(
        features(data),
        n,
        classes,
        float(epsilon),
        float(delta),
        request.neighbours,
        k=request.k,
        allocation=request.allocation,
    )


def release_of(trial: Trial, request: ReleaseRequest) -> Release:
    """Make the same release as `adlm.privatise`, from cached features, with the trial's seed."""
    plan = planned(trial.data, trial.epsilon, trial.delta, request)
    released = features_of(features(trial.data), plan.k)
    codes = split(trial.data, "train").first(request.n).y
    z = taken(released, vectors(trial.data, "train")[: request.n])
    return release_by_plan(
        lambda: [(z[i : i + ROWS], codes[i : i + ROWS]) for i in range(0, len(z), ROWS)],
        domain(trial.data, request.neighbours),
        plan=plan,
        budget=Budget.of(trial.epsilon, trial.delta),
        ledger=Ledger(),
        source=Source.seeded_with(trial.entropy),
        features=released,
    )


def measured(head: nn.Module, data: str, released: Features) -> Measures:
    """Measure a head on the features of a release against the test records."""
    z = torch.from_numpy(taken(released, vectors(data, "test")))
    with torch.inference_mode():
        sure = head.eval()(z).double().softmax(1)
    return measure(sure.numpy(), split(data, "test").y)


def is_current(trial: Trial, outcome: Outcome) -> bool:
    """Whether a stored trial used today's public features, mechanism and plan."""
    if outcome.get("features") != fingerprint(trial.data):
        return False
    if not trial.ours:
        return True
    chosen = {name: v for name, v in trial.settings.items() if name in ReleaseRequest.__dataclass_fields__}
    plan = planned(trial.data, trial.epsilon, trial.delta, ReleaseRequest(**chosen))
    return bool(outcome.get("mechanism") == mechanism(plan))


# ---- methods


def moments(trial: Trial) -> Outcome:
    """A release and its model in closed form."""
    request = ReleaseRequest(**trial.settings)
    release = release_of(trial, request)
    try:
        found = measured(fit(release).head, trial.data, release.features())
        reached = {"accuracy": found.accuracy, "calibration_error": found.calibration_error}
    except UserError:  # under add-remove, the noisy counts of a small data set can sum to no records
        reached = {"accuracy": 1 / len(release.certificate.domain.classes)}
    plan = Plan.from_dict(release.certificate.settings["plan"])
    return release.certificate.totals.to_dict() | reached | {"k": plan.k, "mechanism": mechanism(plan)}


def prior(trial: Trial) -> Outcome:
    """The accuracy of the public prior alone: a release whose budget is too small to carry information."""
    return moments(replace(trial, epsilon=NOTHING))


def forecasted(trial: Trial) -> Outcome:
    """The accuracy that `adlm plan` predicts from public quantities alone, reading no record."""
    n = trial.settings.get("n") or len(split(trial.data, "train").y)
    public, classes = features(trial.data), len(datasets.domain(trial.data).classes)
    expected = forecast(public, n, classes, trial.epsilon, trial.delta, seed=trial.seed)
    return _costs(0.0, 0.0) | {"accuracy": expected.accuracy}


RIDGES = (1e-2, 3e-3, 1e-3)  # of the ceiling, chosen on a share HELD_OUT of the training records
HELD_OUT = 0.1
SCALE = 30.0  # of rows, which have length 1, while heads are long: so one step size suits both


def ceiling(trial: Trial) -> Outcome:
    """Logistic regression on the same features without noise: no privacy."""
    data = trial.data
    width, classes = features(data).width, len(datasets.domain(data).classes)
    z, y = leading(data, "train", width, trial.settings.get("n"))
    codes, centre = torch.from_numpy(y), z.mean(0)
    z -= centre
    cut = len(z) - max(1, round(HELD_OUT * len(z)))

    def accuracy(weights: Tensor, x: Tensor, answers: Tensor) -> float:
        return float((_scores(x, weights).argmax(1) == answers).double().mean())

    def held_out(ridge: float) -> float:
        return accuracy(logistic_regression(z[:cut], codes[:cut], classes, ridge), z[cut:], codes[cut:])

    weights = logistic_regression(z, codes, classes, max(RIDGES, key=held_out))
    test, answers = leading(data, "test", width)
    return _costs(None, None) | {"accuracy": accuracy(weights, test - centre, torch.from_numpy(answers))}


def logistic_regression(z: Tensor, codes: Tensor, classes: int, ridge: float) -> Tensor:
    """Fit (n, width) centred features by L-BFGS: (width + 1, classes), the intercept last."""
    weights = torch.zeros(z.shape[1] + 1, classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=60, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(_scores(z, weights), codes) + ridge * weights[:-1].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach()


def _scores(z: Tensor, weights: Tensor) -> Tensor:
    return SCALE * (z @ weights[:-1]) + weights[-1]


def psgd_network(trial: Trial) -> Outcome:
    """DP-SGD on the paper's network or on the tanh network, from pixels."""
    s = dict(trial.settings)
    shape, classes = datasets.domain(trial.data).shape, len(datasets.domain(trial.data).classes)
    torch.manual_seed(trial.entropy)
    if trial.method == "psgd-tanh":
        network = dpsgd.tanh(shape, classes)
    else:
        network = dpsgd.uncoupled(networks.build(s.pop("network"), shape, classes))
    train_, test = ((scaled(trial.data, part), split(trial.data, part).y) for part in ("train", "test"))
    return _dpsgd(trial, s, network, train_, test)


def psgd_linear(trial: Trial) -> Outcome:
    """DP-SGD on a linear head over the same public features that the release sums.

    All of them, with products of pairs where the planner uses those too.
    """
    s = dict(trial.settings)
    request = ReleaseRequest(neighbours=s.get("neighbours", "add-remove"))
    k = planned(trial.data, trial.epsilon, trial.delta, request).k
    width = max(k, without_products(features(trial.data)).width)
    network = dpsgd.linear(width, len(datasets.domain(trial.data).classes))
    return _dpsgd(trial, s, network, leading(trial.data, "train", width), leading(trial.data, "test", width))


def _dpsgd(trial: Trial, s: dict[str, Any], network: nn.Module, training: Any, test: Any) -> Outcome:
    n, shown, neighbours = s.pop("n", None), tuple(s.pop("shown", ())), s.pop("neighbours", "add-remove")
    settings = dpsgd.Settings(**s)
    history: list[tuple[int, float]] = []

    def on_epoch(epoch: int, trained: nn.Module) -> None:
        if epoch in shown:
            history.append((epoch, dpsgd.accuracy(trained, *test)))

    x, labels = training[0][:n], training[1][:n]
    certificate = dpsgd.certify(settings, len(x), trial.epsilon, trial.delta, neighbours=neighbours)
    trained = dpsgd.follow(network, x, labels, settings, certificate, seed=trial.entropy, on_epoch=on_epoch)
    accuracy = dpsgd.accuracy(trained.network, *test)
    last = math.ceil(settings.epochs)
    history = [point for point in history if point[0] != last] + [(last, accuracy)]
    return trained.certificate.to_dict() | {"accuracy": accuracy, "history": history}


def _costs(claimed: float | None, proved: float | None) -> Outcome:
    costs = {"epsilon_claimed": claimed, "epsilon_proved": proved}
    return costs | {"delta": 0.0, "neighbours": "replace-one"}


# ---- one to a thousand epochs: no cost for a release, growing cost for DP-SGD


def epochs_release(trial: Trial) -> Outcome:
    """Train a network on one release, for longer and longer: the certificate does not change."""
    s = trial.settings
    release = release_of(trial, ReleaseRequest(s.get("n"), s.get("neighbours", "replace-one")))
    before, public = canonical(release.certificate.to_dict()), release.features()
    torch.manual_seed(trial.entropy)
    classes = len(datasets.domain(trial.data).classes)
    head = nn.Sequential(nn.Linear(public.width, s["hidden"]), nn.ReLU(), nn.Linear(s["hidden"], classes))
    laws = fit_class_model(release.moments(), public.prior)
    z, codes = laws.sample(s["draws"], torch.Generator().manual_seed(trial.entropy))
    history: list[tuple[int, float, float | None]] = []

    def after_epoch(epoch: int, trained: nn.Module) -> None:
        if epoch in s["shown"]:
            proved = release.certificate.totals.to_dict()["epsilon_proved"]
            history.append((epoch, measured(trained, trial.data, public).accuracy, proved))

    plan = TrainingConfig(
        epochs=max(s["shown"]), batch_size=s["batch"], learning_rate=s["rate"], seed=trial.seed
    )
    train(head, Examples(z, codes), plan, device="cpu", after_epoch=after_epoch)
    return release.certificate.totals.to_dict() | {
        "accuracy": history[-1][1],
        "history": history,
        "certificate_unchanged": canonical(release.certificate.to_dict()) == before,
        "mechanism": mechanism(Plan.from_dict(release.certificate.settings["plan"])),
    }


def epochs_psgd(trial: Trial) -> Outcome:
    """DP-SGD on a linear head with noise that spends epsilon in `budget_epochs`, continued beyond them."""
    s = dict(trial.settings)
    n, shown, within = s.pop("n"), tuple(s.pop("shown")), s.pop("budget_epochs")
    settings = dpsgd.Settings(**s, epochs=max(shown))
    sigma = dpsgd.certify(replace(settings, epochs=within), n, trial.epsilon, trial.delta).noise_multiplier
    width = without_products(features(trial.data)).width
    z, y = leading(trial.data, "train", width, n)
    test, answers = leading(trial.data, "test", width)
    history: list[tuple[int, float, float | None]] = []

    def on_epoch(epoch: int, trained: nn.Module) -> None:
        if epoch in shown:
            spent = dpsgd.spend(replace(settings, epochs=epoch), n, sigma, trial.delta)
            history.append((epoch, dpsgd.accuracy(trained, test, answers), float(spent.epsilon)))

    certificate = dpsgd.spend(settings, n, sigma, trial.delta)
    head = dpsgd.linear(z.shape[1], len(datasets.domain(trial.data).classes))
    trained = dpsgd.follow(head, z, y, settings, certificate, seed=trial.entropy, on_epoch=on_epoch)
    return certificate.to_dict() | {
        "accuracy": dpsgd.accuracy(trained.network, test, answers),
        "history": history,
    }
