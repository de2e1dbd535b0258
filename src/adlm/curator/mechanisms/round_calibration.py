"""Noise scales and charges of gradient rounds. Proof: docs/proof-gradients.md."""

from __future__ import annotations

from fractions import Fraction

from adlm.curator.mechanisms.calibration import Spending
from adlm.curator.mechanisms.gradient_rounds import clip_of, predicted_sensitivity
from adlm.curator.mechanisms.moment_config import MomentConfig, Scales
from adlm.estimation.gradient_head import GradientRounds
from adlm.runtime.roots import root_up

PROOF = "docs/proof-gradients.md"
PREDICTED_SHARE = Fraction(1, 50)  # of the budget, for sums of predicted probabilities


def calibrate_rounds(config: MomentConfig, rounds: GradientRounds, spending: Spending) -> Scales:
    """Indicators, class sums and gradient rounds, each with its share of the budget."""
    gaussian, neighbours = config.mechanism == "gaussian", spending.neighbours
    left, counts, values, predicted = Fraction(1), 0, 0, 0
    if config.indicators is not None:
        moved = config.indicators.clip().counts_sensitivity(neighbours)
        counts = spending.scale("counts of indicators", moved, config.indicators.share, f"{PROOF} Theorem 1")
        left -= config.indicators.share
    if config.indicators is not None and config.indicators.values:
        moved = config.indicators.values_clip().second_sensitivity(neighbours)
        share, proof = config.indicators.values_share, "docs/proof-moments.md Theorem 2"
        values = spending.scale("second moments of values", moved, share, proof)
        left -= share
    clip = config.clip()
    moved = clip.sums_sensitivity(neighbours) if gaussian else clip.rows_sensitivity(neighbours)
    theorem = "Theorem 2" if gaussian else "Theorem 1"
    sums = spending.scale(
        "class sums and counts", moved, left * config.share_sums, f"docs/proof-moments.md {theorem}"
    )
    one = clip_of(rounds).sensitivity(neighbours)
    gradients = spending.scale(
        f"gradients of {rounds.rounds} rounds",
        root_up(rounds.rounds * one**2) if gaussian else rounds.rounds * one,
        left * (1 - config.share_sums - config.check_share - (PREDICTED_SHARE if config.calibrations else 0)),
        f"{PROOF} Theorem 2",
    )
    if config.calibrations:
        moved = root_up(config.calibrations * predicted_sensitivity(neighbours) ** 2)
        what = "sums of predicted probabilities"
        predicted = spending.scale(what, moved, left * PREDICTED_SHARE, f"{PROOF} Theorem 3")
    correct = spending.scale(
        "records that the head gets right", Fraction(1), left * config.check_share, f"{PROOF} Theorem 4"
    )
    return Scales(
        sums, gradients=gradients, indicators=counts, correct=correct, values=values, predicted=predicted
    )
