"""Audit a release on disk: do its charges follow from its settings, and has its noise the stated scales?

Loading has already checked hashes, digest and totals. Here the sensitivities are recomputed from the
settings by the code that clips, the stated noise is compared with the scales that were charged, and the
product's sampler is attacked at exactly those scales. The records are not needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlm.audit.attacks import Law, judge, scores
from adlm.audit.statistics import Finding
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features.tables import GRID, TableIndicators, decorrelation, frequencies
from adlm.mechanism.calibration import Indicators, MomentConfig, calibrate
from adlm.mechanism.planner import PurePlan
from adlm.mechanism.planning import RegressionPlan
from adlm.mechanism.pure import calibrate as calibrate_pure
from adlm.mechanism.regression import RegressionConfig
from adlm.mechanism.regression import calibrate as calibrate_regression
from adlm.mechanism.second_moments import Second
from adlm.model.head import GradientRounds
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
    return [
        checked,
        *(_attacked(charge, folder.name, runs, source) for charge in release.certificate.charges),
    ]


def _stamped(release: Release) -> list[str]:
    if SEEDED in release.certificate.stamps:
        return [f"stamped {SEEDED!r}: whoever knows the seed subtracts the noise"]
    return [f"stamped {stamp!r}" for stamp in release.certificate.stamps if stamp.startswith("NOT PRIVATE")]


def _rederived(release: Release) -> list[str]:
    """Recompute the charges from the settings, by the code of the release's mechanism."""
    if "objective" in release.certificate.settings:
        return _perturbed(release)
    derive = {
        "records": _records,
        "moments": _moments,
        "rounds": _moments,
        "regression": _regression,
    }
    return derive[release.kind](release)


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


def _perturbed(release: Release) -> list[str]:
    """Recompute the charges of a release whose loss was perturbed, from its plan."""
    certificate, settings = release.certificate, release.certificate.settings
    plan = PurePlan.from_dict(settings["plan"])
    if plan.objective.to_dict() != dict(settings["objective"]):
        return ["the objective is not that of the plan"]
    budget = Budget.of(settings["asked"]["epsilon"], 0)  # sensitivities do not depend on it
    spec = certificate.features["spec"]
    table = TableDomain.from_dict(spec["table"]) if plan.form is not None else None
    inputs = 0 if table is None else sum(column.width for column in table.features)
    most = int(settings["contributions"])
    try:
        expected = calibrate_pure(plan, budget, certificate.domain.neighbours, most, inputs).charges
    except UserError as error:
        return [f"no charges follow from the settings: {error}"]
    faults = _compared(certificate.charges, expected)
    ridge = next(charge for charge in certificate.charges if charge.mechanism == "curvature")
    if ridge.scale != Fraction(plan.objective.ridge):
        faults.append("the ridge that was charged is not that of the plan")
    linear = next(charge for charge in certificate.charges if charge.what == expected_noise(expected))
    if linear.scale != Fraction(float(settings["noise_scale"])):
        faults.append("the noise in the loss that is stated is not the one that was charged")
    shape = (plan.objective.rows, 1 + plan.k)
    if tuple(release.tensors["weights"].shape) != shape or release.tensors["weights"].dtype != torch.int64:
        faults.append("the weights are not integers of the stated shape")
    return faults


def expected_noise(charges: Sequence[Charge]) -> str:
    """Return what the charge of the noise in the loss is called: the one before the ridge."""
    names = [charge.what for charge in charges]
    return names[[charge.mechanism for charge in charges].index("curvature") - 1]


def _regression(release: Release) -> list[str]:
    """Recompute the sensitivities of a release for a numeric target."""
    settings, certificate = release.certificate.settings, release.certificate
    totals = certificate.totals
    config = RegressionConfig(
        Budget(Fraction(totals.epsilon_proved), totals.delta),
        int(settings["k"]),
        RegressionPlan.from_dict(settings["plan"]),
        Indicators.from_dict(settings["indicators"]),
        int(settings["contributions"]),
    )
    counted = TableIndicators(TableDomain.from_dict(certificate.features["spec"]["table"]))
    if (config.indicators.width, config.indicators.blocks) != (counted.width, len(counted.blocks)):
        return ["the counts of indicators are not those of the table"]
    recomputed = calibrate_regression(config, certificate.domain.neighbours).charges
    return _compared(certificate.charges, recomputed)


def _compared(charges: Sequence[Charge], expected: Sequence[Charge]) -> list[str]:
    if [(c.what, c.mechanism) for c in expected] != [(c.what, c.mechanism) for c in charges]:
        return ["the charges are not those of the settings"]
    return _too_small(charges, expected)


def _too_small(charges: Sequence[Charge], expected: Sequence[Charge]) -> list[str]:
    """Report the sensitivities that are below those recomputed from the settings."""
    return [
        f"{charge.what}: sensitivity {charge.sensitivity}, should be {recomputed.sensitivity}"
        for charge, recomputed in zip(charges, expected, strict=True)
        if charge.scale != 1
        and charge.sensitivity < recomputed.sensitivity  # scale 1: the number is mu itself
    ]


def rebuilt_design(release: Release) -> MomentConfig:
    """Return a design with the settings of a moment release and the budget of its charges."""
    settings = release.certificate.settings
    design = _design_of(settings, release)
    if settings["allocation"] == "identical":
        return design
    steps = release.tensors["step"][1:].double().numpy()
    scales = tuple(float(b) for b in steps * (design.clip().feature_norm_bound / design.clip_norm))
    return replace(design, scales=scales)


def _design_of(settings: Mapping[str, Any], release: Release) -> MomentConfig:
    """The same for settings with identical noise, of this release."""
    totals, second = release.certificate.totals, settings["second"]
    delta = totals.delta
    return MomentConfig(
        Fraction(totals.epsilon_proved),
        delta,
        int(settings["k"]),
        float(settings["level"]),
        constant=float(settings["constant"]),
        share_sums=Fraction(settings["share_sums"]),
        second=second and Second.from_dict(second),
        contributions=int(settings["contributions"]),
        pure="radial" if settings["mechanism"] == "radial" else "laplace",
        rounds=GradientRounds.from_dict(settings["rounds"]) if settings.get("rounds") else None,
        indicators=Indicators.from_dict(settings["indicators"]) if settings.get("indicators") else None,
    )


def _moments(release: Release) -> list[str]:
    """Recompute a moment release's sensitivities and compare them with its charges."""
    settings, charges = release.certificate.settings, release.certificate.charges
    faults: list[str] = []
    design = rebuilt_design(release)
    neighbours = release.certificate.domain.neighbours
    _, recomputed = calibrate(design, neighbours)
    own = charges
    if [c.mechanism for c in recomputed] != [c.mechanism for c in own]:
        return ["the charges are not those of the settings"]
    faults.extend(_too_small(own, recomputed))
    if not design.joint:
        sums = next(charge for charge in own if charge.what.startswith("class sums"))
        faults.extend(_stated_noise(settings["sd_sums"], sums, design))
    table = release.tensors["class_sums"]
    classes = len(release.certificate.domain.classes)
    shape = (classes, 1 + design.k)
    if table.dtype != torch.int64 or tuple(table.shape) != shape:
        faults.append("class sums are not multiples of the grid step, or not of the stated shape")
    if design.rounds is not None and tuple(release.tensors["gradients"].shape) != (
        design.rounds.rounds,
        classes,
        1 + design.k,
    ):
        faults.append("the gradients are not of the stated shape")
    if design.indicators is not None:
        faults.extend(_stated_frequencies(release, design.indicators))
    if design.joint and (fault := _joint(settings, own[0], design, neighbours)):
        faults.append(fault)
    return faults


def _stated_frequencies(release: Release, counted: Indicators) -> list[str]:
    """Compare the frequencies that scale a table's features with the released counts of indicators."""
    spec = release.certificate.features["spec"]
    blocks = TableIndicators(TableDomain.from_dict(spec["table"])).blocks
    steps, sd = counted.clip().steps, float(release.certificate.settings["sd_indicators"])
    recomputed = frequencies(release.tensors["indicators"].numpy() * steps, blocks, sd * float(steps[0]))
    faults = []
    if not np.allclose(recomputed, spec["frequencies"], rtol=0, atol=2e-6):
        faults.append("the frequencies that scale the columns are not those of the released counts")
    if counted.values:
        sd = float(release.certificate.settings["sd_values"])
        mixing = decorrelation(release.tensors["values"].numpy(), sd)
        if "mixing" not in spec or not np.allclose(mixing, np.array(spec["mixing"]) / GRID, atol=1e-4):
            faults.append("the matrix that mixes the values is not that of their released second moments")
    elif "mixing" in spec:
        faults.append("values are mixed by a matrix that no released second moments account for")
    return faults


def _stated_noise(sd: float, charge: Charge, design: MomentConfig) -> list[str]:
    """Compare the standard deviation that the settings state with the scale that was charged."""
    spread = {"laplace": math.sqrt(2), "radial": math.sqrt(2 + design.k), "gaussian": 1.0}[charge.mechanism]
    if not math.isclose(sd, spread * float(charge.scale), rel_tol=1e-9):
        return [f"{charge.what}: noise of deviation {sd:g} is stated, scale {charge.scale} was charged"]
    return []


def _joint(settings: Mapping[str, Any], charge: Charge, design: MomentConfig, neighbours: str) -> str:
    """Recompute the joint cost of class sums and second moments from the stated noise."""
    sums, second = (Fraction(settings[key]) for key in ("sd_sums", "sd_second_diagonal"))
    loss = design.clip().joint_loss_squared(sums, second, neighbours) * design.contributions**2
    charged = charge.loss**2
    return f"joint mu^2 is {float(loss):g}, charged was {float(charged):g}" if loss > charged else ""


def _attacked(charge: Charge, name: str, runs: int, source: Source) -> Finding:
    """Attack the product's sampler at one charge's scale, on inputs as far apart as its sensitivity."""
    on_grid = charge.sensitivity.denominator == 1 or charge.sensitivity >= FINE
    factor = 1 if on_grid else FINE
    moved, scale = float(math.floor(charge.sensitivity * factor)), charge.scale * factor
    law = Law(charge.mechanism, scale, np.array([moved]), np.array([0.0]))
    few = min(runs, 5000) if charge.mechanism == "radial" else runs
    drawn = scores((law,), few, source)
    found = judge(f"{name}: {charge.what}", charge.neighbours, (charge,), drawn, laws=(law,))
    return replace(found, note=charge.unproved or found.note)
