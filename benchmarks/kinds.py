"""Every kind of network on record releases of scikit-learn's digits, with its control without noise.

python -m benchmarks.kinds --out results/kinds.jsonl
"""

from __future__ import annotations

import argparse
import copy
import json
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch

from adlm.data import datasets
from adlm.model.fit import fit
from adlm.model.training import Examples, default_plan, train
from adlm.paper import Budgets, PrivateRecords, RecordOptions, make_release
from adlm.paper.loss import CROSS_ENTROPY
from adlm.paper.networks import Unsupervised, build
from adlm.paper.training import learn_records
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import progress
from benchmarks import runner
from benchmarks.pages import epsilon as shown
from benchmarks.pages import grid
from benchmarks.paper import accuracy

KINDS = ("mlp", "small-cnn", "auto-encoder", "rbm", "deep-belief", "recurrent", "attention")
SCALES = (Fraction(1, 100), Fraction(1, 4), Fraction(1))  # of the noise on a pixel, in its range
L = 100


def run(out: Path) -> None:
    """Run the networks and budgets that are not in the file yet and append them."""
    cases = [(name, scale) for name in KINDS for scale in (None, *SCALES)]
    work = ((json.dumps([name, str(scale)]), partial(_performed, name, scale)) for name, scale in cases)
    runner.run(out, work, lambda line: json.dumps(line["key"]), resume=True)
    runner.record(out, "python -m benchmarks.kinds")


def _performed(name: str, scale: Fraction | None) -> dict[str, Any]:
    return {"key": [name, str(scale)]} | (_control(name) if scale is None else _noisy(name, scale))


def _control(name: str) -> dict[str, Any]:
    """The network without noise, by the same plan and the same polynomial loss."""
    part, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    x, labels = torch.from_numpy(part.domain.scale(part.x)), torch.from_numpy(part.y)
    inputs, answers = torch.from_numpy(test.domain.scale(test.x)), torch.from_numpy(test.y)
    torch.manual_seed(0)
    network = build(name, part.domain.shape, 10)
    figures: dict[str, Any] = {}
    if isinstance(network, Unsupervised):
        alone = copy.deepcopy(network)
        alone.learn_records(x)
        figures["error"] = alone.error(inputs)
    train(network, Examples(x, CROSS_ENTROPY.coefficients(labels, 10)), default_plan(len(x)), device="cpu")
    return figures | {"accuracy": accuracy(network, inputs, answers, together=False), "epsilon_proved": None}


def _noisy(name: str, scale: Fraction) -> dict[str, Any]:
    """The same on a release whose noise has that scale on every pixel, and labels at the same budget."""
    test = datasets.load("digits", "test")
    release = _release(name, scale, labels=True)
    model = fit(release, name)
    figures: dict[str, Any] = {
        "accuracy": float((model.predict(test.x) == test.y).mean()),
        "epsilon_proved": release.certificate.totals.to_dict()["epsilon_proved"],
    }
    if isinstance(model.head, Unsupervised):
        alone = _release(name, scale, labels=False)
        inputs = torch.from_numpy(test.domain.scale(test.x))
        figures["error"] = learn_records(alone, name).error(inputs)
        figures["epsilon_without_labels"] = alone.certificate.totals.to_dict()["epsilon_proved"]
    return figures


def _release(name: str, scale: Fraction, *, labels: bool) -> Release:
    part = datasets.load("digits", "train")
    epsilon2 = Fraction(64) / scale  # Delta_h0 = |L| d: what is claimed is proved, d over the scale
    made = make_release(
        PrivateRecords(part.x, part.y if labels else None, part.domain),
        build(name, part.domain.shape, 10),
        Budgets(None, epsilon2, epsilon2 if labels else None),
        L,
        explained=None,
        options=RecordOptions(delta_h0=L * 64),
        ledger=Ledger(),
        source=Source.system(),
    )
    return made


def table(path: Path) -> str:
    """Rows are networks, columns are scales of the noise."""
    by_key = {tuple(row["key"]): row for row in runner.read_lines(path)}
    headings = ["accuracy, %; square error", "no noise", *(f"noise of scale {float(s):g}" for s in SCALES)]
    body = []
    for name in KINDS:
        own = [by_key.get((name, str(scale))) for scale in (None, *SCALES)]
        body.append([name, *(_cell(row) for row in own)])
    proved = [by_key[("mlp", str(scale))]["epsilon_proved"] for scale in SCALES]
    body.append(["*epsilon proved, features and labels*", "none", *(shown(value) for value in proved)])
    return grid(headings, body)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    error = f"; {row['error']:.3f}" if "error" in row else ""
    return f"{100 * row['accuracy']:.1f}{error}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/kinds.jsonl"))
    progress.enable()
    run(parser.parse_args().out)
