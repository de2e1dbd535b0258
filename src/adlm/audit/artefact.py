"""Audit a release on disk: is its certificate what its settings amount to, and is its noise what it says?

Loading has already checked hashes, digest and totals. Here the sensitivities are derived again from the
settings by the code that clips, the stated noise is compared with the scales that were charged, and the
product's sampler is attacked at exactly those scales. The records are not needed, and nobody has them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from adlm.audit.finding import ALPHA, Finding
from adlm.audit.statistics import two_worlds_bound
from adlm.audit.tap import draw
from adlm.audit.two_worlds import curve, log_ratio
from adlm.certificate import Charge, gaussian_epsilon
from adlm.curator.clipping import Clip
from adlm.curator.moments import Design, Second, calibrate
from adlm.curator.noise import Source
from adlm.release import SEEDED, Release

FINE = 1 << 20  # sensitivities that are not whole numbers are audited on a finer grid


def audit_release(folder: Path, runs: int, source: Source) -> list[Finding]:
    """Check a release: its certificate from its settings, then its noise scales by attack."""
    release = Release.load(folder)
    totals = release.certificate.totals
    faults = [*_stamped(release), *(_moments(release) if release.certificate.kind == "moments" else [])]
    checked = Finding(
        rung="artefact",
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
    return []


def rebuilt_design(release: Release) -> Design:
    """Return a design with the settings of a moment release and the budget that its charges amount to."""
    settings, totals = release.certificate.settings, release.certificate.totals
    second = settings["second"]
    delta = totals.delta
    design = Design(
        Fraction(totals.epsilon_proved),
        delta,
        int(settings["k"]),
        float(settings["level"]),
        constant=float(settings["constant"]),
        share_sums=Fraction(settings["share_sums"]),
        second=second and Second(int(second["q"]), second["basis"], float(second["level"])),
        contributions=int(settings["contributions"]),
        pure="radial" if settings["mechanism"] == "radial" else "laplace",
    )
    if settings["allocation"] == "identical":
        return design
    steps = release.tensors["step"][1:].double().numpy()
    scales = tuple(float(b) for b in steps * (design.clip().room / design.level))
    return replace(design, scales=scales)


def _moments(release: Release) -> list[str]:
    """Derive a moment release's sensitivities again and compare them with what was charged."""
    settings, charges = release.certificate.settings, release.certificate.charges
    design = rebuilt_design(release)
    neighbours = release.certificate.domain.neighbours
    faults = []
    _, again = calibrate(design, neighbours)
    if [c.mechanism for c in again] != [c.mechanism for c in charges]:
        return ["the charges are not those of the settings"]
    for charge, expected in zip(charges, again, strict=True):
        joint = charge.scale == 1  # sensitivity and scale are then one number, mu
        if not joint and charge.sensitivity < expected.sensitivity:
            faults.append(
                f"{charge.what}: sensitivity {charge.sensitivity}, should be {expected.sensitivity}"
            )
    faults.extend(_stated_noise(settings["sd_sums"], charges[0], design))
    table = release.tensors["class_sums"]
    if table.dtype != torch.int64 or tuple(table.shape) != (
        len(release.certificate.domain.classes),
        1 + design.k,
    ):
        faults.append("class sums are not whole numbers of grid steps, or not of the stated shape")
    if design.joint and (fault := _joint(release, design, design.clip(), neighbours)):
        faults.append(fault)
    return faults


def _stated_noise(sd: float, charge: Charge, design: Design) -> list[str]:
    """Compare the standard deviation that the settings state with the scale that was charged."""
    spread = {"laplace": math.sqrt(2), "radial": math.sqrt(2 + design.k), "gaussian": 1.0}[charge.mechanism]
    if charge.scale != 1 and not math.isclose(sd, spread * float(charge.scale), rel_tol=1e-9):
        return [f"{charge.what}: noise of deviation {sd:g} is stated, scale {charge.scale} was charged"]
    return []


def _joint(release: Release, design: Design, clip: Clip, neighbours: str) -> str:
    """Derive the cost of class sums and second moments together from the stated noise."""
    settings = release.certificate.settings
    sums, second = (Fraction(settings[key]) for key in ("sd_sums", "sd_second_diagonal"))
    loss = clip.joint_loss_squared(sums, second, neighbours) * design.contributions**2
    charged = release.certificate.charges[0].loss ** 2
    return (
        f"joint cost mu^2 = {float(loss):g} is above {float(charged):g} as charged" if loss > charged else ""
    )


def _attacked(charge: Charge, name: str, runs: int, source: Source) -> Finding:
    """Attack the product's sampler at one charge's scale, on inputs at the distance it declares."""
    factor = 1 if charge.sensitivity.denominator == 1 else FINE
    moved, scale = float(math.floor(charge.sensitivity * factor)), charge.scale * factor
    one, two = np.array([moved]), np.array([0.0])
    few = min(runs, 5000) if charge.mechanism == "radial" else runs
    worlds = tuple(
        log_ratio(charge.mechanism, scale, centre + draw(charge.mechanism, (few, 1), scale, source), one, two)
        for centre in (one, two)
    )
    assert len(worlds) == 2
    if charge.mechanism == "gaussian":
        mu = two_worlds_bound(*worlds, alpha=ALPHA, curve="gaussian").value
        lower = float(gaussian_epsilon(Fraction(mu), charge.delta)) if mu > 0 else 0.0
    else:
        lower = two_worlds_bound(*worlds, alpha=ALPHA).value
    return Finding(
        rung="two worlds",
        mechanism=f"{name}: {charge.what}",
        neighbours=charge.neighbours,
        claimed=charge.claimed,
        proved=charge.epsilon_proved,
        lower=lower,
        confidence=1 - ALPHA,
        runs=few,
        delta=float(charge.delta),
        note=charge.unproved,
        curve=curve(worlds),
    )
