"""Claimed epsilon, proved epsilon and accuracy of the paper's Algorithm 1, over settings, on MNIST.

    python -m benchmarks.what_is_proved                        # what is missing, the tables and the picture
    python -m benchmarks.what_is_proved --relevance docs/figures   # the paper's Figs. 1 and 3

The choice of settings is explained in docs/what-is-proved.md; none was tuned. A finished line is not run
again. The accuracy is on the public test split.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from adlm.data import datasets
from adlm.domain import Domain
from adlm.model.training import TrainingConfig
from adlm.paper import Budgets, PrivateRecords, RecordOptions, make_release, train_on_records
from adlm.paper.networks import LayerSizes, build, layer_sizes
from adlm.paper.release import Settings, mechanism_for
from adlm.paper.relevance import (
    STEPS,
    RelevanceNetwork,
    make_public,
    private_relevance,
    relevance,
    relevance_sum,
)
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import progress
from benchmarks import pages, runner
from benchmarks.paper import accuracy

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


def run(out: Path) -> None:
    """Run the settings that are not in the file yet and append them."""
    runner.run(
        out,
        ((setting.key, partial(_performed, setting)) for setting in settings()),
        lambda line: str(line["key"]),
        resume=True,
        say=lambda line: (
            f"{line['key']}: proved {line['epsilon_proved']:.4g}, accuracy {line['accuracy']:.4f}"
        ),
    )


@lru_cache(maxsize=1)
def _relevance(shape: tuple[int, ...]) -> RelevanceNetwork:
    return make_public(shape, name=NETWORK)


def _performed(setting: Setting) -> dict[str, Any]:
    """Release, train, and measure."""
    train, test = datasets.load("mnist", "train"), datasets.load("mnist", "test")
    began, budgets = time.monotonic(), Budgets.split(setting.epsilon, method=setting.method)
    release = make_release(
        PrivateRecords(train.x[:RECORDS], train.y[:RECORDS], train.domain),
        build(NETWORK, train.domain.shape, 10),
        budgets,
        setting.batch_size,
        explained=_relevance(train.domain.shape) if budgets.epsilon1 else None,
        options=RecordOptions(delta_h0=setting.delta_h0(sizes(train.domain))),
        ledger=Ledger(),
        source=Source.system(),
    )
    torch.manual_seed(0)
    network = build(NETWORK, train.domain.shape, 10)
    plan = TrainingConfig(epochs=EPOCHS, batch_size=BATCH, learning_rate=RATE)
    history = train_on_records(release, network, plan, device="cpu")
    totals = release.certificate.totals
    x, labels = torch.from_numpy(test.domain.scale(test.x)), torch.from_numpy(test.y)
    return {
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
    scales = [
        [
            f"{row['batch_size']:,}",
            row["rule"],
            f"{row['delta_h0']:,}",
            f"{row['scale']:,.4g}",
            f"{row['epsilon_x']:.4g}",
            f"{row['epsilon_y']:.4g}",
        ]
        for row in proved_table()
    ]
    headings = ["\\|L\\|", "Delta_h0", "value", "noise scale, eps2 = 1", "proved eps_x / eps2"]
    order = ("delta_h0_rule", "batch_size", "epsilon_claimed", "method")
    finished = sorted(runner.read_lines(path), key=lambda row: [row[name] for name in order])
    runs = [
        [
            row["method"],
            f"{row['batch_size']:,}",
            row["delta_h0_rule"],
            f"{row['epsilon_claimed']:g}",
            f"{row['epsilon_proved']:,.4g}",
            f"{100 * row['accuracy']:.1f} %",
            f"{100 * row['accuracy_linear']:.1f} %",
        ]
        for row in finished
    ]
    columns = ["method", "\\|L\\|", "Delta_h0", "epsilon claimed", "epsilon proved", "dense network"]
    first = pages.grid([*headings, "proved eps_y / eps3"], scales)
    second = pages.grid([*columns, "linear, exact minimum"], runs)
    return f"{first}\n\n{second}".replace("---:", "---")


def picture(path: Path, out: Path) -> Path:
    """Accuracy over proved epsilon, a mark for each run, as one SVG."""
    figure, axes = pages.new(7.0, 4.2)
    finished = runner.read_lines(path)
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
    return pages.save(figure, out)


# ---- relevance of single digits, and the private average

EPSILON = Fraction(1, 2)
DIGITS = 5


def draw_relevance(out: Path) -> None:
    """Write `relevance-records.png`, of test digits, and `relevance-average.png`, with noise of eps1."""
    train, test = datasets.load("mnist", "train"), datasets.load("mnist", "test")
    explained = _relevance(train.domain.shape)
    digits = torch.from_numpy(test.domain.scale(test.x[:DIGITS]))
    relevances = relevance(explained.network, digits).features
    average = private_relevance(
        explained, train.x, train.domain, epsilon=EPSILON, ledger=Ledger(), source=Source.system()
    )
    # Without noise, so for a public benchmark only: how much of the picture is signal.
    clean = relevance_sum(explained.network, train.x, train.domain) / STEPS / len(train)
    scale = 2 * train.domain.size / len(train) / float(EPSILON)
    print(f"over features: sd {clean.std():.4f} of the averages, {2**0.5 * scale:.4f} of the noise")
    out.mkdir(parents=True, exist_ok=True)
    titles = [f"a {train.domain.classes[code]}" for code in test.y[:DIGITS]]
    heat_maps([row.reshape(28, 28) for row in relevances.numpy()], titles, out / "relevance-records.png")
    title = f"average of {len(train):,}, eps1 = {float(EPSILON):g}"
    heat_maps([np.reshape(average.values, (28, 28))], [title], out / "relevance-average.png")


def heat_maps(pictures: Sequence[Any], titles: Sequence[str], path: Path) -> None:
    """Draw pictures side by side: green where a feature matters less, red where more, as in the paper."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    colours = LinearSegmentedColormap.from_list("relevance", ["#2e7d32", "#fdd835", "#b71c1c"])
    figure = Figure(figsize=(2.6 * len(pictures) + 0.8, 3.0), layout="constrained")
    axes: Any = figure.subplots(1, len(pictures), squeeze=False)[0]
    for axis, shown, title in zip(axes, pictures, titles, strict=True):
        axis.set(title=title, xticks=[], yticks=[])
        figure.colorbar(axis.imshow(shown, cmap=colours), ax=axis, shrink=0.8)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run what is missing, print the tables and draw the picture; or draw relevances."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/what-is-proved.jsonl"))
    parser.add_argument("--relevance", type=Path, help="draw relevances into this folder, and nothing else")
    options = parser.parse_args()
    torch.set_num_threads(1)
    progress.enable()
    if options.relevance:
        draw_relevance(options.relevance)
        return
    run(options.out)
    runner.record(options.out, "python -m benchmarks.what_is_proved")
    print(table(options.out))
    picture(options.out, options.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
