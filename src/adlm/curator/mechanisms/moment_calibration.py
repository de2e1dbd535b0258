"""Noise scales and charges of a moment release. Proofs: docs/proof-moments.md, docs/proof-gradients.md."""

from __future__ import annotations

import math
from fractions import Fraction

from adlm.curator.mechanisms import second_moments as stage
from adlm.curator.mechanisms.calibration import Calibration, Spending, off_diagonal, within_budget
from adlm.curator.mechanisms.moment_config import MomentConfig, Scales
from adlm.curator.mechanisms.round_calibration import calibrate_rounds
from adlm.errors import UserError
from adlm.privacy.accounting import Charge
from adlm.privacy.budget import Budget
from adlm.runtime.roots import root_down, root_up

PROOF = "docs/proof-moments.md"


def calibrate(config: MomentConfig, neighbours: str) -> Calibration[Scales]:
    """Return the smallest integer noise scales that keep to the budget, and their charges.

    Formal guarantees
    -----------------
    Relation: the given one. Sensitivity: asked of the `Clip` that clips. Guarantee: the charges compose to
    at most the config's epsilon and delta; they are computed from the integers returned, not from the
    request. Proved in docs/proof-moments.md (Theorems 1 to 3).
    """
    budget = Budget(config.epsilon, config.delta)
    return within_budget(lambda loss: _calibrated(config, neighbours, loss), budget, config.contributions)


def _calibrated(config: MomentConfig, neighbours: str, loss: Fraction) -> Calibration[Scales]:
    """Divide the loss of one record between the stages: mu for Gaussian noise, epsilon for pure noise."""
    spending = Spending(config.mechanism, neighbours, loss, config.contributions, config.delta)
    if config.rounds is not None:
        return spending.calibration(calibrate_rounds(config, config.rounds, spending))
    if config.joint:
        return _joint(config, neighbours, loss)
    return spending.calibration(_one_by_one(config, spending))


def _one_by_one(config: MomentConfig, spending: Spending) -> Scales:
    """Class sums, second moments, and products across the basis, each with its own charge."""
    neighbours, mechanism = spending.neighbours, config.mechanism
    proof = f"{PROOF} {'Theorem 2' if mechanism == 'gaussian' else 'Theorem 1'}"
    clip, fine_clip = config.clip(), config.second_clip()
    share = config.share_sums if fine_clip else Fraction(1)
    radial = mechanism == "radial"
    moved = clip.rows_sensitivity(neighbours) if radial else clip.sums_sensitivity(neighbours)
    sums = spending.scale("class sums and counts", moved, share, proof)
    if fine_clip is None or config.second is None:
        return Scales(sums)
    inner, outer = stage.split(1 - share, config.second)
    sensitivity = stage.triangle_sensitivity if radial else type(fine_clip).second_sensitivity
    fine = spending.scale("second moments", sensitivity(fine_clip, neighbours), inner, proof)
    off, diagonal = {
        "laplace": (fine, 2 * fine),
        "radial": (fine, fine),
        "gaussian": (off_diagonal(fine), fine),
    }[mechanism]
    if not outer:
        return Scales(sums, off, diagonal)
    if mechanism == "laplace":
        raise UserError("products across the basis come with radial or Gaussian noise, not with Laplace")
    moved = stage.cross_sensitivity(*config.second.cross_clips(), neighbours)
    return Scales(sums, off, diagonal, spending.scale("products across the basis", moved, outer, proof))


def _joint(config: MomentConfig, neighbours: str, mu: Fraction) -> Calibration[Scales]:
    """Class sums and second moments of the same clipped rows: one record's cost in both is bounded at once.

    P : Q = share : 1 - share; mu^2 is homogeneous in both, so one trial scale gives the right one.
    """
    clip, p, q = config.clip(), config.share_sums, 1 - config.share_sums
    bound = Fraction(clip.feature_norm_bound)
    trial = clip.joint_loss_squared(bound / root_down(p), bound**2 / root_down(q), neighbours)
    stretch = root_up(trial) / mu
    scale = math.ceil(bound / root_down(p) * stretch)
    diagonal = math.ceil(bound**2 / root_down(q) * stretch)
    loss = root_up(clip.joint_loss_squared(Fraction(scale), Fraction(diagonal), neighbours))
    charge = Charge(
        "class sums, counts and second moments",
        "gaussian",
        neighbours,
        loss * config.contributions,
        Fraction(1),
        f"{PROOF} Theorem 3",
        config.delta,
        contributions=config.contributions,
    )
    return Calibration(Scales(scale, off_diagonal(diagonal), diagonal), (charge,))
