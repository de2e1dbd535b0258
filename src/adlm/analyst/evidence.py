"""Whether a model is better than the majority class, judged from the release alone.

Where released numbers cannot decide, one sentence says so.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from adlm.estimation.class_counts import class_offsets
from adlm.estimation.discriminant import LinearHead
from adlm.estimation.shrinkage import shrunk_counts
from adlm.privacy.release import Release

LEAST_EVIDENCE = 3.0  # standard deviations, below which a model is dominated by noise
DROWNED = (
    "the noise of this release leaves a model no better than the largest class, so every record is given "
    "that class; raise epsilon, or release more records"
)
UNSURE = (
    "the noise of this release is too large to tell whether its model is better than the largest class; "
    "raise epsilon, or release more records"
)
GAIN = 0.02  # expected gain on guessing, times the noise on the released accuracy
MOST_GAIN = 0.3
MOST_DOUBT = 0.05  # a model is kept if it is behind by less than this and the noise on its accuracy
GRID = 513  # accuracies of the posterior's grid


def log_shares(release: Release) -> Tensor:
    """Log class shares from released counts, (M,)."""
    counts = release.tensors["class_sums"][:, 0].numpy()
    return torch.from_numpy(class_offsets(counts, float(release.certificate.settings["sd_sums"])))


def _right(release: Release) -> tuple[float, float] | None:
    """Noisy share of private records that are classified correctly, and its noise's standard deviation."""
    if "correct" not in release.tensors:
        return None
    settings = release.certificate.settings
    n = max(release.moments().n, 1.0)
    return float(release.tensors["correct"][0]) / n, float(settings["sd_correct"]) / n


def estimated_accuracy(release: Release) -> tuple[float, float] | None:
    """Accuracy of the model on the private records, and its noise's standard deviation; None if not released.

    It is charged like every release. The model was trained on these records, so it is slightly optimistic.
    """
    right = _right(release)
    return None if right is None else (min(max(right[0], 0.0), 1.0), right[1])


def expected_accuracy(right: float, sd: float, shares: Tensor) -> float:
    """Return the posterior mean of a model's accuracy, given a noisy one and the class shares.

    A random model with the right class shares has the sum of their squares. The gain over that has an
    exponential prior, whose mean is smaller the more noise there is.

    Parameters
    ----------
    right : released accuracy, which noise may have moved below 0 or above 1.
    sd : standard deviation of that noise.
    shares : (M,) class shares.
    """
    guessing = float((shares**2).sum())
    grid = np.linspace(guessing, 1.0, GRID)
    gain = min(MOST_GAIN, GAIN / max(sd, 1e-9))
    log_odds = -(grid - guessing) / gain - 0.5 * ((grid - right) / max(sd, 1e-4)) ** 2
    odds = np.exp(log_odds - log_odds.max())
    return float(grid @ odds / odds.sum())


def below_majority_baseline(release: Release) -> bool:
    """Whether a model of a release is expected to be no better than the largest class.

    By the released count of correctly classified records if there is one, else by how far the differences of
    class means exceed their noise.
    """
    right = _right(release)
    if right is None:
        return _evidence_of_means(release) < LEAST_EVIDENCE
    shares = log_shares(release).exp()
    return expected_accuracy(*right, shares) + min(right[1], MOST_DOUBT) < float(shares.max())


def warning(release: Release) -> str:
    """The warning about a model of this release, in one sentence; empty if none."""
    if below_majority_baseline(release):
        return DROWNED
    accuracy = estimated_accuracy(release)
    if accuracy is not None:
        spread = math.hypot(accuracy[1], _count_spread(release))
        if accuracy[0] - LEAST_EVIDENCE * spread < float(log_shares(release).exp().max()):
            return UNSURE
    return ""


def _count_spread(release: Release) -> float:
    """Standard deviation of the noise on a class share."""
    moments = release.moments()
    return moments.sd_counts / max(moments.n, 1.0)


def majority_class_head(head: LinearHead, shares: Tensor, reach: Tensor) -> LinearHead:
    """Return a head that predicts the majority class for every record, and ranks records as before.

    Where classes differ in size, weights are shrunk until no score exceeds the majority class's.

    Parameters
    ----------
    head : one that is no better than the largest class.
    shares : (M,) log class shares.
    reach : (M,) largest lead of each score over the largest class's, without offsets.
    """
    behind = shares.max() - shares
    others = torch.arange(len(shares)) != int(shares.argmax())
    margin = (behind[others] / reach[others].clamp_min(1e-12)).min() if bool(others.any()) else behind.sum()
    return LinearHead(head.weight * min(1.0, 0.99 * float(margin)), shares)


def _evidence_of_means(release: Release) -> float:
    moments = release.moments()
    counts = shrunk_counts(moments)
    means = moments.sums / counts[:, None]
    centre = moments.sums.sum(0) / moments.n
    weighted = counts[:, None] * (means - centre) ** 2 / moments.n
    noise = (moments.sd_sums[None] ** 2 / counts[:, None]) / moments.n
    return float((weighted.sum() - noise.sum()) / (2 * (noise**2).sum()).sqrt().clamp_min(1e-300))
