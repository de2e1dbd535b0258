"""The comparisons of the bench, each a function that gives ratios."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlm.bench.ratio import Ratio, exponent, interleave, ratio
from adlm.bench.subjects import Figures, measure, write_table
from adlm.curator.noise import Source, laplace

DRAWS = 60_000 * 784  # MNIST: a draw for each pixel


@dataclass(frozen=True)
class Scale:
    """How much work to do; ratios hardly depend on it, their spread does."""

    quick: bool
    repeats: int
    kymatio_python: str = sys.executable
    data: str = "mnist"


def noise(scale: Scale) -> list[Ratio]:
    """Exact Laplace draws against numpy's float ones and against opendp's exact ones."""
    draws = 2_000_000 if scale.quick else DRAWS
    part = min(draws, 4_704_000)
    chance, source = np.random.default_rng(), Source.system()
    sample = 2_000 if scale.quick else 20_000
    opendp = _opendp(sample)
    laplace(1000, 1 << 30, source)

    def clock(draw: Any, count: int) -> float:
        start = time.perf_counter()
        for begin in range(0, count, part):
            draw(min(part, count - begin))
        return count / (time.perf_counter() - start)

    actions = {
        "exact": lambda: clock(lambda size: laplace(size, 1 << 30, source), draws),
        "numpy": lambda: clock(lambda size: chance.laplace(size=size), draws),
    }
    if opendp is not None:
        actions["opendp"] = lambda: clock(lambda size: opendp(), sample)
    rates = interleave(actions, scale.repeats)
    detail = {"draws": draws}
    found = [
        ratio("noise: exact Laplace rate over numpy's float rate", rates["exact"], rates["numpy"],
              sense="at least", asked=0.2, detail=detail)
    ]  # fmt: skip
    name = "noise: exact Laplace rate over opendp's"
    if opendp is None:
        return [*found, Ratio(name, None, note="opendp is not installed: pip install opendp")]
    more = ratio(name, rates["exact"], rates["opendp"], sense="at least", asked=100, detail=detail)
    return [*found, more]


def _opendp(sample: int) -> Any | None:
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    measurement = dp.m.make_laplace(*space, scale=float(1 << 30))
    zeros = [0] * sample
    return lambda: measurement(zeros)


def featurising(scale: Scale) -> list[Ratio]:
    """Scattering of 28x28 images against kymatio's, and all of our feature map against it too."""
    from adlm.public.features.prior import PriorProjection
    from adlm.public.features.scattering import Scattering

    images, threads = (1000 if scale.quick else 4000), torch.get_num_threads()
    x = torch.rand(images, 28, 28)
    own, whole = Scattering((28, 28), 2, 8), PriorProjection("drawn")

    def clock(module: torch.nn.Module) -> float:
        with torch.inference_mode():
            module(x[:8])
            start = time.perf_counter()
            for part in torch.split(x, 500):
                module(part)
            return images / (time.perf_counter() - start)

    def theirs() -> float:
        script = Path(__file__).with_name("kymatio_rate.py")
        words = [scale.kymatio_python, str(script), str(images), "28", str(threads)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return images / float(done.stdout.strip().splitlines()[-1])

    names = (
        "features: scattering rate over kymatio's",
        "features: whole map's rate over kymatio's scattering",
    )
    try:
        theirs()
    except (subprocess.CalledProcessError, OSError, ValueError):
        note = (
            f"kymatio cannot be run by {scale.kymatio_python}: it needs an environment of its own with an "
            "older SciPy (pip install kymatio==0.3.0 scipy==1.11.4), named by --kymatio-python"
        )
        return [Ratio(name, None, note=note) for name in names]
    rates = interleave(
        {"own": lambda: clock(own), "kymatio": theirs, "whole": lambda: clock(whole)}, scale.repeats
    )
    detail = {"images": images, "threads": threads}
    return [
        ratio(names[0], rates["own"], rates["kymatio"], sense="at least", asked=5, detail=detail),
        ratio(names[1], rates["whole"], rates["kymatio"], detail=detail),
    ]


def training(scale: Scale) -> list[Ratio]:
    """An epoch on a record release against plain PyTorch on raw records and against Opacus."""
    given = {"n": 1800 if scale.quick else 9000, "batch": 1800, "network": "paper-mnist"}
    kinds = ("epoch-release", "epoch-plain", "epoch-opacus")
    rounds = _measured({kind: (kind, given) for kind in kinds}, scale.repeats)
    seconds = {kind: [figures["seconds"] for figures in rounds[kind]] for kind in kinds}
    peak = {kind: [figures["peak"] for figures in rounds[kind]] for kind in kinds}
    own, plain, opacus = kinds
    return [
        ratio("epoch: record release over plain PyTorch, time", seconds[own], seconds[plain],
              sense="at most", asked=1.05, detail=given),
        ratio("epoch: record release over Opacus, time", seconds[own], seconds[opacus],
              sense="at most", asked=0.45, detail=given),
        ratio("epoch: record release over plain PyTorch, peak memory", peak[own], peak[plain],
              sense="at most", asked=1.1, detail=given),
        ratio("epoch: Opacus over plain PyTorch, time", seconds[opacus], seconds[plain], detail=given),
    ]  # fmt: skip


def pipeline(scale: Scale) -> list[Ratio]:
    """Raw data to an evaluated model at epsilon 0.5, against DP-SGD to its own best accuracy."""
    from adlm.baselines import dpsgd

    n = 6000 if scale.quick else None
    release = {"data": scale.data, "n": n, "epsilon": "0.5"}
    opacus = release | {"epochs": 1 if scale.quick else None}
    with tempfile.TemporaryDirectory() as cache:
        measure("pipeline-release", release | {"cache": True, "at": cache})
        rounds = _measured(
            {
                "raw": ("pipeline-release", release | {"cache": False}),
                "cached": ("pipeline-release", release | {"cache": True, "at": cache}),
                "opacus": ("pipeline-opacus", opacus),
            },
            min(scale.repeats, 3),
        )
    seconds = {name: [figures["seconds"] for figures in found] for name, found in rounds.items()}
    note = f"{dpsgd.TANH.epochs:g} epochs from the time of 1, on {n} records" if scale.quick else ""
    detail = {"accuracy_" + name: found[0]["accuracy"] for name, found in rounds.items()}
    return [
        ratio("raw data to evaluated model: Opacus over ours", seconds["opacus"], seconds["raw"],
              sense="at least", asked=10, note=note, detail=detail),
        ratio("raw data to evaluated model, features kept: Opacus over ours", seconds["opacus"],
              seconds["cached"], note=note, detail=detail),
    ]  # fmt: skip


def growth(scale: Scale) -> list[Ratio]:
    """How time and memory of a release grow: exponents over doubled sizes."""
    base = 2000 if scale.quick else 5000
    sizes = [base, 2 * base, 4 * base]
    sides = [14, 28, 56]
    widths = [100, 200, 400]
    found = [
        *_exponents("record release, time over n", "records", "n", sizes, {}, scale, asked=1.1),
        *_exponents("record release, time over d", "records", "side", sides, {"n": base}, scale, power=2),
        *_exponents(
            "moment release, time over n", "moments", "n", [20 * s for s in sizes], {"k": 100}, scale
        ),
        *_exponents("moment release, time over k", "moments", "k", widths, {"n": 4 * base}, scale),
    ]
    few, many = 4 * base, 16 * base  # enough for memory to show over what a process takes anyway
    rounds = _measured({str(n): ("records", {"n": n}) for n in (few, many)}, scale.repeats)
    grown = [
        (large["peak"] - small["peak"]) / (large["input"] - small["input"])
        for small, large in zip(rounds[str(few)], rounds[str(many)], strict=True)
    ]
    ones = [1.0] * len(grown)
    found.append(
        ratio("record release, bytes of memory for each further byte of records", grown, ones,
              sense="at most", asked=2, note="the records themselves are in memory: 1 is the least")
    )  # fmt: skip
    return found


def tables(scale: Scale) -> list[Ratio]:
    """Peak memory of a release from a table file 4 and 16 times as long."""
    base = 20_000 if scale.quick else 100_000
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for times in (1, 4, 16):
            files[times] = Path(folder) / f"{times}.csv"
            write_table(files[times], times * base)
        rounds = _measured(
            {str(times): ("table", {"file": str(file)}) for times, file in files.items()}, scale.repeats
        )
    peak = {name: [figures["peak"] for figures in found] for name, found in rounds.items()}
    seconds = {name: [figures["seconds"] for figures in found] for name, found in rounds.items()}
    slopes = [exponent([1, 4, 16], [seconds[t][i] for t in ("1", "4", "16")]) for i in range(scale.repeats)]
    detail = {"rows": base}
    return [
        ratio("table file 4 times as long, peak memory", peak["4"], peak["1"], sense="at most", asked=1.25,
              detail=detail),
        ratio("table file 16 times as long, peak memory", peak["16"], peak["1"], sense="at most", asked=1.25,
              detail=detail),
        ratio("table file, exponent of time over rows", slopes, [1.0] * len(slopes), detail=detail),
    ]  # fmt: skip


def _exponents(
    name: str,
    subject: str,
    varied: str,
    sizes: Sequence[int],
    fixed: Mapping[str, Any],
    scale: Scale,
    *,
    power: int = 1,
    asked: float | None = None,
) -> list[Ratio]:
    """The exponent of time over a size, one for each round of repeats."""
    rounds = _measured({str(size): (subject, {**fixed, varied: size}) for size in sizes}, scale.repeats)
    grown = [float(size) ** power for size in sizes]
    seconds = [[rounds[str(size)][i]["seconds"] for size in sizes] for i in range(scale.repeats)]
    slopes = [exponent(grown, row) for row in seconds]
    detail = {"sizes": [int(g) for g in grown], "relative": [v / seconds[0][0] for v in seconds[0]]}
    sense: Any = None if asked is None else "at most"
    return [
        ratio(
            f"growth: {name}, exponent", slopes, [1.0] * len(slopes), sense=sense, asked=asked, detail=detail
        )
    ]


def _measured(
    subjects: Mapping[str, tuple[str, Mapping[str, Any]]], repeats: int
) -> dict[str, list[Figures]]:
    """Measure subjects in turn, each time in a new process."""
    found: dict[str, list[Figures]] = {name: [] for name in subjects}
    for _ in range(repeats):
        for name, (subject, given) in subjects.items():
            found[name].append(measure(subject, dict(given)))
    return found


COMPARISONS = {
    "noise": noise,
    "features": featurising,
    "training": training,
    "pipeline": pipeline,
    "growth": growth,
    "tables": tables,
}
