"""The comparisons of the bench, each a function that returns ratios."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlm.model.training import ROWS
from adlm.privacy.noise import Source
from benchmarks.bench.engines import engines, reading
from benchmarks.bench.image_maps import photographs
from benchmarks.bench.ratio import Ratio, column, exponent, interleave, ratio
from benchmarks.bench.subjects import Figures, measure, write_table
from benchmarks.bench.versions import versions
from benchmarks.bench.wide_table import wide

DRAWS = 60_000 * 784  # MNIST: a draw for each pixel


@dataclass(frozen=True)
class Scale:
    """Amount of work; it affects the spread of ratios, hardly the ratios."""

    quick: bool
    repeats: int
    kymatio_python: str = sys.executable
    data: str = "mnist"
    against: Path | None = None  # another checkout


def noise(scale: Scale) -> list[Ratio]:
    """Exact Laplace draws against numpy's float ones and against opendp's exact ones."""
    draws = 2_000_000 if scale.quick else DRAWS
    part = min(draws, 4_704_000)
    chance, source = np.random.default_rng(), Source.system()
    sample = 2_000 if scale.quick else 20_000
    opendp = _opendp(sample)
    source.laplace(1000, 1 << 30)

    def clock(draw: Any, count: int) -> float:
        start = time.perf_counter()
        for begin in range(0, count, part):
            draw(min(part, count - begin))
        return count / (time.perf_counter() - start)

    actions = {
        "exact": lambda: clock(lambda size: source.laplace(size, 1 << 30), draws),
        "numpy": lambda: clock(lambda size: chance.laplace(size=size), draws),
    }
    if opendp is not None:
        actions["opendp"] = lambda: clock(lambda size: opendp(), sample)
    rates = interleave(actions, scale.repeats)
    detail = {"draws": draws}
    ratios = [
        ratio(
            "noise: exact Laplace rate over numpy's float rate",
            rates["exact"],
            rates["numpy"],
            detail=detail,
        )
    ]
    name = "noise: exact Laplace rate over opendp's"
    if opendp is None:
        return [*ratios, Ratio(name, None, note="opendp is not installed: pip install opendp")]
    more = ratio(name, rates["exact"], rates["opendp"], detail=detail)
    return [*ratios, more]


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
    """Scattering of 28x28 images against kymatio's, and all of our feature map against it too.

    Both sides get the same images in the same batches of 500, J = 2, L = 8 and order 2; one thread each, and
    then all cores each.
    """
    from adlm.features.drawn import PriorProjection
    from adlm.features.scattering import Scattering

    images = 1000 if scale.quick else 4000
    x = torch.rand(images, 28, 28)
    own, full_map = Scattering(28, 2, 8), PriorProjection("drawn")

    def clock(module: torch.nn.Module, threads: int) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                module(x[:8])
                start = time.perf_counter()
                for part in torch.split(x, 500):
                    module(part)
                return images / (time.perf_counter() - start)
        finally:
            torch.set_num_threads(before)

    def theirs(threads: int) -> float:
        script = Path(__file__).with_name("kymatio_rate.py")
        words = [scale.kymatio_python, str(script), str(images), "28", str(threads)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return images / float(done.stdout.strip().splitlines()[-1])

    ratios: list[Ratio] = []
    for threads in sorted({1, torch.get_num_threads()}):
        how = "one thread each" if threads == 1 else f"{threads} threads each"
        names = (
            f"features: scattering rate over kymatio's, {how}",
            f"features: whole map's rate over kymatio's scattering, {how}",
        )
        actions = {
            "own": partial(clock, own, threads),
            "kymatio": partial(theirs, threads),
            "whole": partial(clock, full_map, threads),
        }
        try:
            rates = interleave(actions, scale.repeats)
        except (subprocess.CalledProcessError, OSError, ValueError):
            note = (
                f"kymatio cannot be run by {scale.kymatio_python}: it needs an environment of its own with "
                "an older SciPy (pip install kymatio==0.3.0 scipy==1.11.4), named by --kymatio-python"
            )
            return [Ratio(name, None, note=note) for name in names]
        detail = {"images": images, "threads": threads}
        ratios += [
            ratio(names[0], rates["own"], rates["kymatio"], detail=detail),
            ratio(names[1], rates["whole"], rates["kymatio"], detail=detail),
        ]
    return ratios


NETWORKS = {
    # network: batch size, records, what to call it
    "paper-mnist": (1800, 1800, "the paper's network"),
    "tanh": (2048, 4096, "DP-SGD's tanh network"),
}


def training(scale: Scale) -> list[Ratio]:
    """An epoch on a record release against plain PyTorch on raw records and against Opacus.

    On the paper's network for MNIST at the paper's batch size, and on the smaller network that is recommended
    for DP-SGD: how much slower Opacus is than plain training depends on the network. Plain PyTorch and Opacus
    process each batch at once, as they are written; the product's loop and the last line use chunks.
    """
    ratios = []
    for network, (batch, records, called) in NETWORKS.items():
        parameters = {"n": batch if scale.quick else records, "batch": batch, "network": network}
        own, plain, opacus, chunks = kinds = ("epoch-release", "epoch-plain", "epoch-opacus", "chunks")
        subjects: dict[str, tuple[str, dict[str, Any]]] = {kind: (kind, parameters) for kind in kinds}
        subjects[chunks] = (opacus, parameters | {"chunk": ROWS})
        rounds = _measured(subjects, scale.repeats)
        seconds, peak = column(rounds, "seconds"), column(rounds, "peak")
        for what, figures, above, below in (
            ("record release over plain PyTorch, time", seconds, own, plain),
            ("record release over Opacus, time", seconds, own, opacus),
            ("record release over plain PyTorch, peak memory", peak, own, plain),
            ("Opacus over plain PyTorch, time", seconds, opacus, plain),
            (f"record release over Opacus in chunks of {ROWS}, time", seconds, own, chunks),
        ):
            name = f"epoch, {called}: {what}"
            ratios.append(ratio(name, figures[above], figures[below], detail=parameters))
    return ratios


def networks(scale: Scale) -> list[Ratio]:
    """The paper's networks with local response normalisation, against its formula and against none."""
    ratios = []
    for name, called, shape, batch in (
        ("paper-mnist", "the paper's MNIST network", [28, 28], 256),
        ("paper-cifar10", "the paper's CIFAR-10 network", [3, 32, 32], 64),
    ):
        settings = {"network": name, "shape": shape, "batch": batch, "times": 2 if scale.quick else 6}
        kinds = ("ours", "formula", "none")
        rounds = _measured(
            {kind: ("steps-normalised", settings | {"normalisation": kind}) for kind in kinds}, scale.repeats
        )
        seconds = column(rounds, "seconds")
        detail = settings | {"records_a_second": batch / min(seconds["ours"])}
        formula, ours, without = (seconds[kind] for kind in ("formula", "ours", "none"))
        ratios += [
            ratio(
                f"step, {called}: LRN by its formula over ours, time",
                formula,
                ours,
                detail=detail,
            ),
            ratio(f"step, {called}: with LRN over without, time", ours, without, detail=detail),
        ]
    return ratios


def pipeline(scale: Scale) -> list[Ratio]:
    """Raw data to an evaluated model at epsilon 0.5, against DP-SGD to its own best accuracy.

    DP-SGD is run to its end in the first round, for its accuracy. In later rounds, and in a quick run, it
    runs some epochs and their time is multiplied, as all epochs take the same time.
    """
    from benchmarks.baselines import dpsgd

    n, some = (6000 if scale.quick else None), 1
    release = {"data": scale.data, "n": n, "epsilon": "0.5"}
    rounds: dict[str, list[Figures]] = {"raw": [], "cached": [], "opacus": []}
    with tempfile.TemporaryDirectory() as cache:
        kept = release | {"cache": True, "at": cache}
        measure("pipeline-release", kept)
        for turn in range(min(scale.repeats, 3)):
            epochs = None if turn == 0 and not scale.quick else some
            rounds["raw"].append(measure("pipeline-release", release | {"cache": False}))
            rounds["cached"].append(measure("pipeline-release", kept))
            rounds["opacus"].append(measure("pipeline-opacus", release | {"epochs": epochs}))
    seconds = column(rounds, "seconds")
    note = f"{dpsgd.TANH.epochs:g} epochs from the time of {some}"
    note += f", on {n} records" if scale.quick else ", but for the first round, where all were made"
    detail = {"accuracy_" + name: found[0]["accuracy"] for name, found in rounds.items()}
    name, opacus = "raw data to evaluated model", seconds["opacus"]
    facts: dict[str, Any] = {"note": note, "detail": detail}
    return [
        ratio(f"{name}: Opacus over ours", opacus, seconds["raw"], **facts),
        ratio(f"{name}, features kept: Opacus over ours", opacus, seconds["cached"], **facts),
    ]


def growth(scale: Scale) -> list[Ratio]:
    """How time and memory of a release grow: exponents over doubled sizes."""
    base = 5000 if scale.quick else 20_000  # enough for memory to exceed a process's baseline
    few = base // 4
    sizes = [base, 2 * base, 4 * base]
    rounds = _measured({str(n): ("records", {"n": n}) for n in sizes}, scale.repeats)
    columns = [rounds[str(n)] for n in sizes]
    seconds = [[figures["seconds"] for figures in row] for row in zip(*columns, strict=True)]
    grown = [
        (large["peak"] - small["peak"]) / (large["input"] - small["input"])
        for small, large in zip(columns[0], columns[-1], strict=True)
    ]
    peaks = [figures[0]["peak"] / columns[0][0]["peak"] for figures in columns]
    return [
        _exponent("record release, time over n", sizes, seconds),
        ratio(
            "record release, bytes of memory for each further byte of records",
            grown,
            [1.0] * len(grown),
            note="the records themselves are in memory: 1 is the least",
            detail={"n": sizes, "peak_relative": peaks},
        ),
        _grown("record release, time over d", "records", "side", [14, 28, 56], {"n": few}, scale, power=2),
        _grown("moment release, time over n", "moments", "n", [5 * n for n in sizes], {"k": 100}, scale),
        _grown("moment release, time over k", "moments", "k", [100, 200, 400], {"n": base}, scale),
    ]


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
    seconds, peak = column(rounds, "seconds"), column(rounds, "peak")
    slopes = [exponent([1, 4, 16], [seconds[t][i] for t in ("1", "4", "16")]) for i in range(scale.repeats)]
    detail = {"rows": base}
    return [
        ratio("table file 4 times as long, peak memory", peak["4"], peak["1"], detail=detail),
        ratio("table file 16 times as long, peak memory", peak["16"], peak["1"], detail=detail),
        ratio("table file, exponent of time over rows", slopes, [1.0] * len(slopes), detail=detail),
    ]


def rounds(scale: Scale) -> list[Ratio]:
    """The time of gradient rounds of images, against the whole pipeline without them."""
    way = {"data": scale.data, "n": 6000 if scale.quick else None, "epsilon": "1", "cache": False}
    sums = way | {"allocation": "identical"}
    figures = _measured(
        {"with": ("pipeline-release", way), "without": ("pipeline-release", sums)}, scale.repeats
    )
    seconds = column(figures, "seconds")
    added = [a - b for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    return [
        ratio(
            "gradient rounds of MNIST, over the whole way without them, time",
            added,
            seconds["without"],
        )
    ]


def _grown(
    name: str,
    subject: str,
    varied: str,
    sizes: Sequence[int],
    fixed: Mapping[str, Any],
    scale: Scale,
    *,
    power: int = 1,
) -> Ratio:
    """Measure a subject at growing sizes and fit the exponent of its time."""
    rounds = _measured({str(size): (subject, {**fixed, varied: size}) for size in sizes}, scale.repeats)
    seconds = [[rounds[str(size)][i]["seconds"] for size in sizes] for i in range(scale.repeats)]
    return _exponent(name, [size**power for size in sizes], seconds)


def _exponent(name: str, sizes: Sequence[int], seconds: Sequence[Sequence[float]]) -> Ratio:
    """The exponent of time over a size, one for each round of repeats."""
    slopes = [exponent(sizes, row) for row in seconds]
    detail = {"sizes": list(sizes), "relative": [v / seconds[0][0] for v in seconds[0]]}
    return ratio(f"growth: {name}, exponent", slopes, [1.0] * len(slopes), detail=detail)


def _measured(
    subjects: Mapping[str, tuple[str, Mapping[str, Any]]], repeats: int
) -> dict[str, list[Figures]]:
    """Measure subjects in turn, each time in a new process."""
    figures: dict[str, list[Figures]] = {name: [] for name in subjects}
    for _ in range(repeats):
        for name, (subject, parameters) in subjects.items():
            figures[name].append(measure(subject, dict(parameters)))
    return figures


def one_image(scale: Scale) -> list[Ratio]:
    """One image, from a file to a class, against a forward pass of a plain network."""
    from benchmarks.bench.single_image import single_image

    return single_image(scale.repeats, 5 if scale.quick else 30)


COMPARISONS = {
    "noise": noise,
    "features": featurising,
    "photographs": photographs,
    "training": training,
    "networks": networks,
    "pipeline": pipeline,
    "growth": growth,
    "tables": tables,
    "reading": reading,
    "engines": engines,
    "rounds": rounds,
    "wide": wide,
    "image": one_image,
    "versions": versions,
}
