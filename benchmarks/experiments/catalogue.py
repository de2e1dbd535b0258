"""The experiments by name, and the trials of their presets.

`quick` takes minutes on two cores: where it trains a narrower network than the paper's, the paper's sizes
still set the sensitivities. `full` is the paper's scale; its duration is estimated before it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from adlm.errors import UserError
from benchmarks.baselines import dpsgd
from benchmarks.experiments import TITLES, ablation
from benchmarks.experiments.paper_readings import CIFAR_SPLIT
from benchmarks.experiments.trials import Trial

Preset = Literal["quick", "full"]
PRESETS = ("quick", "full")
FRONTIER = ("0.02", "0.05", "0.1", "0.25", "0.5", "1", "2", "3", "8")
DELTA = "1e-5"


@dataclass(frozen=True)
class Group:
    """Trials that share a method: every epsilon with every seed."""

    method: str
    epsilons: tuple[str, ...]
    seeds: int
    delta: str = "0"
    settings: dict[str, Any] | Callable[[str], dict[str, Any]] = field(default_factory=dict)

    def settings_at(self, epsilon: str) -> dict[str, Any]:
        """The settings at an epsilon."""
        return self.settings(epsilon) if callable(self.settings) else self.settings


@dataclass(frozen=True)
class Experiment:
    """A question, the trials that answer it, and the pairs of methods that are tested against each other.

    Attributes
    ----------
    kind : `paper`, `ablation`, `frontier`, `epochs`, `search` or `allocation`: which tables and
        figures are made.
    curves : epsilons whose accuracy is drawn over epochs, as in the paper's Figs. 4b-c and 5b-c.
    """

    name: str
    data: str
    kind: str
    quick: tuple[Group, ...]
    full: tuple[Group, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    curves: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its question, in a line."""
        return TITLES[self.name]

    def trials(
        self,
        preset: str,
        *,
        epsilons: Sequence[str] | None = None,
        seeds: int | None = None,
        methods: Sequence[str] | None = None,
    ) -> list[Trial]:
        """The trials of a preset, with epsilons, seeds and methods optionally replaced.

        Parameters
        ----------
        preset : `quick` or `full`.
        epsilons, seeds, methods : instead of the preset's.
        """
        if preset not in PRESETS:
            raise UserError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
        groups = self.quick if preset == "quick" else self.full
        known = list(dict.fromkeys(group.method for group in groups))
        for method in methods or ():
            if method not in known:
                raise UserError(f"{self.name} has no method {method!r}; it has {', '.join(known)}")
        if seeds is not None and seeds < 1:
            raise UserError(f"there must be at least one seed, got {seeds}")
        trials = [
            Trial(group.method, self.data, epsilon, group.delta, seed, group.settings_at(epsilon))
            for group in groups
            if methods is None or group.method in methods
            for epsilon in (group.epsilons if group.epsilons == ("0",) else epsilons or group.epsilons)
            for seed in range(seeds or group.seeds)
        ]
        # two groups of a method have the same trials where their epsilons are changed to the same ones
        return list({trial.key: trial for trial in trials}.values())


def _dpsgd(settings: dpsgd.Settings, **changes: Any) -> dict[str, Any]:
    return asdict(settings) | changes


def _longer(epsilon: str, epochs: float) -> float:
    """Epochs of DP-SGD (Abadi et al.): its authors train for longer where the budget is larger."""
    return epochs if float(epsilon) <= 0.5 else max(epochs, 40)


def _abadi(settings: dpsgd.Settings, **changes: Any) -> Callable[[str], dict[str, Any]]:
    return lambda epsilon: _dpsgd(settings, **changes, epochs=_longer(epsilon, settings.epochs))


def _paper(
    abadi: dpsgd.Settings,
    scale: dict[str, Any],
    epsilons: tuple[str, ...],
    tested: tuple[str, ...],
    seeds: int,
    chunk: int,
    epochs: float | None = None,
) -> tuple[Group, ...]:
    """Every reading of the paper's noise and the control without, pSGD on the same network, our release.

    Methods that are tested against each other have three seeds or more at the epsilons ``tested``.
    """
    changes = {"n": scale["n"], "shown": [], "network": scale["network"], "ghost": False, "chunk": chunk}

    def psgd(epsilon: str) -> dict[str, Any]:
        return _dpsgd(abadi, **changes, epochs=_longer(epsilon, abadi.epochs) if epochs is None else epochs)

    def read(method: str, reading: str, at: tuple[str, ...], seeds: int) -> Group:
        return Group(method, at, seeds, settings=scale | {"reading": reading})

    others = tuple(epsilon for epsilon in epsilons if epsilon not in tested)
    pair = (("adlm-shared", "shared"), ("ilm-shared", "shared"), ("ilm-shared-total", "shared"))
    single: tuple[tuple[str, str], ...] = (
        ("ilm-shared-own-labels", "shared-own-labels"),
        ("ilm-one-image", "one-image"),
        ("adlm-own-once", "own-once"),
        ("ilm-own-once", "own-once"),
        ("ilm-own-redrawn", "own-redrawn"),
    )
    if "split" in scale:  # their code for CIFAR-10 draws one image for many epochs
        single = (("adlm-one-image", "one-image"), *single)
    return (
        read("no-noise", "no-noise", ("0",), seeds),
        *(read(method, reading, tested, max(3, seeds)) for method, reading in pair),
        *(read(method, reading, others, seeds) for method, reading in pair if others),
        *(read(method, reading, epsilons, seeds) for method, reading in single),
        Group("psgd-abadi", tested, max(3, seeds), DELTA, psgd),
        Group("moments-pure", epsilons, max(3, seeds), settings={"n": scale["n"]}),
        Group("moments", epsilons, max(3, seeds), DELTA, {"n": scale["n"]}),
    )


_READ = {"n": None, "delta_h0": "per-patch", "train_batch": 300, "rate": 1e-3}
_MNIST = _READ | {"sized": "authors-mnist", "batch": 1800}
_CIFAR = _READ | {"sized": "authors-cifar10", "batch": 7200, "split": list(CIFAR_SPLIT)}
_ABLATION = tuple(Group(method, ("0.5",), 1, settings=changed) for method, changed in ablation.CHANGES)
PAIRS = (
    ("adlm-shared", "ilm-shared"),
    ("adlm-shared", "ilm-shared-total"),
    ("adlm-shared", "psgd-abadi"),
    ("ilm-shared", "psgd-abadi"),
    ("ilm-own-once", "psgd-abadi"),
    ("moments", "psgd-abadi"),
)


def _frontier(
    data: str,
    *,
    quick: tuple[Group, ...],
    full: tuple[Group, ...],
    epsilons: tuple[str, ...] = FRONTIER,
) -> Experiment:
    def ours(seeds: int) -> tuple[Group, ...]:
        return (
            Group("moments-pure", epsilons, seeds),
            Group("moments", epsilons, seeds, DELTA),
            Group("moments-add-remove", epsilons, seeds, DELTA, {"neighbours": "add-remove"}),
            Group("plan-pure", epsilons, 1),
            Group("plan", epsilons, 1, DELTA),
            Group("ceiling", ("0",), 1),
            Group("prior", ("0",), seeds),
        )

    pairs = (
        ("moments", "psgd-tanh"),
        ("moments", "psgd-linear-replace-one"),
        ("moments-add-remove", "psgd-linear"),
        ("moments", "psgd-abadi"),
    )
    return Experiment(f"frontier-{data}", data, "frontier", ours(5) + quick, ours(10) + full, pairs=pairs)


def _linear(epsilons: tuple[str, ...], seeds: int, **changes: Any) -> tuple[Group, Group]:
    """DP-SGD on a linear head under both relations, with the settings that suit each budget.

    Under replace-one the noise is twice as large, so the settings are those of half the epsilon.
    """

    def replaced(epsilon: str) -> dict[str, Any]:
        return _dpsgd(dpsgd.linear_for(float(epsilon) / 2), **changes, neighbours="replace-one")

    return (
        Group("psgd-linear", epsilons, seeds, DELTA, lambda e: _dpsgd(dpsgd.linear_for(float(e)), **changes)),
        Group("psgd-linear-replace-one", epsilons, seeds, DELTA, replaced),
    )


_EPOCHS = (1, 10, 100, 1000)

# From pixels, (b) is slow and far behind (b) on public features: the quick presets have it for MNIST alone.
_GARMENTS_QUICK = (
    *_linear(FRONTIER, 2),
    Group("psgd-abadi", FRONTIER, 1, DELTA, _abadi(dpsgd.ABADI, network="mlp")),
)
_GREY_QUICK = (
    *_GARMENTS_QUICK,
    Group("psgd-tanh", ("0.25", "0.5"), 1, DELTA, _dpsgd(dpsgd.TANH)),
)
_GREY_FULL = (
    *_linear(FRONTIER, 5),
    Group("psgd-tanh", FRONTIER, 5, DELTA, _dpsgd(dpsgd.TANH)),
    Group("psgd-abadi", FRONTIER, 5, DELTA, _abadi(dpsgd.ABADI, network="paper-mnist", ghost=False)),
)
_COLOUR_QUICK = (
    *_linear(FRONTIER, 2),
    Group("psgd-abadi", ("0.5", "3", "8"), 1, DELTA, _abadi(dpsgd.ABADI_CIFAR, network="mlp")),
)
_COLOUR_FULL = (
    *_linear(FRONTIER, 5),
    Group("psgd-tanh", FRONTIER, 5, DELTA, _dpsgd(dpsgd.TANH, epochs=30, chunk=512)),
    Group(
        "psgd-abadi",
        FRONTIER,
        5,
        DELTA,
        _abadi(dpsgd.ABADI_CIFAR, network="paper-cifar10", chunk=200, ghost=False),
    ),
)


def _postprocessing(
    n: int | None, psgd_n: int, seeds: int, draws: int, trials: int
) -> tuple[Experiment, Experiment]:
    grow = {"n": n, "shown": list(_EPOCHS), "draws": draws, "hidden": 64, "batch": 500, "rate": 1e-3}
    linear = {k: v for k, v in _dpsgd(dpsgd.LINEAR, n=psgd_n).items() if k != "epochs"}
    share = _dpsgd(dpsgd.linear_for(0.5 / 20))  # 200 trials within 0.5 have about a twentieth of it each
    epochs = (
        Group("epochs-release", ("0.5",), seeds, DELTA, grow),
        # one seed: a thousand epochs of it take as long as all else here, and seeds differ by 0.1 points
        Group("epochs-psgd", ("0.5",), 1, DELTA, linear | {"shown": list(_EPOCHS), "budget_epochs": 10}),
    )
    search = (
        Group("search-release", ("0.5",), seeds, DELTA, {"n": n, "draws": 4000, "trials": trials}),
        Group(
            "search-psgd", ("0.5",), seeds, DELTA, _dpsgd(dpsgd.LINEAR, n=psgd_n, trials=trials, within=share)
        ),
    )
    return (
        Experiment("epochs", "mnist", "epochs", epochs, epochs),
        Experiment("search", "mnist", "search", search, search),
    )


def _allocation(widths: tuple[int, ...], seeds: int) -> tuple[Group, ...]:
    """Class sums alone at a fixed width, identical noise against noise by relevance; pure and not."""
    return tuple(
        Group(
            f"{method}{suffix}",
            ("0.05", "0.25"),
            seeds,
            delta,
            {"k": k, "second": 0, "allocation": allocation, "wide": max(widths)},
        )
        for suffix, delta in (("-pure", "0"), ("", DELTA))
        for k in widths
        for method, allocation in (("ilm-moments", "identical"), ("adlm-moments", "optimal"))
    )


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "paper-mnist",
            "mnist",
            "paper",
            _paper(
                dpsgd.ABADI,
                _MNIST | {"network": "authors-mnist-quarter", "steps": 400},
                ("0.25", "0.5", "2", "8"),
                ("0.25", "0.5"),
                1,
                600,
                1,
            ),
            _paper(
                dpsgd.ABADI,
                _MNIST | {"network": "authors-mnist", "steps": 4000},
                ("0.25", "0.5", "2", "8"),
                ("0.25", "0.5", "2", "8"),
                3,
                600,
            ),
            PAIRS,
            ("0.25", "0.5"),
        ),
        Experiment(
            "paper-cifar10",
            "cifar10",
            "paper",
            _paper(
                dpsgd.ABADI_CIFAR,
                _CIFAR | {"network": "authors-cifar10", "steps": 300, "train_batch": 60},
                ("2.5", "8"),
                ("2.5",),
                1,
                200,
                0.2,
            ),
            _paper(
                dpsgd.ABADI_CIFAR,
                _CIFAR | {"network": "authors-cifar10", "steps": 5000, "train_batch": 60},
                ("0.5", "2.5", "8"),
                ("0.5", "2.5", "8"),
                3,
                200,
            ),
            PAIRS,
            ("2.5", "8"),
        ),
        Experiment(
            "paper-ablation",
            "mnist",
            "ablation",
            _ABLATION,
            _ABLATION,
        ),
        _frontier("mnist", quick=_GREY_QUICK, full=_GREY_FULL),
        _frontier(
            "fashion-mnist",
            quick=_GARMENTS_QUICK,
            full=_GREY_FULL,
        ),
        _frontier("cifar10", quick=_COLOUR_QUICK, full=_COLOUR_FULL),
        _frontier("digits", quick=(), full=(), epsilons=(*FRONTIER[:-1], "4", "8")),
        *_postprocessing(None, 60_000, 2, 5000, 200),
        Experiment(
            "allocation",
            "mnist",
            "allocation",
            _allocation((60, 200, 400, 800), 8),
            _allocation((60, 200, 400, 800), 20),
        ),
    )
}


def named(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise UserError(f"there is no experiment {name!r}; choose from {', '.join(EXPERIMENTS)}, or all")
    return EXPERIMENTS[name]
