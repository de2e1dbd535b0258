"""Ratios of speed and memory, each measured side by side in one run.

A comparison is a function that returns ratios. Only ratios are given, as the median of interleaved repeats
with their spread, because times depend on the machine. What has its own peak memory runs in a process of its
own (`bench_subjects.py`).
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlm.errors import UserError
from adlm.privacy.noise import Source
from adlm.runtime import progress
from adlm.runtime.artefact import canonical, write_file
from adlm.version import __version__
from benchmarks import ROOT, bench_subjects, dpsgd, in_environment
from benchmarks.bench_subjects import Figures, measure
from benchmarks.pages import grid, new, save
from benchmarks.runner import record

DRAWS = 60_000 * 784  # MNIST: a draw for each pixel
HEADINGS = ["what", "ratio", "spread"]


@dataclass(frozen=True)
class Scale:
    """Amount of work; it affects the spread of ratios, hardly the ratios."""

    quick: bool
    repeats: int
    kymatio_python: str = sys.executable
    data: str = "mnist"
    against: Path | None = None  # another checkout


@dataclass(frozen=True)
class Ratio:
    """One line of the bench.

    Attributes
    ----------
    value : median over repeats; None when it could not be measured, and `note` says why.
    low, high : smallest and largest over repeats.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


def ratio(name: str, above: Sequence[float], below: Sequence[float], note: str = "", **detail: Any) -> Ratio:
    """Divide figures of the same round, and take the median."""
    values = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(name, statistics.median(values), min(values), max(values), note, detail)


def interleave(actions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[Any]]:
    """Run each action in turn, `repeats` rounds, so that slow periods affect all of them equally."""
    results: dict[str, list[Any]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            results[name].append(action())
    return results


def _measured(runs: Mapping[str, tuple[str, Mapping[str, Any]]], repeats: int) -> dict[str, list[Figures]]:
    """Measure subjects in turn, each time in a new process."""

    def one(name: str, subject: str, given: Mapping[str, Any]) -> Figures:
        figures = measure(subject, dict(given))
        used = f", {figures['processor']:.1f} processor seconds" if "processor" in figures else ""
        progress.say(f"bench: {name}: {figures['seconds']:.1f} s{used}, {figures['peak'] / 1e6:.0f} MB")
        return figures

    return interleave({name: partial(one, name, *given) for name, given in runs.items()}, repeats)


def column(found: Mapping[str, Sequence[Figures]], key: str) -> dict[str, list[float]]:
    """Return one figure of every round, by name."""
    return {name: [figures[key] for figures in each] for name, each in found.items()}


def exponent(sizes: Sequence[float], figures: Sequence[float]) -> float:
    """Slope of a straight line through log figures over log sizes: 1 is linear growth."""
    return float(np.polyfit(np.log(sizes), np.log(figures), 1)[0])


# ---- comparisons


def noise(scale: Scale) -> list[Ratio]:
    """Exact Laplace draws against numpy's float ones and against opendp's exact ones."""
    draws = 2_000_000 if scale.quick else DRAWS
    part, sample = min(draws, 4_704_000), 2_000 if scale.quick else 20_000
    chance, source, opendp = np.random.default_rng(), Source.system(), _opendp(sample)
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
    name = "noise: exact Laplace rate over opendp's"
    return [
        ratio(
            "noise: exact Laplace rate over numpy's float rate", rates["exact"], rates["numpy"], draws=draws
        ),
        Ratio(name, None, note="opendp is not installed: pip install opendp")
        if opendp is None
        else ratio(name, rates["exact"], rates["opendp"], draws=draws),
    ]


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
        return images / float(
            in_environment(scale.kymatio_python, "kymatio_rate", str(images), "28", str(threads))
        )

    own, whole = Scattering(28), PriorProjection("drawn")
    ratios: list[Ratio] = []
    for threads in sorted({1, torch.get_num_threads()}):
        how = "one thread each" if threads == 1 else f"{threads} threads each"
        names = (
            f"features: scattering rate over kymatio's, {how}",
            f"features: whole map's rate over kymatio's scattering, {how}",
        )
        actions = {
            "kymatio": partial(theirs, threads),
            "own": partial(clock, own, threads),
            "whole": partial(clock, whole, threads),
        }
        try:
            rates = interleave(actions, scale.repeats)
        except UserError as error:
            return [Ratio(name, None, note=f"{error} by --kymatio-python") for name in names]
        ratios += [
            ratio(name, rates[key], rates["kymatio"], images=images, threads=threads)
            for name, key in zip(names, ("own", "whole"), strict=True)
        ]
    return ratios


# Times the features of images of whichever checkout is on the path; prints images a processor second.
_RATES = """
import json, sys, time, torch
try:
    from adlm.features import build
except ImportError:  # versions before the rooms by topic
    from adlm.public.features import build
torch.set_num_threads(1)
images, rates = int(sys.argv[1]), {}
for name, (spec, shape) in json.loads(sys.argv[2]).items():
    features, x = build(spec).eval(), torch.rand(images, *shape)
    with torch.inference_mode():
        features(x[:8])
        start = time.process_time()
        for part in torch.split(x, 500):
            features(part)
        rates[name] = images / (time.process_time() - start)
print(json.dumps(rates))
"""
MAPS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "drawn images": ({"name": "prior-projection", "family": "drawn", "shape": [28, 28]}, (28, 28)),
    "garments": ({"name": "prior-projection", "family": "garments", "shape": [28, 28]}, (28, 28)),
    "photographs": ({"name": "natural", "width": 1000, "weights": "natural-32"}, (3, 32, 32)),
}


def photographs(scale: Scale) -> list[Ratio]:
    """Images a processor second on one thread, each time in a new process: over PyTorch's, another version's.

    The rate of a plain VGG-11 forward pass is PyTorch's; another version is compared if a checkout is given.
    """
    images = 250 if scale.quick else 2000
    trees = {"this": ROOT} | ({} if scale.against is None else {"other": _checkout(scale.against)})

    def rates(tree: Path) -> dict[str, float]:
        environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-c", _RATES, str(images), json.dumps(MAPS)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    actions: dict[str, Callable[[], Any]] = {name: partial(rates, tree) for name, tree in trees.items()}
    found = interleave(actions | {"vgg": partial(_vgg_rates, max(images // 10, 10))}, scale.repeats)
    ratios = []
    for name in MAPS:
        own = [each[name] for each in found["this"]]
        plain = [each[name] for each in found["vgg"]]
        detail = {"images": images, "a_second": round(statistics.median(own))}
        ratios.append(ratio(f"features: {name}' rate over VGG-11's, one thread", own, plain, **detail))
        if "other" in trees:
            other = [each[name] for each in found["other"]]
            title = f"features: {name}' rate over the other version's, one thread"
            ratios.append(ratio(title, own, other, **detail, other=[round(rate) for rate in other]))
    return ratios


def _vgg_rates(images: int) -> dict[str, float]:
    """Images a processor second of the convolutions of VGG-11, for each size of image."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rates = {}
    for name, (_, shape) in MAPS.items():
        channels, layers, size = (1 if len(shape) == 2 else 3), [], shape[-1]
        x = torch.rand(images, channels, size, size)
        for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512):
            layers.append(torch.nn.Conv2d(channels, width, 3, padding=1) if width else torch.nn.MaxPool2d(2))
            channels = width or channels
        network = torch.nn.Sequential(*layers).eval()
        with torch.inference_mode():
            network(x[:2])
            start = time.process_time()
            network(x)
            rates[name] = images / (time.process_time() - start)
    torch.set_num_threads(before)
    return rates


def _checkout(path: Path) -> Path:
    if not (path / "src" / "adlm" / "__init__.py").is_file():
        raise UserError(
            f"{path} is no checkout of this project: it has no src/adlm; "
            "make one with `git worktree add PATH COMMIT`"
        )
    return path.resolve()


def pipeline(scale: Scale) -> list[Ratio]:
    """Raw data to an evaluated model at epsilon 0.5, against DP-SGD to its own best accuracy.

    DP-SGD is run to its end in the first round, for its accuracy. In later rounds, and in a quick run, it
    runs one epoch and its time is multiplied, as all epochs take the same time.
    """
    n = 6000 if scale.quick else None
    release = {"data": scale.data, "n": n, "epsilon": "0.5"}
    found: dict[str, list[Figures]] = {"raw": [], "cached": [], "opacus": []}
    with tempfile.TemporaryDirectory() as cache:
        kept = release | {"cache": True, "at": cache}
        measure("pipeline-release", kept)
        for turn in range(scale.repeats):
            epochs = None if turn == 0 and not scale.quick else 1
            found["raw"].append(measure("pipeline-release", release | {"cache": False}))
            found["cached"].append(measure("pipeline-release", kept))
            found["opacus"].append(measure("pipeline-opacus", release | {"epochs": epochs}))
    seconds, used = column(found, "seconds"), column(found, "processor")
    note = f"{dpsgd.TANH.epochs:g} epochs from the time of one"
    note += f", on {n} records" if scale.quick else ", but for the first round, where all were made"
    detail = {f"accuracy_{name}": each[0]["accuracy"] for name, each in found.items()}
    name, opacus = "raw data to evaluated model", seconds["opacus"]
    return [
        ratio(f"{name}: Opacus over ours", opacus, seconds["raw"], note, **detail),
        ratio(f"{name}: the same in processor seconds", used["opacus"], used["raw"], **detail),
        ratio(f"{name}, features kept: Opacus over ours", opacus, seconds["cached"], note, **detail),
    ]


def growth(scale: Scale) -> list[Ratio]:
    """How time and memory of a release grow: exponents over doubled sizes."""
    base = 5000 if scale.quick else 20_000  # enough for memory to exceed a process's baseline
    sizes = [base, 2 * base, 4 * base]
    found = _measured({str(n): ("records", {"n": n}) for n in sizes}, scale.repeats)
    columns = [found[str(n)] for n in sizes]
    grown = [
        (large["peak"] - small["peak"]) / (large["input"] - small["input"])
        for small, large in zip(columns[0], columns[-1], strict=True)
    ]
    return [
        _exponent("record release, time over n", sizes, columns),
        ratio(
            "record release, bytes of memory for each further byte of records",
            grown,
            [1.0] * len(grown),
            "the records themselves are in memory: 1 is the least",
            n=sizes,
        ),
        _grown("record release, time over d", "records", "side", [14, 28, 56], {"n": base // 4}, scale, 2),
        _grown("release, time over n", "moments", "n", [5 * n for n in sizes], {"k": 100}, scale),
        _grown("release, time over k", "moments", "k", [100, 200, 400], {"n": base}, scale),
    ]


def _grown(
    name: str,
    subject: str,
    varied: str,
    sizes: Sequence[int],
    fixed: Mapping[str, Any],
    scale: Scale,
    power: int = 1,
) -> Ratio:
    found = _measured({str(size): (subject, {**fixed, varied: size}) for size in sizes}, scale.repeats)
    return _exponent(name, [size**power for size in sizes], [found[str(size)] for size in sizes])


def _exponent(name: str, sizes: Sequence[int], columns: Sequence[Sequence[Figures]]) -> Ratio:
    """The exponent of time over a size, one for each round of repeats."""
    rounds = [[figures["seconds"] for figures in row] for row in zip(*columns, strict=True)]
    slopes = [exponent(sizes, row) for row in rounds]
    relative = [value / rounds[0][0] for value in rounds[0]]
    title = f"growth: {name}, exponent"
    return ratio(title, slopes, [1.0] * len(slopes), sizes=list(sizes), relative=relative)


def reading(scale: Scale) -> list[Ratio]:
    """Releases from CSV and from Parquet, stored numbers against cells read one by one in each pass."""
    rows = 30_000 if scale.quick else 500_000
    with tempfile.TemporaryDirectory() as folder:
        files = bench_subjects.write_numbers(Path(folder), rows, ("csv", "parquet"))
        runs = {
            f"{kind}{' again' if again else ''}": ("numbers", {"file": str(file), "each_pass": again})
            for kind, file in files.items()
            for again in (False, True)
        }
        found = _measured(runs, scale.repeats)
    seconds = column(found, "seconds")
    note = f"{rows:,} rows of ten numeric columns; seconds: "
    note += ", ".join(f"{name} {min(each):.1f}" for name, each in seconds.items())
    csv, packed = seconds["csv"], seconds["parquet"]
    once = "read once over read in each pass"
    return [
        ratio("table from CSV over the same from Parquet", csv, packed, note, rows=rows),
        ratio(f"table from Parquet, {once}", packed, seconds["parquet again"], rows=rows),
        ratio(f"table from CSV, {once}", csv, seconds["csv again"], rows=rows),
    ]


def engines(scale: Scale) -> list[Ratio]:
    """The engines local and ray on the same files: time, memory of driver and workers, and the digest."""
    rows = 200_000 if scale.quick else 20_000_000
    ratios: list[Ratio] = []
    with tempfile.TemporaryDirectory() as folder:
        for mechanism, count in (("perturbed loss", rows), ("rounds", max(rows // 20, 50_000))):
            ratios += _side_by_side(Path(folder), mechanism, count, scale.repeats)
    return ratios


def _side_by_side(folder: Path, mechanism: str, rows: int, repeats: int) -> list[Ratio]:
    progress.say(f"bench: engines, {mechanism}: writing {rows:,} and {rows // 4:,} rows")
    whole, quarter = (
        {
            "file": str(bench_subjects.write_numbers(folder, count, ("parquet",))["parquet"]),
            "mechanism": mechanism,
            "threads": 1,
        }
        for count in (rows, rows // 4)
    )
    one, two = {"engine": "ray", "workers": 1}, {"engine": "ray", "workers": 2}
    runs = {
        "local": whole,
        "ray, 1 worker": whole | one,
        "local, a quarter": quarter,
        "ray, a quarter": quarter | one,
        "local, 2 threads": whole | {"threads": 2},
        "ray, 2 workers": whole | two,
    }
    try:
        found = _measured({name: ("numbers", given) for name, given in runs.items()}, repeats)
    except RuntimeError as error:
        return [Ratio(f"engine ray over local, {mechanism}", None, note=str(error))]
    same = len({each[0]["digest"] for name, each in found.items() if "quarter" not in name}) == 1
    said = []
    for name, each in found.items():
        best = min(each, key=lambda figures: float(figures["seconds"]))
        memory = f"driver {best['peak'] / 1e6:.0f} MB"
        if "started" in best:
            memory += f", a worker {best['workers_peak'] / 1e6:.0f} MB, start {best['started']:.0f} s"
        said.append(f"{name} {best['seconds']:.0f} s ({best['processor']:.0f} processor s; {memory})")
    equal = f"{rows:,} rows of ten numeric columns by {mechanism}; digests equal: {same}"

    def against(name: str, above: str, below: str, what: str, note: str = "") -> Ratio:
        def values(of: str) -> list[float]:
            return [f["seconds"] + f.get("started", 0.0) if what == "started" else f[what] for f in found[of]]

        return ratio(f"{name}, {mechanism}", values(above), values(below), note, rows=rows, same_digest=same)

    ray, both = "ray, 1 worker", "ray, 2 workers"
    return [
        against("ray with 1 worker over local with 1 thread: time", ray, "local", "seconds", "; ".join(said)),
        against("the same with the start of the cluster", ray, "local", "started", equal),
        against("the same in processor seconds of driver and cluster", ray, "local", "processor"),
        against("ray with 2 workers over 1: time", both, ray, "seconds"),
        against(
            "ray with 2 workers over local, 2 threads: time", "ray, 2 workers", "local, 2 threads", "seconds"
        ),
        against("local, 4 times the rows: processor seconds", "local", "local, a quarter", "processor"),
        against("ray: the driver's memory, 4 times the rows", ray, "ray, a quarter", "peak"),
    ]


def wide(scale: Scale) -> list[Ratio]:
    """Gradient rounds of a table of 54 columns and 7 classes, against a perturbed loss under pure epsilon."""
    rows = 20_000 if scale.quick else 460_000
    runs = {
        "rounds": ("wide-table", {"n": rows, "pure": False}),
        "perturbed loss": ("wide-table", {"n": rows, "pure": True}),
        "quarter": ("wide-table", {"n": rows // 4, "pure": False}),
    }
    found = _measured(runs, scale.repeats)
    seconds, used, peak = (column(found, key) for key in ("seconds", "processor", "peak"))
    note = f"{rows:,} rows; processor seconds: " + ", ".join(f"{n} {min(u):.1f}" for n, u in used.items())
    name, loss = "table of 54 columns", "perturbed loss"
    title = f"{name}: gradient rounds over a perturbed loss"
    return [
        ratio(f"{title}, time", seconds["rounds"], seconds[loss], note, rows=rows),
        ratio(f"{title}, processor seconds", used["rounds"], used[loss], rows=rows),
        ratio(f"{name}, 4 times as many rows, peak memory", peak["rounds"], peak["quarter"], rows=rows),
    ]


COMPARISONS = {
    "noise": noise,
    "features": featurising,
    "photographs": photographs,
    "pipeline": pipeline,
    "growth": growth,
    "reading": reading,
    "engines": engines,
    "wide": wide,
}

# ---- the whole bench


def run(only: Sequence[str], scale: Scale, out: Path | None, command: str) -> dict[str, Any]:
    """Run some comparisons, or all; write `bench.json`, `README.md` and `growth.svg` to a folder if given."""
    for name in only:
        if name not in COMPARISONS:
            raise UserError(f"there is no comparison {name!r}; choose from {', '.join(COMPARISONS)}")
    ratios: list[Ratio] = []
    seconds: dict[str, int] = {}
    for name in only or COMPARISONS:
        progress.say(f"bench: {name}")
        start = time.monotonic()
        ratios += COMPARISONS[name](scale)
        seconds[name] = round(time.monotonic() - start)
    result: dict[str, Any] = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "quick": scale.quick,
        "repeats": scale.repeats,
        "cores": os.cpu_count(),
        "seconds": seconds,
        "software": {"adlm": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "ratios": [asdict(entry) for entry in ratios],
    }
    if out is not None:
        write_file(out / "bench.json", canonical(result), what="bench")
        write_file(out / "README.md", page(result).encode(), what="bench table")
        grown = [entry for entry in result["ratios"] if "relative" in entry["detail"]]
        if grown:
            draw(grown, out / "growth.svg")
        record(out / "bench.json", command)
    return result


def table_row(entry: Mapping[str, Any]) -> list[str]:
    """A ratio as a row of a table."""
    spread = "" if entry["low"] is None else f"{_shown(entry['low'])} to {_shown(entry['high'])}"
    return [entry["name"], _shown(entry["value"]), spread]


def _shown(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:.3g}" if not math.isfinite(value) or abs(value) < 1000 else f"{value:,.0f}"


def page(result: Mapping[str, Any]) -> str:
    """The bench as a page."""
    table = grid(HEADINGS, [table_row(entry) for entry in result["ratios"]])
    notes = [f"- {entry['name']}: {entry['note']}" for entry in result["ratios"] if entry["note"]]
    software = ", ".join(f"{name} {version}" for name, version in result["software"].items())
    how = f"`{result['command']}`: median, smallest and largest of {result['repeats']} interleaved repeats"
    made = f"{how}; {result['date']}; {result['cores']} cores; {software}."
    return "\n".join(["# Bench", "", table, "", *notes, "", made, ""])


def draw(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw time over size, both relative to the smallest."""
    figure, axes = new(6.0, 4.0)
    for entry in entries:
        sizes = entry["detail"]["sizes"]
        name = entry["name"].removeprefix("growth: ").removesuffix(", exponent")
        label = f"{name}: exponent {entry['value']:.2f}"
        axes.plot([s / sizes[0] for s in sizes], entry["detail"]["relative"], marker="o", ms=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("size, relative to the smallest")
    axes.set_ylabel("time, relative to the smallest")
    axes.legend(fontsize=7)
    save(figure, path)
