"""The model of a release with gradient rounds, and whether its noise has drowned it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.estimation.gradient_head import (
    RESIDUAL_UNIT,
    GradientRounds,
    Head,
    calibrated,
    calibration_spread,
    class_offsets,
    final_head,
    plausible_counts,
)
from adlm.estimation.shrinkage import shrunk_counts
from adlm.privacy.release import Release

LEAST_EVIDENCE = 3.0  # standard deviations, below which a model would be noise
DROWNED = (
    "the noise of this release leaves a model no better than the largest class, so every record is given "
    "that class; raise epsilon, or release more records"
)
UNSURE = (
    "the noise of this release is too large to tell whether its model is better than the largest class; "
    "raise epsilon, or release more records"
)


def has_rounds(release: Release) -> bool:
    """Whether a release has gradient rounds."""
    return "gradients" in release.tensors


def rounds_head(release: Release) -> Head:
    """Compute the head of a release anew from its gradients: bit for bit the curator's."""
    if not has_rounds(release):
        raise UserError("this release has no gradient rounds; its model comes from its moments")
    plan = GradientRounds.from_dict(release.certificate.settings["rounds"])
    counts, settings = release.tensors["class_sums"][:, 0].numpy(), release.certificate.settings
    sd = float(settings["sd_sums"])
    offsets = class_offsets(counts, sd)
    head = final_head(release.tensors["gradients"].numpy(), plan, offsets)
    if "predicted" not in release.tensors:
        return head
    step = float(release.tensors["step"][0])
    spread = calibration_spread(sd * step, float(settings["sd_predicted"]))
    known = plausible_counts(counts, sd).astype(np.float64) * step
    for row in release.tensors["predicted"].numpy():
        head = calibrated(head, known, row / RESIDUAL_UNIT, spread)
    return head


def log_shares(release: Release) -> Tensor:
    """Log class shares from released counts, (M,)."""
    counts = release.tensors["class_sums"][:, 0].numpy()
    return torch.from_numpy(class_offsets(counts, float(release.certificate.settings["sd_sums"])))


def estimated_accuracy(release: Release) -> tuple[float, float] | None:
    """Accuracy of the head on the private records, and the standard deviation of its noise; None without.

    It is released and charged like everything else. The head was trained on these records, so it is a little
    too high for new ones.
    """
    if not has_rounds(release):
        return None
    n = max(release.moments().n, 1.0)
    right = float(release.tensors["correct"][0])
    return min(max(right / n, 0.0), 1.0), float(release.certificate.settings["sd_correct"]) / n


def drowned(release: Release) -> bool:
    """Whether the noise of a release leaves a model that is no better than the largest class.

    With gradient rounds, by the released count of records that the head gets right. Without, by how much
    longer the differences of class means are than their noise makes them.
    """
    found = estimated_accuracy(release)
    if found is None:
        return _evidence_of_means(release) < LEAST_EVIDENCE
    return found[0] < float(log_shares(release).exp().max())


def warning(release: Release) -> str:
    """What is to be said of a model of this release, in one sentence; empty where nothing is."""
    if drowned(release):
        return DROWNED
    found = estimated_accuracy(release)
    if found is not None:
        moments = release.moments()
        spread = math.hypot(found[1], moments.sd_counts / max(moments.n, 1.0))
        if found[0] - LEAST_EVIDENCE * spread < float(log_shares(release).exp().max()):
            return UNSURE
    return ""


def _evidence_of_means(release: Release) -> float:
    moments = release.moments()
    counts = shrunk_counts(moments)
    means = moments.sums / counts[:, None]
    centre = moments.sums.sum(0) / moments.n
    weighted = counts[:, None] * (means - centre) ** 2 / moments.n
    noise = (moments.sd_sums[None] ** 2 / counts[:, None]) / moments.n
    return float((weighted.sum() - noise.sum()) / (2 * (noise**2).sum()).sqrt().clamp_min(1e-300))
