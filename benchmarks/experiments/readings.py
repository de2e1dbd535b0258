"""Readings of lines 12-19: who shares the noise, and when it is drawn. For experiments alone.

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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.model.training import Examples
from adlm.paper.release import SCALE, RecordMechanism
from adlm.privacy.accounting import Charge, Totals, compose
from adlm.privacy.certificate import Certificate
from adlm.privacy.noise import Source

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
    """Records by a reading, and the (M, |h|) noise that all of training shares on the output layer's loss.

    Parameters
    ----------
    x, labels : (n, *shape) records in [0, 1], and their n class codes.
    perturbation : budget ratios and noise scales, as the record release has them.
    source : of noise that is drawn once. Noise that is redrawn takes its seed from torch's generator, which
        the training loop sets at each epoch, so that a run can be resumed.
    """
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

    Parameters
    ----------
    reading : of the paper's noise.
    perturbation : the mechanism for this data set.
    extra : charges that came before.
    reads : times that each record is read.

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


def totals(reading: str, perturbation: RecordMechanism, extra: tuple[Charge, ...], reads: int) -> Totals:
    """Claimed and proved epsilon of a reading.

    Parameters
    ----------
    reading, perturbation, extra, reads : as for `certify`.
    """
    return compose(certify(reading, perturbation, extra, reads).charges)


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
