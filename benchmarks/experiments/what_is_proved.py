"""Claimed epsilon, proved epsilon and accuracy of the paper's Algorithm 1, over settings, on MNIST.

    python -m benchmarks.experiments.what_is_proved run --out results/what-is-proved.jsonl
    python -m benchmarks.experiments.what_is_proved table results/what-is-proved.jsonl
    python -m benchmarks.experiments.what_is_proved picture results/what-is-proved.jsonl

The choice of settings is explained in docs/what-is-proved.md; none was tuned. A finished line is not run
again. The accuracy is on the public test split.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adlm.data import datasets
from adlm.domain import Domain
from adlm.model.training import TrainingConfig
from adlm.paper import Budgets, PrivateRecords, RecordOptions, make_release, train_on_records
from adlm.paper.networks import LayerSizes, build, layer_sizes
from adlm.paper.release import Settings, mechanism_for
from adlm.paper.relevance import make_public
from adlm.privacy.accounting import show
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from benchmarks import drawing
from benchmarks.experiments.paper_readings import accuracy

NETWORK = "mlp"  # what is trained; the sizes in the sensitivities are those of the paper's network
RECORDS, EPOCHS, BATCH, RATE = 60_000, 5, 200, 1e-3
CLAIMED = {"per-patch": ("0.5", "2", "8", "128"), "counted": ("2", "128")}
BATCH_SIZES = (1, 60, 600, 1800)
L = 1800
# Other settings of the same table: a smaller |L|, and Delta_h0 for which claimed and proved epsilon agree.
BESIDE = (
    ("adlm", "8", "per-patch", 60),
    ("adlm", "128", "per-patch", 60),
    ("adlm", "2", "per-patch", 600),
    ("adlm", "8", "per-patch", 600),
    ("adlm", "2", "given", L),
    ("ilm", "2", "given", L),
    ("adlm", "128", "given", L),
    ("ilm", "128", "given", L),
)


@dataclass(frozen=True)
class Setting:
    """One run: method, total claimed epsilon, rule for Delta_h0, and |L|."""

    method: str
    epsilon: str
    rule: str
    batch_size: int = L

    @property
    def key(self) -> str:
        """Identifier of a finished line."""
        batch = "" if self.batch_size == L else f" {self.batch_size}"
        return f"{self.method} {self.epsilon} {self.rule}{batch}"

    def delta_h0(self, paper: LayerSizes) -> int:
        """Delta_h0 of the paper's network; `given`: |L| d, for which eps2 is proved as it is claimed."""
        proved = self.batch_size * paper.features
        return {"per-patch": paper.per_patch, "counted": paper.counted, "given": proved}[self.rule]


def settings() -> Iterator[Setting]:
    """All runs."""
    for rule, budgets in CLAIMED.items():
        for epsilon in budgets:
            for method in ("adlm", "ilm"):
                yield Setting(method, epsilon, rule)
    for setting in BESIDE:
        yield Setting(*setting)


def sizes(domain: Domain) -> LayerSizes:
    """Sizes of the paper's network for MNIST."""
    return layer_sizes(build("paper-mnist", domain.shape, len(domain.classes)), domain.shape)


def linear(release: Release) -> nn.Module:
    """The exact minimiser of the released loss over networks without a hidden layer: no training error.

    F is a quadratic of W, so its minimum is W = -4 (X'X)^-1 X'phi1 with a constant among the features; the
    noise on the records is its ridge.
    """
    x, phi = release.tensors["x"].flatten(1), release.tensors["phi"]
    gram, right = torch.zeros(x.shape[1] + 1, x.shape[1] + 1), torch.zeros(x.shape[1] + 1, phi.shape[1])
    for start in range(0, len(x), 5000):
        part = torch.nn.functional.pad(x[start : start + 5000], (0, 1), value=1.0)
        gram += part.T @ part
        right += part.T @ phi[start : start + 5000]
    gram.diagonal().add_(1e-4 * gram.diagonal().mean())
    weight = -4 * torch.linalg.solve(gram.double(), right.double()).float().T
    layer = nn.Linear(x.shape[1], phi.shape[1])
    with torch.no_grad():
        layer.weight.copy_(weight[:, :-1])
        layer.bias.copy_(weight[:, -1])
    return nn.Sequential(nn.Flatten(), layer)


def run(out: Path, only: str | None, threads: int) -> None:
    """Run the settings that are not in the file yet and append them."""
    torch.set_num_threads(threads)
    train, test = datasets.load("mnist", "train"), datasets.load("mnist", "test")
    paper = sizes(train.domain)
    done = {json.loads(line)["key"] for line in out.read_text().splitlines()} if out.exists() else set()
    wanted = [s for s in settings() if s.key not in done and (only is None or only in s.key)]
    relevance = make_public(train.domain.shape, name=NETWORK) if wanted else None
    x, labels = torch.from_numpy(test.domain.scale(test.x)), torch.from_numpy(test.y)
    for setting in wanted:
        assert relevance is not None
        began = time.monotonic()
        budgets = Budgets.split(setting.epsilon, method=setting.method)
        release = make_release(
            PrivateRecords(train.x[:RECORDS], train.y[:RECORDS], train.domain),
            build(NETWORK, train.domain.shape, 10),
            budgets,
            setting.batch_size,
            explained=relevance if budgets.epsilon1 else None,
            options=RecordOptions(delta_h0=setting.delta_h0(paper)),
            ledger=Ledger(),
            source=Source.system(),
        )
        torch.manual_seed(0)
        network = build(NETWORK, train.domain.shape, 10)
        plan = TrainingConfig(epochs=EPOCHS, batch_size=BATCH, learning_rate=RATE)
        history = train_on_records(release, network, plan, device="cpu")
        totals = release.certificate.totals
        line = {
            "key": setting.key,
            "method": setting.method,
            "delta_h0_rule": setting.rule,
            "delta_h0": release.certificate.settings["delta_h0"],
            "batch_size": setting.batch_size,
            "epsilon_claimed": float(totals.epsilon_claimed),
            "epsilon_proved": float(totals.epsilon_proved),
            "charges": {c.what: float(c.epsilon_proved) for c in release.certificate.charges},
            "accuracy": accuracy(network, x, labels),
            "accuracy_linear": accuracy(linear(release), x, labels),
            "stopped": history.stopped,
            "losses": list(history.losses),
            "network": NETWORK,
            "records": RECORDS,
            "epochs": EPOCHS,
            "training_batch": BATCH,
            "learning_rate": RATE,
            "seconds": round(time.monotonic() - began, 1),
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            setting.key,
            f"proved {show(totals.epsilon_proved)}",
            f"accuracy {line['accuracy']:.4f}",
            flush=True,
        )


def proved_table() -> list[dict[str, Any]]:
    """Claimed and proved epsilon of features and labels for the paper's MNIST network; no data is needed."""
    domain = Domain(shape=(28, 28), lower=0.0, upper=255.0, classes=tuple("0123456789"))
    paper = sizes(domain)
    rows = []
    for batch_size in BATCH_SIZES:
        rules = {"counted": paper.counted, "per-patch": paper.per_patch, "given": batch_size * paper.features}
        for rule, delta_h0 in rules.items():
            made = Settings(
                epsilon2=Fraction(1),
                epsilon3=Fraction(1),
                batch_size=batch_size,
                delta_h0=Fraction(delta_h0),
                delta_h0_rule=rule,
                hidden=paper.hidden,
                allocation="identical",
            )
            features, labels = mechanism_for(made, domain, None).charges
            rows.append(
                {
                    "batch_size": batch_size,
                    "rule": rule,
                    "delta_h0": delta_h0,
                    "scale": delta_h0 / batch_size,
                    "epsilon_x": float(features.epsilon_proved),
                    "epsilon_y": float(labels.epsilon_proved),
                }
            )
    return rows


def table(path: Path) -> str:
    """Both tables in Markdown."""
    lines = [
        "| \\|L\\| | Delta_h0 | value | noise scale, eps2 = 1 | proved eps_x / eps2 | proved eps_y / eps3 |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for row in proved_table():
        lines.append(
            f"| {row['batch_size']:,} | {row['rule']} | {row['delta_h0']:,} | {row['scale']:,.4g} "
            f"| {row['epsilon_x']:.4g} | {row['epsilon_y']:.4g} |"
        )
    lines += [
        "",
        "| method | \\|L\\| | Delta_h0 | epsilon claimed | epsilon proved | dense network "
        "| linear, exact minimum |",
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    finished = [json.loads(line) for line in path.read_text().splitlines()]
    order = ("delta_h0_rule", "batch_size", "epsilon_claimed", "method")
    for row in sorted(finished, key=lambda r: [r[name] for name in order]):
        lines.append(
            f"| {row['method']} | {row['batch_size']:,} | {row['delta_h0_rule']} "
            f"| {row['epsilon_claimed']:g} | {row['epsilon_proved']:,.4g} | {100 * row['accuracy']:.1f} % "
            f"| {100 * row['accuracy_linear']:.1f} % |"
        )
    return "\n".join(lines)


def picture(path: Path, out: Path) -> Path:
    """Accuracy over proved epsilon, a mark for each run, as one SVG."""
    figure, axes = drawing.new(7.0, 4.2)
    finished = [json.loads(line) for line in path.read_text().splitlines()]
    for method, colour in (("adlm", "tab:blue"), ("ilm", "tab:orange")):
        for key, mark, name in (
            ("accuracy", "o", "dense network"),
            ("accuracy_linear", "x", "linear minimum"),
        ):
            own = [(row["epsilon_proved"], 100 * row[key]) for row in finished if row["method"] == method]
            axes.scatter(*zip(*own, strict=True), marker=mark, s=24, color=colour, label=f"{method}, {name}")
    axes.axhline(10, ls=":", lw=1, color="grey")
    axes.set_xscale("log")
    axes.set_xlabel("proved epsilon")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("The paper's mechanism on MNIST: it learns where nothing is guaranteed", fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    return drawing.save(figure, out)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--out", type=Path, default=Path("results/what-is-proved.jsonl"))
    runner.add_argument("--only", help="run settings whose key contains this text")
    runner.add_argument("--threads", type=int, default=1)
    printer = commands.add_parser("table")
    printer.add_argument("path", type=Path)
    drawer = commands.add_parser("picture")
    drawer.add_argument("path", type=Path)
    drawer.add_argument("--out", type=Path, default=Path("results/what-is-proved.svg"))
    options = parser.parse_args()
    if options.command == "run":
        run(options.out, options.only, options.threads)
    elif options.command == "picture":
        print(picture(options.path, options.out))
    else:
        print(table(options.path))


if __name__ == "__main__":
    main()
