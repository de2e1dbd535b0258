"""DP-SGD with Opacus, to compare with: accounting, networks that it may train, and training.

`ABADI` has the settings of Abadi et al. 2016, which the paper used, on the paper's networks. `TANH` is
the bounded-activation network of Papernot et al. 2021 with large batches, and `LINEAR` a linear head on
the same public features that our release sums.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.paper.networks import MinMax
from adlm.privacy.accounting import Totals, gaussian_mu, parse_delta, parse_epsilon
from adlm.runtime import progress

# ---- accounting: Poisson sampling with probability q, clipping to norm C, Gaussian noise of sd sigma C.
#
# The stated epsilon is the upper bound of Opacus's PRV accountant (Gopi, Lee, Wutschitz 2021), which unlike
# RDP is tight for small budgets too; the search for sigma is by dp-accounting's PLD, which is much faster.

_MISSING = "DP-SGD needs Opacus, which is not installed here; install it with: pip install adlm[baseline]"
_PRECISION = 0.002  # relative tolerance in epsilon of the search for sigma
_LARGEST = 1e5  # largest noise multiplier tried


def require_opacus() -> None:
    """Raise an error that says what to install when Opacus is missing."""
    try:
        import opacus  # noqa: F401
    except ImportError:
        raise UserError(_MISSING) from None


def _slack(epsilon: float) -> float:
    """Tolerance of the PRV bound above the true epsilon; memory and time grow as it shrinks."""
    return max(0.004 * epsilon, 4e-4)


@lru_cache(maxsize=512)
def epsilon_spent(sigma: float, rate: float, steps: int, delta: float, about: float = 1.0) -> float:
    """Return Opacus's PRV upper bound on epsilon after `steps` steps, add-remove neighbours."""
    require_opacus()
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    with warnings.catch_warnings():
        # RDP only sets the size of the PRV's domain, where a loose bound costs memory and no tightness
        warnings.filterwarnings("ignore", "Optimal order is the (smallest|largest) alpha", UserWarning)
        return float(accountant.get_epsilon(delta, eps_error=_slack(about)))


@lru_cache(maxsize=512)
def quick_epsilon(sigma: float, rate: float, steps: int, delta: float, about: float = 1.0) -> float:
    """Return the same by dp-accounting's privacy loss distributions, pessimistic and fast."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=_PRECISION / 4 * about)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=256)
def noise_multiplier(epsilon: float, rate: float, steps: int, delta: float) -> float:
    """Return the least sigma, to 1% of epsilon, whose PRV bound does not exceed `epsilon`."""
    if not 0 < rate < 1 or steps < 1:
        raise UserError(
            f"DP-SGD needs batches smaller than the data set and a step, got rate {rate} and {steps} steps"
        )
    high = quick_multiplier(epsilon, rate, steps, delta, below=1.1 * _slack(epsilon))
    while epsilon_spent(high, rate, steps, delta, epsilon) > epsilon:
        high *= 1 + _PRECISION / 2
    return high


def quick_multiplier(epsilon: float, rate: float, steps: int, delta: float, below: float = 0.0) -> float:
    """Return the least sigma, to 0.05 %, whose `quick_epsilon` stays `below` under `epsilon`."""
    aim = epsilon - below

    def spent(sigma: float) -> float:
        return quick_epsilon(sigma, rate, steps, delta, epsilon)

    low = high = _limit(aim, rate, steps, delta)
    while spent(high) > aim:
        low, high = high, 1.1 * high
        if high > _LARGEST:
            raise UserError(f"no noise gives DP-SGD epsilon {epsilon:g} at delta {delta:g}; raise epsilon")
    while low == high or spent(low) < aim:
        low = low / 1.1
    while high - low > _PRECISION / 4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > aim else (low, middle)
    return high


def _limit(epsilon: float, rate: float, steps: int, delta: float) -> float:
    """Return sigma by the central limit of Bu et al. 2020: mu = q sqrt(T (exp(1/sigma^2) - 1))."""
    mu = float(gaussian_mu(Fraction(epsilon), Fraction(delta)))
    return 1 / math.sqrt(math.log1p(mu * mu / (rate * rate * steps)))


# ---- networks: no layer may mix the records of a batch

COUPLING = (MinMax, nn.modules.batchnorm._BatchNorm)


def uncoupled(network: nn.Module) -> nn.Module:
    """Return a copy without min-max and the like, which scale a record by the others of its batch.

    Formal guarantees
    -----------------
    The gradient of a record's loss then depends on that record alone, which the sensitivity of DP-SGD
    rests on. Layers of another kind that mix records are refused.
    """
    copied = copy.deepcopy(network)
    for name, module in list(copied.named_modules()):
        if isinstance(module, MinMax):
            parent = copied.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], nn.Identity())
        elif isinstance(module, COUPLING):
            raise UserError(
                f"DP-SGD cannot train layer {name!r} ({type(module).__name__}), which mixes the records of a "
                "batch; use group or layer normalisation"
            )
    return copied


def tanh(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The bounded-activation networks of Papernot et al. 2021, for grey and for colour images."""
    if len(shape) == 2:
        first = [nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)]
        second = [nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1)]
        return _with_dense([nn.Unflatten(1, (1, shape[0])), *first, *second], shape, classes, 32)
    if len(shape) != 3:
        raise UserError(f"the tanh network takes images, got records of shape {shape}; use a linear head")
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(itertools.pairwise([shape[0], 32, 32, 64, 64, 128, 128])):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.Tanh()]
        if index % 2:
            layers.append(nn.AvgPool2d(2))
    return _with_dense(layers, shape, classes, 128)


def _with_dense(layers: list[nn.Module], shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    with torch.no_grad():
        width = nn.Sequential(*layers, nn.Flatten())(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, classes)
    )


def linear(width: int, classes: int) -> nn.Module:
    """A linear head that starts at zero, for public features of unit norm."""
    head = nn.Linear(width, classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


# ---- settings, certificate, training

NEIGHBOURS = "add-remove"
REPLACED = (
    "the noise of add-remove for twice the clip norm: the usual rule for a replaced record, exact for whole "
    "batches; drawn in floating point"
)
NOTE = (
    "holds for Poisson sampling, which is used here, and for Gaussian noise in real numbers; the noise is "
    "drawn in floating point; add-remove is the weaker relation, a replaced record counts about twice"
)
_NO_INPUT_GRADIENT = "Full backward hook is firing when gradients are computed"
OnEpoch = Callable[[int, nn.Module], None]


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of DP-SGD.

    Attributes
    ----------
    name : of the curve.
    batch : expected batch size |L|; each record is sampled with probability |L|/n.
    epochs : passes over the data, counted in expectation.
    clip : norm C that the gradient of each record is clipped to.
    rate, rate_end : learning rate at the start and from `decay` epochs on, linear in between.
    momentum : of SGD.
    chunk : records whose gradients are held in memory at once.
    ghost : ghost clipping, without per-record gradients (Li et al. 2022): the same step, faster.
    source : where the settings come from.
    """

    name: str
    batch: int
    epochs: float
    clip: float
    rate: float
    rate_end: float | None = None
    decay: float = 10.0
    momentum: float = 0.0
    chunk: int = 2048
    ghost: bool = False
    source: str = ""

    def steps(self, n: int) -> int:
        """Number of steps of all epochs on n records."""
        return max(1, round(self.epochs * n / min(self.batch, n)))

    def learning_rate(self, epoch: float) -> float:
        """Learning rate after so many epochs."""
        if self.rate_end is None:
            return self.rate
        return self.rate + (self.rate_end - self.rate) * min(1.0, epoch / self.decay)


ABADI = Settings(
    "pSGD (Abadi et al.)",
    600,
    10,
    4.0,
    0.1,
    0.052,
    ghost=True,
    source="Abadi et al. 2016, section 5.2: MNIST",
)
ABADI_CIFAR = replace(
    ABADI, batch=2000, clip=3.0, rate=0.1, rate_end=None, source="Abadi et al. 2016, section 5.3: CIFAR-10"
)


# Rates, epochs and clips below were fixed on the last 10,000 training images of MNIST, held out for that.
TANH = Settings(
    "pSGD (tanh network)", 2048, 12, 0.1, 2.0, momentum=0.9, chunk=512, source="network: Papernot et al. 2021"
)
LINEAR = Settings(
    "pSGD (linear head)",
    8192,
    40,
    0.1,
    30.0,
    momentum=0.9,
    ghost=True,
    chunk=8192,
    source="features: this package",
)
_LINEAR_UP_TO = (
    # epsilon up to, epochs, rate: with more noise, shorter training is better
    (0.03, 5, 15.0),
    (0.07, 10, 15.0),
    (0.2, 10, 30.0),
    (0.4, 20, 20.0),
    (0.7, 40, 30.0),
    (2.0, 40, 60.0),
    (math.inf, 40, 150.0),
)


def linear_for(epsilon: float) -> Settings:
    """Settings of the linear head for a budget."""
    epochs, rate = next((e, r) for bound, e, r in _LINEAR_UP_TO if epsilon <= bound)
    return replace(LINEAR, epochs=epochs, rate=rate)


@dataclass(frozen=True)
class Certificate:
    """The privacy cost of a DP-SGD run, with the fields of a release's certificate."""

    epsilon: Fraction
    delta: Fraction
    rate: float
    steps: int
    noise_multiplier: float
    clip: float
    accountant: str = "PRV (Opacus)"
    note: str = NOTE
    neighbours: str = NEIGHBOURS

    @property
    def totals(self) -> Totals:
        """Claimed and proved epsilon: the accountant's for both."""
        return Totals(self.epsilon, self.epsilon, self.delta, self.neighbours)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values with the keys that every report uses."""
        settings = {key: v for key, v in asdict(self).items() if key not in ("epsilon", "delta")}
        return self.totals.to_dict() | settings


@dataclass(frozen=True)
class Trained:
    """A network that DP-SGD trained, and its cost."""

    network: nn.Module
    certificate: Certificate
    settings: Settings

    def accuracy(self, x: Tensor, labels: npt.NDArray[np.int64]) -> float:
        """Accuracy on records (n, *shape), scaled as in training."""
        return accuracy(self.network, x, labels)


def certify(
    settings: Settings, n: int, epsilon: object, delta: object = "1e-5", *, neighbours: str = NEIGHBOURS
) -> Certificate:
    """Choose the noise that spends at most `epsilon` over all steps, and at least 99% of it."""
    target, slack = parse_epsilon(epsilon), parse_delta(delta)
    if slack == 0:
        raise UserError("DP-SGD has no pure epsilon: give a delta such as 1e-5")
    rate, steps = min(settings.batch, n) / n, settings.steps(n)
    sigma = noise_multiplier(float(target), rate, steps, float(slack))
    spent = epsilon_spent(sigma, rate, steps, float(slack), float(target))
    if neighbours == NEIGHBOURS:
        return Certificate(Fraction(spent), slack, rate, steps, sigma, settings.clip)
    return Certificate(
        Fraction(spent), slack, rate, steps, 2 * sigma, settings.clip, note=REPLACED, neighbours=neighbours
    )


def spend(settings: Settings, n: int, sigma: float, delta: object = "1e-5") -> Certificate:
    """Return the certificate of a given noise multiplier over all steps."""
    slack = parse_delta(delta)
    rate, steps = min(settings.batch, n) / n, settings.steps(n)
    guess = quick_epsilon(sigma, rate, steps, float(slack))
    spent = epsilon_spent(sigma, rate, steps, float(slack), guess)
    return Certificate(Fraction(spent), slack, rate, steps, sigma, settings.clip)


def follow(
    network: nn.Module,
    x: Tensor,
    labels: npt.NDArray[np.int64],
    settings: Settings,
    certificate: Certificate,
    *,
    seed: int = 0,
    device: str = "cpu",
    on_epoch: OnEpoch | None = None,
) -> Trained:
    """Train a network on private records by DP-SGD, with the noise and the steps that a certificate states.

    Formal guarantees
    -----------------
    Relation: add-remove. Sensitivity: the clip norm, per record, of a sum over a Poisson sample. Guarantee:
    `Certificate`, by Opacus's PRV accountant. The seed fixes the sample and the noise: a seeded run
    repeats itself and protects nobody, which is what an experiment needs.
    """
    require_opacus()
    generator = torch.Generator().manual_seed(seed)
    y = torch.from_numpy(labels).to(device)
    x = x.to(device)
    with _opacus_run(network.to(device), settings, certificate, len(x), generator) as run:
        done = 0
        with progress.bar(certificate.steps, settings.name, "steps") as advance:
            for step in range(certificate.steps):
                rows = torch.nonzero(torch.rand(len(x), generator=generator) < certificate.rate)[:, 0]
                for group in run.optimiser.param_groups:
                    group["lr"] = settings.learning_rate(step * certificate.rate)
                run.step(x, y, rows.to(device), settings.chunk)
                advance(1)
                epoch = math.floor((step + 1.5) * certificate.rate + 1e-9)  # to the nearest step
                if on_epoch is not None and epoch > done:
                    done = epoch
                    on_epoch(epoch, network.eval())
                    network.train()
    return Trained(network.eval(), certificate, settings)


@dataclass(frozen=True)
class _Run:
    """A network wrapped by Opacus, its optimiser, and the loss that goes with them."""

    wrapped: Any
    optimiser: Any
    loss: Any

    def step(self, x: Tensor, y: Tensor, rows: Tensor, chunk: int) -> None:
        """One noisy step on a Poisson sample, its gradients computed in chunks."""
        parts = torch.split(rows, chunk) if len(rows) else (rows,)  # an empty sample still gets its noise
        for index, part in enumerate(parts):
            self.optimiser.zero_grad(set_to_none=True)
            with warnings.catch_warnings():
                # the input of the first layer needs no gradient, and the hook there does not use one
                warnings.filterwarnings("ignore", _NO_INPUT_GRADIENT, UserWarning)
                self.loss(self.wrapped(x[part]), y[part]).backward()
            self.optimiser.signal_skip_step(do_skip=index + 1 < len(parts))
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)


@contextmanager
def _opacus_run(
    network: nn.Module, settings: Settings, certificate: Certificate, n: int, generator: torch.Generator
) -> Iterator[_Run]:
    """Wrap a network and its optimiser for clipped gradients; the network is unwrapped afterwards."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    device = next(network.parameters()).device
    noise = torch.Generator(device).manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
    network.train()
    if settings.ghost:
        wrapped = GradSampleModuleFastGradientClipping(
            network, max_grad_norm=settings.clip, use_ghost_clipping=True, loss_reduction="mean", strict=True
        )
    else:
        wrapped = GradSampleModule(network, loss_reduction="mean", strict=True)
    optimiser = (DPOptimizerFastGradientClipping if settings.ghost else DPOptimizer)(
        torch.optim.SGD(wrapped.parameters(), lr=settings.rate, momentum=settings.momentum),
        noise_multiplier=certificate.noise_multiplier,
        max_grad_norm=settings.clip,
        expected_batch_size=min(settings.batch, n),
        generator=noise,
    )
    loss: Any = nn.CrossEntropyLoss()
    if settings.ghost:
        loss = DPLossFastGradientClipping(wrapped, optimiser, loss, "mean")
    try:
        yield _Run(wrapped, optimiser, loss)
    finally:
        wrapped.cleanup()


@torch.inference_mode()
def accuracy(network: nn.Module, x: Tensor, labels: npt.NDArray[np.int64], chunk: int = 2000) -> float:
    """Accuracy: the share of records whose class has the largest logit."""
    y = torch.from_numpy(labels)
    right = 0
    for start in range(0, len(x), chunk):
        predicted = network(x[start : start + chunk].to(next(network.parameters()).device)).argmax(1).cpu()
        right += int((predicted == y[start : start + chunk]).sum())
    return right / len(x)
