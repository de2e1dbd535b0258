"""A release on disk: do its charges follow from its settings, and has its noise the stated scales?

Loading has already checked hashes, digest and totals. Here the sensitivities are recomputed from the settings
by the code that clips, the stated noise is compared with the scales that were charged, and the product's
sampler is attacked at exactly those scales. The records are not needed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from adlm.audit.attacks import Law, judge, scores
from adlm.audit.statistics import Finding
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features.tables import GRID, TableIndicators, decorrelation, frequencies
from adlm.mechanism.class_sums import indicators_clip
from adlm.mechanism.objective import Objective
from adlm.mechanism.planner import Plan
from adlm.mechanism.privatise import calibrated_plan
from adlm.paper.loss import by_name
from adlm.privacy.accounting import Budget, Charge
from adlm.privacy.certificate import SEEDED
from adlm.privacy.noise import Source
from adlm.privacy.release import Release

FINE = 1 << 20  # small sensitivities that are not integers are audited on a finer grid


def audit_release(folder: Path, runs: int, source: Source) -> list[Finding]:
    """Check a release: its certificate against its settings, then its noise scales by attack."""
    release = Release.load(folder)
    totals = release.certificate.totals
    proved = not math.isinf(totals.epsilon_proved) or release.kind == "records"
    faults = [*_stamped(release), *(_rederived(release) if proved else totals.unproved)]
    checked = Finding(
        attack="artefact",
        mechanism=f"{folder.name}: certificate",
        neighbours=totals.neighbours,
        claimed=totals.epsilon_claimed,
        proved=totals.epsilon_proved,
        lower=math.inf if faults else 0.0,
        confidence=1.0,
        runs=1,
        delta=float(totals.delta),
        note="; ".join(faults) or "sensitivities and noise are what the settings amount to",
        fault=bool(faults),
    )
    drawn = [c for c in release.certificate.charges if c.mechanism in ("laplace", "radial", "gaussian")]
    return [checked, *(_attacked(charge, folder.name, runs, source) for charge in drawn)]


def _stamped(release: Release) -> list[str]:
    if SEEDED in release.certificate.stamps:
        return [f"stamped {SEEDED!r}: whoever knows the seed subtracts the noise"]
    return [f"stamped {stamp!r}" for stamp in release.certificate.stamps if stamp.startswith("NOT PRIVATE")]


def _rederived(release: Release) -> list[str]:
    """Recompute the charges from the settings, by the code of the release's mechanism."""
    return _records(release) if release.kind == "records" else _stages(release)


def _records(release: Release) -> list[str]:
    """Compare the charges of a record release with eps_x = |L| d eps2 / Delta_h0, and likewise for labels.

    Truncation to the grid, and features that are not released, can only make a charge smaller than that.
    """
    settings = release.certificate.settings
    features, labels = release.certificate.charges[-2:]
    batch = Fraction(settings["batch_size"])
    loss = by_name(str(settings["loss"]))
    orders = (0, 1, 2) if settings["mode"] == "literal" else loss.informative()
    moved = loss.label_sensitivity(orders)
    expected = {
        features: batch
        * release.certificate.domain.size
        * Fraction(settings["epsilon2"])
        / Fraction(settings["delta_h0"]),
        labels: batch * moved * Fraction(settings["epsilon3"]) / Fraction(settings["delta_f"]),
    }
    return [
        f"{charge.what}: charged {float(charge.loss):g}, the settings give {float(most):g}"
        for charge, most in expected.items()
        if not (charge.loss >= most * Fraction(999, 1000) or (charge is features and settings["withheld"]))
    ]


def _stages(release: Release) -> list[str]:
    """Recompute the charges of a release from its plan, and compare stated noise with charged scales."""
    certificate, settings = release.certificate, release.certificate.settings
    plan = Plan.from_dict(settings["plan"])
    totals, spec = certificate.totals, certificate.features["spec"]
    subject = certificate.domain if plan.form is None else TableDomain.from_dict(spec["table"])
    subject = replace(subject, neighbours=certificate.domain.neighbours)
    # Sensitivities do not depend on the budget; twice the spent one leaves room for any ridge.
    budget = Budget(2 * Fraction(totals.epsilon_proved), totals.delta)
    try:
        expected = calibrated_plan(plan, subject, budget, int(settings["contributions"])).charges
    except UserError as error:
        return [f"no charges follow from the settings: {error}"]
    own = certificate.charges[-len(expected) :]  # before them come those of a synthetic release
    if [(c.what, c.mechanism) for c in expected] != [(c.what, c.mechanism) for c in own]:
        return ["the charges are not those of the settings"]
    faults = [
        f"{charge.what}: sensitivity {charge.sensitivity}, should be {recomputed.sensitivity}"
        for charge, recomputed in zip(own, expected, strict=True)
        if charge.sensitivity < recomputed.sensitivity
    ]
    shapes: dict[str, tuple[int, ...]] = {}
    if plan.classes > 1:
        shapes["class_sums"] = (plan.classes, 1 + plan.k)
        sums = next(charge for charge in own if charge.what.startswith("class sums"))
        faults.extend(_stated_noise(settings["sd_sums"], sums, plan.k))
    if plan.rounds is not None:
        shapes["gradients"] = (plan.rounds.rounds, plan.classes, 1 + plan.k)
    if plan.objective is not None:
        shapes["weights"] = (plan.objective.rows, 1 + plan.k)
        faults.extend(_stated_loss(release, plan.objective))
    for name, shape in shapes.items():
        tensor = release.tensors[name]
        if tensor.dtype != torch.int64 or tuple(tensor.shape) != shape:
            faults.append(f"{name.replace('_', ' ')} are not integers of the stated shape")
    if plan.form == "scaled" and plan.classes > 1:
        faults.extend(_stated_frequencies(release))
    return faults


def _stated_loss(release: Release, objective: Objective) -> list[str]:
    """Compare the perturbed loss that is stated with what was charged."""
    settings, charges = release.certificate.settings, release.certificate.charges
    faults = []
    if objective.to_dict() != dict(settings["objective"]):
        faults.append("the objective is not that of the plan")
    at = [charge.mechanism for charge in charges].index("curvature")
    if charges[at].scale != Fraction(objective.ridge):
        faults.append("the ridge that was charged is not that of the plan")
    if charges[at - 1].scale != Fraction(float(settings["noise_scale"])):
        faults.append("the noise in the loss that is stated is not the one that was charged")
    return faults


def _stated_frequencies(release: Release) -> list[str]:
    """Compare the frequencies that scale a table's features with the released counts of indicators."""
    spec = release.certificate.features["spec"]
    counted = TableIndicators(TableDomain.from_dict(spec["table"]))
    steps, sd = indicators_clip(counted).steps, float(release.certificate.settings["sd_indicators"])
    counts = release.tensors["indicators"].numpy()
    recomputed = frequencies(counts * steps, counted.blocks, sd * float(steps[0]))
    faults = []
    if not np.allclose(recomputed, spec["frequencies"], rtol=0, atol=2e-6):
        faults.append("the frequencies that scale the columns are not those of the released counts")
    if "values" in release.tensors:
        sd = float(release.certificate.settings["sd_values"])
        mixing = decorrelation(release.tensors["values"].numpy(), sd)
        if "mixing" not in spec or not np.allclose(mixing, np.array(spec["mixing"]) / GRID, atol=1e-4):
            faults.append("the matrix that mixes the values is not that of their released second moments")
    elif "mixing" in spec:
        faults.append("values are mixed by a matrix that no released second moments account for")
    return faults


def _stated_noise(sd: float, charge: Charge, k: int) -> list[str]:
    """Compare the standard deviation that the settings state with the scale that was charged."""
    spread = {"laplace": math.sqrt(2), "radial": math.sqrt(2 + k), "gaussian": 1.0}[charge.mechanism]
    if not math.isclose(sd, spread * float(charge.scale), rel_tol=1e-9):
        return [f"{charge.what}: noise of deviation {sd:g} is stated, scale {charge.scale} was charged"]
    return []


def _attacked(charge: Charge, name: str, runs: int, source: Source) -> Finding:
    """Attack the product's sampler at one charge's scale, on inputs as far apart as its sensitivity."""
    on_grid = charge.sensitivity.denominator == 1 or charge.sensitivity >= FINE
    factor = 1 if on_grid else FINE
    moved, scale = float(math.floor(charge.sensitivity * factor)), charge.scale * factor
    law = Law(charge.mechanism, scale, np.array([moved]), np.array([0.0]))
    few = min(runs, 5000) if charge.mechanism == "radial" else runs
    drawn = scores((law,), few, source)
    found = judge(f"{name}: {charge.what}", charge.neighbours, (charge,), drawn, (law,))
    return replace(found, note=charge.unproved or found.note)
