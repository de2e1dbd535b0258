"""The methods of the comparison on tables: trained on one side of a split, measured on the other."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlm.errors import UserError
from adlm.mechanism.privatise import Fourier, privatise
from adlm.model.fit import fit
from adlm.model.metrics import Measures, measure
from benchmarks.experiments.table_split import Split

OURS = "adlm, replace-one"
OURS_ADDED = "adlm, add-remove"
OURS_FOURIER = "adlm with random Fourier features, replace-one"
LOGISTIC, BOOSTING = "logistic regression, no privacy", "gradient boosting, no privacy"
DPSGD = "DP-SGD logistic regression, add-remove"
DPSGD_REPLACED = "DP-SGD logistic regression, replace-one"
DPSGD_TUNED = "DP-SGD logistic regression tuned for the table, add-remove"
PENALTIES = ("1", "0.1", "0.01")  # diffprivlib's C: its default, and two that did better in validation
EBM = "DP-EBM of interpret"
MAKE = {  # how to make an environment for another library
    "diffprivlib": "pip install diffprivlib==0.6.6 scikit-learn==1.6.1",
    "interpret": "pip install interpret==0.7.8",
}


def diffprivlib_name(penalty: str) -> str:
    """The name of diffprivlib's rows for one C."""
    return f"diffprivlib logistic regression, C {penalty}" + (" (its default)" if penalty == "1" else "")


def ours(
    split: Split,
    epsilon: str,
    delta: str,
    releases: int,
    fourier: Fourier = 0,
    neighbours: str = "replace-one",
) -> list[Measures]:
    """Fresh releases with the system's noise, which cannot be reproduced; their mean is reported.

    Parameters
    ----------
    split : records to release, and others to measure on.
    epsilon, delta : the budget of one release.
    releases : number of releases.
    fourier : random Fourier features, 0 for the rule's.
    neighbours : the relation; under add-remove the number of records serves as the public guess.
    """
    table = replace(split.table, neighbours=neighbours)
    batches = split.batches()
    measures = []
    for _ in range(releases):
        release = privatise(
            lambda: batches, domain=table, epsilon=epsilon, delta=delta, fourier=fourier, size=len(split.y)
        )
        measures.append(measure(fit(release).probabilities(split.test), split.truth))
    return measures


def without_privacy(split: Split, method: str) -> list[Measures]:
    """Logistic regression on the indicators, or gradient boosting on the encoded columns."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    make: Callable[[], Any]
    if method == LOGISTIC:
        (x, test), make = split.indicators(), lambda: LogisticRegression(max_iter=2000)
    else:
        x, test, make = split.x, split.test, lambda: HistGradientBoostingClassifier(random_state=0)
    return [measure(make().fit(x, split.y).predict_proba(test), split.truth)]


def dpsgd_logistic(split: Split, epsilon: str, runs: int, neighbours: str = "add-remove") -> list[Measures]:
    """DP-SGD with Opacus, on the same indicators; replacing a record counts as twice the clip norm.

    Parameters
    ----------
    split : the table.
    epsilon : the budget, with delta 1e-5.
    runs : how many.
    neighbours : the relation.
    """
    from benchmarks.baselines import dpsgd
    from benchmarks.baselines.networks import linear

    # the best of four settings on the validation split of Adult, written out so that they stay fixed
    settings = dpsgd.Settings(
        DPSGD, 2048, 12, 1.0, 4.0, momentum=0.9, chunk=4096, source="cells of this package"
    )
    settings = replace(settings, batch=min(settings.batch, len(split.y) // 4))  # a small table
    z, test = (torch.from_numpy(side) for side in split.features())
    certificate = dpsgd.certify(settings, len(z), epsilon, neighbours=neighbours)
    measures = []
    for seed in range(runs):
        torch.manual_seed(seed)
        network = linear(z.shape[1], len(split.table.label.classes))
        trained = dpsgd.follow(network, z.clone(), split.y, settings, certificate, seed=seed)
        with torch.inference_mode():
            measures.append(measure(trained.network(test).double().softmax(1).numpy(), split.truth))
    return measures


# What DP-SGD is tuned over: columns, share of the records in a batch with epochs, clip norm with rate.
COLUMNS = ("binned", "plain")
BATCHES = ((1 / 16, 10.0), (1 / 4, 20.0), (1 / 2, 60.0))
STEPS = ((1.0, 1.0), (1.0, 4.0), (0.3, 4.0), (0.3, 16.0))


def dpsgd_columns(split: Split, columns: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What DP-SGD trains on: indicators of categories and bins, or one number a column in [-1, 1]."""
    if columns == "binned":
        train, test = split.features()
        return torch.from_numpy(train), torch.from_numpy(test)
    sides = (torch.from_numpy(2 * side - 1) / np.sqrt(side.shape[1]) for side in (split.x, split.test))
    train_, test_ = sides
    return train_, test_


def dpsgd_tuned(split: Split, epsilon: str, runs: int) -> list[Measures]:
    """DP-SGD with Opacus, its settings chosen for this table and budget on held-out training records.

    The choice costs privacy that is not charged, which favours DP-SGD.

    Parameters
    ----------
    split : the table.
    epsilon : the budget, with delta 1e-5, under add-remove.
    runs : how many.
    """
    validation = split.validation()
    choices = [(c, b, s) for c in COLUMNS for b in BATCHES for s in STEPS]
    found = [_dpsgd(validation, epsilon, choice, seed=0).accuracy for choice in choices]
    best = choices[int(np.argmax(found))]
    return [_dpsgd(split, epsilon, best, seed=seed) for seed in range(runs)]


def _dpsgd(
    split: Split, epsilon: str, choice: tuple[str, tuple[float, float], tuple[float, float]], *, seed: int
) -> Measures:
    from benchmarks.baselines import dpsgd
    from benchmarks.baselines.networks import linear

    columns, (share, epochs), (clip, rate) = choice
    n = len(split.y)
    settings = dpsgd.Settings(
        DPSGD_TUNED, max(1, round(share * n)), epochs, clip, rate, momentum=0.9, chunk=4096, ghost=True
    )
    z, test = dpsgd_columns(split, columns)
    certificate = dpsgd.certify(settings, n, epsilon)
    torch.manual_seed(seed)
    network = linear(z.shape[1], len(split.table.label.classes))
    trained = dpsgd.follow(network, z.clone(), split.y, settings, certificate, seed=seed)
    with torch.inference_mode():
        return measure(trained.network(test).double().softmax(1).numpy(), split.truth)


def diffprivlib_logistic(split: Split, epsilon: str, penalty: str, runs: int, python: str) -> list[Measures]:
    """diffprivlib's logistic regression on the same indicators, in its own environment.

    The indicators are passed in a temporary folder that only its owner can read; the weights are returned.

    Parameters
    ----------
    split : the table.
    epsilon : the budget.
    penalty : C of the regression.
    runs : how many.
    python : the interpreter.
    """
    z, test = split.features()
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", z.astype(np.float64))
        np.save(Path(folder) / "y.npy", split.y)
        done = _run("diffprivlib", python, folder, epsilon, penalty, str(runs)).strip().splitlines()[-1]
    measures = []
    for model in json.loads(done):
        logits = test @ np.array(model["weight"]) + model["bias"]
        chance = 0.5 * (1 + np.tanh(logits / 2))
        measures.append(measure(np.stack([1 - chance, chance], 1), split.truth))
    return measures


def dp_ebm(split: Split, epsilon: str, runs: int, python: str) -> list[Measures]:
    """interpret's explainable boosting machine with privacy, on the columns, in its own environment.

    It gets the kind of each column and the bounds [0, 1] of positions; all other settings are its defaults.
    """
    x, test, kinds = split.columns()
    with tempfile.TemporaryDirectory() as folder:
        for name, values in (("x", x), ("test", test), ("y", split.y)):
            np.save(Path(folder) / f"{name}.npy", values)
        (Path(folder) / "kinds.json").write_text(json.dumps(kinds), encoding="utf-8")
        _run("interpret", python, folder, epsilon, "1e-5", str(runs))
        return [measure(np.load(Path(folder) / f"p{run}.npy"), split.truth) for run in range(runs)]


SCRIPTS = {"diffprivlib": "diffprivlib_logistic.py", "interpret": "interpret_ebm.py"}


def _run(library: str, python: str, *words: str) -> str:
    script = Path(__file__).with_name(SCRIPTS[library])
    try:
        return subprocess.run(
            [python, str(script), *words], capture_output=True, text=True, check=True
        ).stdout
    except OSError as error:
        raise UserError(f"{library}'s Python {python} cannot be run ({error.strerror})") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"{python} cannot fit the model of {library} ({last}); give an environment of its own "
            f"({MAKE[library]})"
        ) from None
