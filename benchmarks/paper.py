"""The paper's networks trained by each reading of its noise, with the control that has none, to compare with.

Lemma 4 writes the sum over a batch of (1/|L|) Lap as one Lap, which it is when *one* draw is shared by the
batch. That is what the authors' published code does, and with it the paper's accuracies can be reached. It
gives no privacy: the difference of two records of a batch carries no noise. So nothing is proved for such a
reading; its certificate says so, and no release can be made of it, as records are read at every step.

Readings, from the least noise that averaging leaves to the most:

`no-noise` : the control.
`shared` : one noise image for all records of a batch, redrawn at each step, and one matrix of noise on the
    loss for all of training: the authors' code.
`shared-own-labels` : the same image, but independent noise for each label, drawn once.
`one-image` : one noise image for all records and steps.
`own-once` : independent noise for each record, drawn once: Algorithm 1 as it is written.
`own-redrawn` : independent noise for each record, redrawn each time the record is read.

The budgets are split as in the authors' code for each data set. ILM is run twice: with AdLM's eps2 and eps3,
so that AdLM pays for relevances on top, and with its total divided between features and labels.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from platformdirs import user_cache_dir
from torch import Tensor, nn

from adlm.data import datasets
from adlm.domain import Domain
from adlm.errors import UserError
from adlm.model.training import Checkpoint, Examples, TrainingConfig, forward_in_chunks, train
from adlm.paper.networks import build, by_batch, layer_sizes
from adlm.paper.release import SCALE, Budgets, RecordMechanism, Settings, mechanism_for
from adlm.paper.relevance import PrivateRelevance, RelevanceSource, make_public, private_relevance
from adlm.privacy.accounting import Charge, parse_epsilon
from adlm.privacy.certificate import Certificate
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.runtime.artefact import write_file
from benchmarks import images
from benchmarks.trials import Outcome, Trial

SPLIT = ("0.25", "0.25", "0.5")  # for relevances, features and labels: the authors' code for MNIST
CIFAR_SPLIT = ("0.1", "0.6", "0.3")  # their code for CIFAR-10
READINGS = ("no-noise", "shared", "shared-own-labels", "one-image", "own-once", "own-redrawn")
PROVED = ("own-once", "own-redrawn")
FLOOR = 1e-5  # the authors raise relevances to it before they divide the budget
STAMP = "NOT PRIVATE: one noise image for a batch"
WHY = {
    "no-noise": "there is no noise",
    "shared": "the difference of two records of a batch carries no noise, nor does that of two labels",
    "shared-own-labels": "the difference of two records of a batch carries no noise",
    "one-image": "the difference of any two records carries no noise",
}


@dataclass(frozen=True)
class Reading(Examples):
    """Records with the noise of a reading, for the training loop, batch by batch.

    Attributes
    ----------
    x : (n, *shape) records in [0, 1], without noise.
    target : coefficients of the loss, with independent noise where the reading has it.
    draw : noise for a batch of a given size, broadcast over records where it is shared.
    """

    draw: Callable[[int], Tensor] | None = None

    def batch(self, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Some of the records with their noise, and their coefficients."""
        x, target = super().batch(rows, device)
        return (x if self.draw is None else x + self.draw(len(rows)).to(device)), target


def read(
    reading: str, x: Tensor, labels: Tensor, perturbation: RecordMechanism, source: Source
) -> tuple[Reading, Tensor | None]:
    """Records by a reading, and the (M, |h|) noise that all of training shares on the output layer's loss."""
    check(reading)
    settings, classes = perturbation.settings, len(perturbation.domain.classes)
    target = settings.loss.coefficients(labels, classes)
    if reading == "no-noise":
        return Reading(x, target), None
    shape, unit = perturbation.domain.shape, _finite(perturbation.units)

    def image(count: int, of: Source) -> Tensor:
        noise = of.laplace((count, unit.size), SCALE) * unit
        return torch.from_numpy(noise.astype(np.float32)).view(count, *shape)

    matrix = None
    if reading in ("shared", "one-image"):
        drawn = source.laplace((classes, settings.hidden), SCALE) * perturbation.label_unit
        matrix = torch.from_numpy(drawn.astype(np.float32))
    else:
        noise = source.laplace((len(labels), classes), SCALE) * perturbation.label_unit
        target[:, 1] += torch.from_numpy(noise.astype(np.float32))
    if reading == "own-once":
        noisy = torch.empty_like(x)
        for start in range(0, len(x), 1000):
            part = x[start : start + 1000]
            noisy[start : start + 1000] = part + image(len(part), source)
        return Reading(noisy, target), matrix
    if reading == "one-image":
        once = image(1, source)
        return Reading(x, target, lambda count: once), matrix
    each = reading == "own-redrawn"
    return Reading(x, target, lambda count: image(count if each else 1, _next())), matrix


def share_label_noise(network: nn.Sequential, matrix: Tensor | None) -> Callable[[], None]:
    """Put shared noise on the output layer's loss; return a function that removes it.

    The authors subtract sum(P W) from the loss of each of the M outputs, so that the gradient of W is off by
    the same M P in each step.
    """
    if matrix is None:
        return lambda: None
    layer = network[-1]
    if not isinstance(layer, nn.Linear) or layer.weight.shape != matrix.shape:
        raise UserError(
            f"shared label noise of shape {tuple(matrix.shape)} needs a linear output layer of it"
        )
    handle = layer.weight.register_hook(lambda gradient: gradient - len(matrix) * matrix)  # type: ignore[no-untyped-call]
    return lambda: handle.remove()


def certify(
    reading: str, perturbation: RecordMechanism, extra: tuple[Charge, ...], reads: int
) -> Certificate:
    """The charges of a reading, claimed and proved, after every record was read `reads` times.

    Formal guarantees
    -----------------
    `own-once`: those of `RecordMechanism.charges`. `own-redrawn`: the features' charge once for each time a
    record is read (basic composition). Of the others nothing is proved, and every charge says why.
    """
    check(reading)
    features, labels = perturbation.charges  # a reading always has labels
    if reading == "own-redrawn":
        scale = features.scale / reads
        what = f"{features.what}, drawn anew {reads} times"
        features = replace(
            features, what=what, scale=Fraction(scale), proof=f"{features.proof}; {reads} reads"
        )
    charges = (*extra, features, labels)
    if reading not in PROVED:
        charges = tuple(replace(charge, unproved=WHY[reading]) for charge in charges)
    stamps = () if reading in PROVED else (STAMP,)
    settings: dict[str, Any] = {
        "reading": reading,
        "reads": reads,
        "delta_h0": str(perturbation.settings.delta_h0),
    }
    return Certificate("reading", perturbation.domain, {}, settings, charges, stamps)


def check(reading: str) -> None:
    """Refuse an unknown reading."""
    if reading not in READINGS:
        raise UserError(f"reading must be one of {', '.join(READINGS)} (got {reading!r}).")


def _next() -> Source:
    """A source seeded by torch's generator."""
    return Source.seeded_with(int(torch.randint(2**62, ())))


def _finite(units: Any) -> Any:
    """Units of the noise; a feature that is not released has noise alone, of scale 1e6."""
    return np.where(np.isfinite(units), units, 1e6 / SCALE)


# ---- trials


def budgets_of(method: str, epsilon: str, split: Sequence[str] = SPLIT) -> Budgets:
    """Split of a claimed total by method; `ilm-...-total` has AdLM's total, other ILM its eps2, eps3."""
    shares = tuple(split)
    if method.startswith("ilm") and method.endswith("-total"):
        return Budgets.split(epsilon, shares, "ilm")
    budgets = Budgets.split(epsilon, shares)
    return budgets if method.startswith("adlm") else replace(budgets, epsilon1=None)


def perform(trial: Trial) -> Outcome:
    """Train a network by the reading of a trial and measure it on the public test split.

    The trial is saved after every epoch and resumed from there when it is run again. Test records are
    evaluated all together, with their own batch statistics, because those of training are of noisy batches
    and do not suit clean records.
    """
    s = dict(trial.settings)
    declared, part = images.domain(trial.data), images.split(trial.data, "train").first(s["n"])
    x, labels = images.scaled(trial.data, "train")[: s["n"]], torch.from_numpy(part.y)
    torch.manual_seed(trial.seed)
    network = build(s["network"], declared.shape, len(declared.classes))
    assert isinstance(network, nn.Sequential)
    plan = TrainingConfig(
        steps=s["steps"],
        batch_size=s["train_batch"],
        optimiser="Adam",
        learning_rate=s["rate"],
        seed=trial.seed,
    )
    per_epoch = math.ceil(len(x) / plan.batch_size)
    relevance, budgets = None, Budgets.split("1", SPLIT, "ilm")
    if s["reading"] != "no-noise":
        budgets = budgets_of(trial.method, trial.epsilon, s.get("split", SPLIT))
        if budgets.epsilon1:
            relevance = _relevance(trial.data, s["n"], str(budgets.epsilon1), trial.seed)
    perturbation = _perturbation(declared, s, budgets, relevance)
    examples, matrix = read(s["reading"], x, labels, perturbation, Source.seeded_with(trial.entropy))
    share_label_noise(network, matrix)
    test, answers = images.scaled(trial.data, "test"), images.split(trial.data, "test").y
    checkpoint = _checkpoint_path(trial)
    history: list[list[float]] = (
        json.loads(checkpoint.with_suffix(".json").read_text()) if checkpoint.exists() else []
    )

    def after_epoch(epoch: int, trained: nn.Module) -> None:
        step = min(epoch * per_epoch, s["steps"])
        if epoch in (1, 2, 4, 7) or epoch % 5 == 0 or step == s["steps"]:
            history.append([step, accuracy(trained, test, answers)])
        write_file(checkpoint.with_suffix(".json"), json.dumps(history).encode(), what="history")

    ended = train(
        network,
        examples,
        plan,
        device="cpu",
        checkpoint=Checkpoint(checkpoint, resume=True),
        identity=trial.key,
        after_epoch=after_epoch,
    )
    if not history or history[-1][0] < s["steps"]:  # training ended before its last step
        history.append([s["steps"], accuracy(network, test, answers)])
    for file in (checkpoint, checkpoint.with_suffix(".json")):
        file.unlink(missing_ok=True)
    outcome = {"accuracy": history[-1][1], "history": history, "stopped": ended.stopped, "steps": s["steps"]}
    if s["reading"] == "no-noise":
        nothing = {"epsilon_claimed": None, "epsilon_proved": None, "delta": 0.0, "neighbours": "replace-one"}
        return outcome | nothing
    extra = () if relevance is None else relevance.charges
    certificate = certify(s["reading"], perturbation, extra, math.ceil(s["steps"] / per_epoch))
    return outcome | certificate.totals.to_dict()


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, labels: Any, *, together: bool = True) -> float:
    """Accuracy, with the batch statistics of all of these records together or those of training."""
    was, right = network.training, torch.as_tensor(labels)
    with by_batch(network.eval(), together):
        predicted = forward_in_chunks(network, x).argmax(1)
    network.train(was)
    return float((predicted == right).double().mean())


def _perturbation(
    domain: Domain, s: dict[str, Any], budgets: Budgets, relevance: PrivateRelevance | None
) -> RecordMechanism:
    """Noise scales of the full-width network, whatever the width of the one that is trained."""
    sizes = layer_sizes(build(s["sized"], domain.shape, len(domain.classes)), domain.shape)
    settings = Settings(
        epsilon2=budgets.epsilon2,
        epsilon3=budgets.epsilon3 or Fraction(0),
        batch_size=s["batch"],
        delta_h0=Fraction(sizes.per_patch),
        delta_h0_rule="per-patch",
        hidden=sizes.hidden,
        allocation="identical" if relevance is None else "linear",
    )
    return mechanism_for(settings, domain, relevance)


@lru_cache(maxsize=4)
def _relevance(data: str, n: int | None, epsilon1: str, seed: int) -> PrivateRelevance:
    """Private relevances by a public network, raised to the authors' floor."""
    public = make_public(datasets.domain(data).shape, name="mlp", per_class=50, epochs=6)
    relevance = private_relevance(
        RelevanceSource(public.network, "public"),
        images.split(data, "train").first(n).x,
        images.domain(data),
        epsilon=parse_epsilon(epsilon1),
        ledger=Ledger(),
        source=Source.seeded_with(seed),
    )
    return replace(relevance, values=np.maximum(relevance.values, FLOOR))


def _checkpoint_path(trial: Trial) -> Path:
    """Checkpoint of a running trial; the data sets are public, so this may be in the cache."""
    folder = Path(os.environ.get("ADLM_CACHE") or user_cache_dir("adlm")) / "experiments"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{trial.key}.checkpoint"
