"""Work that is measured in a separate process, for its own peak memory.

`python -m benchmarks.bench.subjects NAME '{"n": 1800}'` prints one JSON object with `seconds` and `peak`, the
process's largest resident set in bytes.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import environment
from benchmarks.bench.engines import release_numbers

Given = dict[str, Any]
Figures = dict[str, Any]


def measure(name: str, given: Given) -> Figures:
    """Run a subject in a new process and return its figures."""
    words = [sys.executable, "-m", "benchmarks.bench.subjects", name, json.dumps(given)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the bench's subject {name} failed: {last}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _noise_images(given: Given) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Random images of MNIST's size: speed does not depend on their content."""
    chance = np.random.default_rng(0)
    side = int(given.get("side", 28))
    x = chance.integers(0, 256, (given["n"], side, side), dtype=np.uint8)
    return x, chance.integers(0, 10, (given["n"],), dtype=np.int64)


def _domain(given: Given) -> Any:
    from adlm.domain import Domain

    side = int(given.get("side", 28))
    return Domain((side, side), 0, 255, tuple(map(str, range(10))))


def _settings(batch: int) -> Any:
    from adlm.paper.release import Settings

    return Settings(Fraction(1), Fraction(1, 2), batch, Fraction(9800), "given", 25, "identical")


def _record_release(given: Given) -> Any:
    from adlm.paper.release import PrivateRecords
    from adlm.paper.release import release as release_records
    from adlm.privacy.ledger import Ledger
    from adlm.privacy.noise import Source

    x, y = _noise_images(given)
    return release_records(
        PrivateRecords(x, y, _domain(given)),
        _settings(1800),
        relevance=None,
        ledger=Ledger(),
        source=Source.system(),
    )


def _network(given: Given) -> Any:
    """The product's networks by name, and `tanh`, the one that DP-SGD trains best."""
    from adlm.paper.networks import build
    from benchmarks.baselines import networks

    return (
        networks.tanh((28, 28), 10) if given["network"] == "tanh" else build(given["network"], (28, 28), 10)
    )


def epoch_release(given: Given) -> Figures:
    """An epoch of a network on a record release."""
    import torch

    from adlm.model.training import TrainingConfig, train
    from adlm.paper.training import from_records

    release = _record_release(given)
    network, examples = _network(given), from_records(release)
    plan = TrainingConfig(epochs=1, batch_size=given["batch"], optimiser="SGD", learning_rate=0.01)

    def epoch() -> None:
        train(network, examples, plan, device="cpu")

    torch.manual_seed(0)
    return _best_of(epoch, given)


def epoch_plain(given: Given) -> Figures:
    """The same epoch in plain PyTorch on raw records, with cross-entropy."""
    import torch

    x, y = _noise_images(given)
    scaled, labels = torch.from_numpy(_domain(given).scale(x)), torch.from_numpy(y)
    network = _network(given).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01)

    def epoch() -> None:
        for rows in torch.split(torch.randperm(len(scaled)), given["batch"]):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(scaled[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return _best_of(epoch, given)


def epoch_opacus(given: Given) -> Figures:
    """The same epoch by DP-SGD with Opacus, without the min-max layer, which it cannot train."""
    import torch

    from benchmarks.baselines import dpsgd, networks

    x, y = _noise_images(given)
    scaled = torch.from_numpy(_domain(given).scale(x))
    network = networks.uncoupled(_network(given))
    batch = min(given["batch"], len(x) - 1)
    settings = dpsgd.Settings("bench", batch, 1, 1.0, 0.01, chunk=int(given.get("chunk", batch)))
    certificate = dpsgd.Certificate(
        Fraction(1), Fraction(1, 10**5), batch / len(x), settings.steps(len(x)), 1.0, 1.0
    )
    return _best_of(lambda: dpsgd.follow(network, scaled, y, settings, certificate), given)


def _best_of(epoch: Callable[[], object], given: Given) -> Figures:
    """Time an epoch after a warm-up epoch, with one thread a core."""
    epoch()
    start = time.perf_counter()
    for _ in range(given.get("times", 1)):
        epoch()
    return {"seconds": (time.perf_counter() - start) / given.get("times", 1)}


def steps_normalised(given: Given) -> Figures:
    """Training steps of one of the paper's networks, on one core.

    `normalisation` is `ours`, `formula` (the same layer by autograd, in torch's channels-first layout) or
    `none`.
    """
    import torch
    from torch import Tensor, nn

    from adlm.paper.networks import LocalResponseNorm, build

    class Formula(nn.Module):
        def __init__(self, layer: LocalResponseNorm) -> None:
            super().__init__()
            self.of = layer

        def forward(self, h: Tensor) -> Tensor:
            place = torch.arange(h.shape[1])
            band = ((place[:, None] - place).abs() <= self.of.l // 2).to(h)[:, :, None, None]
            outer = (self.of.q + self.of.alpha * nn.functional.conv2d(h.square(), band)).pow(self.of.beta)
            return h / torch.maximum(h, outer)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape, kind = tuple(given["shape"]), given["normalisation"]
    network = build(given["network"], shape, 10).train()
    for name, layer in list(network.named_children()):
        if isinstance(layer, LocalResponseNorm) and kind != "ours":
            setattr(network, name, Formula(layer) if kind == "formula" else nn.Identity())
    if kind == "formula":
        for weight in network.parameters():
            weight.data = weight.data.contiguous()
    optimiser, x = torch.optim.SGD(network.parameters(), lr=0.01), torch.rand(given["batch"], *shape)

    def step() -> None:
        optimiser.zero_grad()
        network(x).square().mean().backward()
        optimiser.step()

    step()
    taken = []
    for _ in range(given.get("times", 1)):  # CPU time, so other work on the machine is not counted
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    return {"seconds": min(taken)}


def pipeline_release(given: Given) -> Figures:
    """From a data set's files to an evaluated model, by a moment release."""
    from adlm.data import datasets
    from adlm.mechanism.privatise import privatise
    from adlm.model.fit import fit

    start = time.perf_counter()
    train, test = datasets.load(given["data"], "train"), datasets.load(given["data"], "test")
    if "at" in given:  # after the data set was found, which may be in the usual cache
        os.environ["ADLM_CACHE"] = given["at"]
    release = privatise(
        train.x[: given["n"]],
        train.y[: given["n"]],
        domain=train.domain,
        epsilon=given["epsilon"],
        delta="1e-5",
        cache=given["cache"],
        allocation=given.get("allocation"),  # class sums alone, without gradient rounds
    )
    accuracy = float((fit(release).predict(test.x) == test.y).mean())
    return {"seconds": time.perf_counter() - start, "accuracy": accuracy}


def pipeline_opacus(given: Given) -> Figures:
    """The same by DP-SGD on the tanh network, to its own best accuracy; or some epochs, to be multiplied."""
    import torch

    from adlm.data import datasets
    from benchmarks.baselines import dpsgd, networks

    start = time.perf_counter()
    train, test = datasets.load(given["data"], "train"), datasets.load(given["data"], "test")
    x, y = torch.from_numpy(train.domain.scale(train.x[: given["n"]])), train.y[: given["n"]]
    torch.manual_seed(0)
    network = networks.tanh(train.domain.shape, len(train.domain.classes))
    certificate = dpsgd.certify(dpsgd.TANH, len(x), given["epsilon"])
    settings, share = dpsgd.TANH, 1.0
    if given["epochs"] is not None:
        settings = replace(dpsgd.TANH, epochs=given["epochs"])
        steps = settings.steps(len(x))
        share, certificate = steps / certificate.steps, replace(certificate, steps=steps)
    began = time.perf_counter()
    trained = dpsgd.follow(network, x, y, settings, certificate)
    training = time.perf_counter() - began
    accuracy = trained.accuracy(torch.from_numpy(test.domain.scale(test.x)), test.y)
    return {"seconds": to_the_end(time.perf_counter() - start, training, share), "accuracy": accuracy}


def to_the_end(seconds: float, training: float, share: float) -> float:
    """Extrapolate the time of work of which only a share of training was done; steps take equal time."""
    return seconds + training * (1 / share - 1)


def release_records_to_disk(given: Given) -> Figures:
    """Write a record release to a folder."""
    from adlm.paper.release import PrivateRecords
    from adlm.paper.release import release as release_records
    from adlm.privacy.ledger import Ledger
    from adlm.privacy.noise import Source

    x, y = _noise_images(given)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        made = release_records(
            PrivateRecords(x, y, _domain(given)),
            _settings(1800),
            relevance=None,
            ledger=Ledger(),
            source=Source.system(),
        )
        made.save(Path(folder) / "release")
        return {"seconds": time.perf_counter() - start, "input": x.nbytes}


def release_moments_of(given: Given) -> Figures:
    """Class sums of vectors in memory."""
    from adlm.domain import Domain
    from adlm.features.base import Identity
    from adlm.mechanism.planner import Plan
    from adlm.mechanism.privatise import release_by_plan
    from adlm.privacy.accounting import Budget
    from adlm.privacy.ledger import Ledger
    from adlm.privacy.noise import Source

    k = given["k"]
    chance = np.random.default_rng(0)
    y = chance.integers(0, 10, (given["n"],), dtype=np.int64)
    z = chance.normal(size=(given["n"], k)).astype(np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    plan = Plan("class sums", 10, k, "gaussian")
    domain = Domain((k,), 0, 1, tuple(map(str, range(10))))
    features = Identity((k,))

    def release(rows: int) -> float:
        start = time.perf_counter()
        release_by_plan(
            lambda: [(z[i : i + 4000], y[i : i + 4000]) for i in range(0, rows, 4000)],
            domain,
            plan=plan,
            budget=Budget.of(1, "1e-5"),
            features=features,
            ledger=Ledger(),
            source=Source.system(),
        )
        return time.perf_counter() - start

    release(min(100, len(z)))  # warm-up: imports and calibration are not part of growth
    return {"seconds": release(len(z))}


TABLE = """
[columns.age]
kind = "numeric"
lower = 0
upper = 120
[columns.dose]
kind = "numeric"
lower = 0.0
upper = 10.0
[columns.ward]
kind = "categorical"
values = ["north", "south", "east"]
[columns.outcome]
kind = "label"
classes = ["well", "ill"]
"""


def write_table(file: Path, rows: int) -> None:
    """Write a CSV file that TABLE declares, a block at a time."""
    chance = np.random.default_rng(0)
    with file.open("w", encoding="utf-8") as out:
        out.write("age,dose,ward,outcome\n")
        for start in range(0, rows, 10_000):
            size = min(10_000, rows - start)
            columns = (
                chance.integers(0, 121, size),
                chance.uniform(0, 10, size).round(3),
                chance.choice(["north", "south", "east"], size),
                chance.choice(["well", "ill"], size),
            )
            out.writelines(",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True))


def release_table(given: Given) -> Figures:
    """Release a table from a CSV file of so many rows, read batch by batch."""
    from adlm.domain.table import TableDomain
    from adlm.mechanism.privatise import privatise

    domain = TableDomain.from_toml(TABLE)
    start = time.perf_counter()
    privatise(given["file"], domain=domain, epsilon="1")
    return {"seconds": time.perf_counter() - start, "input": Path(given["file"]).stat().st_size}


WIDE = (10, 44, 7)  # numeric and boolean columns, classes


def wide_domain() -> Any:
    """Declare a synthetic table of 54 columns and 7 classes."""
    from adlm.domain.columns import Column
    from adlm.domain.table import TableDomain

    numeric, boolean, classes = WIDE
    columns = [Column(f"x{i}", "numeric", 0, 1) for i in range(numeric)]
    columns += [Column(f"b{i}", "boolean") for i in range(boolean)]
    return TableDomain((*columns, Column("y", "label", classes=tuple(f"c{i}" for i in range(classes)))))


def wide_batches(rows: int) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
    """Yield the rows of that table, a batch at a time: values, and positions of classes."""
    numeric, boolean, classes = WIDE
    chance = np.random.default_rng(0)
    for start in range(0, rows, 8192):
        size = min(8192, rows - start)
        y = chance.integers(0, classes, size)
        x = chance.random((size, numeric + boolean), dtype=np.float32)
        x[:, :numeric] = 0.7 * x[:, :numeric] + 0.3 * (y[:, None] == np.arange(numeric) % classes)
        x[:, numeric:] = x[:, numeric:] < 0.1
        yield x, y


def release_wide_table(given: Given) -> Figures:
    """Release a synthetic table of 54 columns and 7 classes: by gradient rounds, or a perturbed loss.

    Batches are generated in each pass, so that memory is that of the release alone.
    """
    from adlm.mechanism.privatise import privatise

    rows = int(given["n"])
    start, used = time.perf_counter(), time.process_time()
    privatise(
        lambda: wide_batches(rows),
        domain=wide_domain(),
        epsilon="1",
        delta="0" if given["pure"] else "1e-5",
        size=rows,
    )
    return {"seconds": time.perf_counter() - start, "processor": time.process_time() - used}


SUBJECTS: dict[str, Callable[[Given], Figures]] = {
    "epoch-release": epoch_release,
    "epoch-plain": epoch_plain,
    "epoch-opacus": epoch_opacus,
    "steps-normalised": steps_normalised,
    "pipeline-release": pipeline_release,
    "pipeline-opacus": pipeline_opacus,
    "records": release_records_to_disk,
    "moments": release_moments_of,
    "table": release_table,
    "numbers": release_numbers,
    "wide-table": release_wide_table,
}


def main(words: list[str]) -> None:
    """Run a subject and print its figures with the process's peak memory."""
    figures = SUBJECTS[words[0]](json.loads(words[1]))
    print(json.dumps(figures | {"peak": peak_memory()}))


def peak_memory() -> int:
    """Return the largest resident size of this process in bytes.

    On Linux `ru_maxrss` starts from the size of the parent process, so this process's own high-water mark is
    read where there is one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
