"""The model of a release with gradient rounds, recomputed from its gradients."""

from __future__ import annotations

import numpy as np

from adlm.errors import UserError
from adlm.estimation.class_counts import class_offsets, plausible_counts
from adlm.estimation.gradient_head import (
    RESIDUAL_UNIT,
    GradientRounds,
    Head,
    calibrated,
    calibration_spread,
    feature_mean,
    final_head,
)
from adlm.privacy.release import Release


def has_rounds(release: Release) -> bool:
    """Whether a release has gradient rounds."""
    return "gradients" in release.tensors


def rounds_head(release: Release) -> Head:
    """Recompute the head of a release from its gradients: bit for bit the curator's."""
    if not has_rounds(release):
        raise UserError("this release has no gradient rounds; its model comes from its moments")
    plan = GradientRounds.from_dict(release.certificate.settings["rounds"])
    sums, step = release.tensors["class_sums"].numpy(), release.tensors["step"].numpy()
    counts, settings = sums[:, 0], release.certificate.settings
    sd = float(settings["sd_sums"])
    offsets = class_offsets(counts, sd)
    head = final_head(release.tensors["gradients"].numpy(), plan, offsets)
    if "predicted" in release.tensors:
        spread = calibration_spread(sd * float(step[0]), float(settings["sd_predicted"]))
        known = plausible_counts(counts, sd).astype(np.float64) * float(step[0])
        for row in release.tensors["predicted"].numpy():
            head = calibrated(head, known, row / RESIDUAL_UNIT, spread)
    return head.uncentred(feature_mean(sums, step, sd)) if plan.centred else head
