"""Releases for a numeric target that are wrong on purpose, which the audit must catch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from adlm.audit.finding import Finding
from adlm.audit.replayed_controls import half_sensitivity, put, replayed, without_clip
from adlm.audit.subject import Records, Subject
from adlm.audit.subjects import DELTA, of_target
from adlm.curator.mechanisms.regression_calibration import ERROR_UNIT, TargetClip
from adlm.curator.noise import Source
from adlm.public.domain.encoding import TARGET_UNIT

GRADIENTS, ERRORS = 2, 3  # charges of a release
CROWD = 400


def _pair(other: float = 0.0) -> tuple[Records, Records]:
    """Records in the middle of the domain, and one whose target is the upper bound, or `other`."""
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.random(CROWD), np.eye(3)[rng.integers(0, 3, CROWD)], np.full(CROWD, 0.5)])
    values[: CROWD // 2, -1] += 0.2 * rng.standard_normal(CROWD // 2)
    low, high = np.array([[0.5, 1.0, 0.0, 0.0, other]]), np.array([[0.5, 1.0, 0.0, 0.0, 1.0]])
    codes = np.zeros(CROWD + 1, dtype=np.int64)
    return Records(np.vstack([values, low]), codes), Records(np.vstack([values, high]), codes)


def _found(name: str, note: str, source: Source, charge: int = GRADIENTS, weaken: int = 1) -> Finding:
    """Replay the pair and report the lower bound against one charge."""
    subject: Subject = of_target(name, DELTA, "replace-one")
    subject = replace(subject, weaken=Fraction(1, weaken))
    return replayed(subject, _pair(0.5 if charge == ERRORS else 0.0), charge, note, source)


def target_without_clip(runs: int, source: Source) -> Finding:
    """Errors that are not bounded, charged as if they were."""
    del runs
    with without_clip():
        return _found("target's gradient without its clip", "nothing bounds a gradient", source)


def target_half_sensitivity(runs: int, source: Source) -> Finding:
    """The sensitivity of adding a record, charged for replacing one: C where 2 C is due."""
    del runs
    with half_sensitivity():
        return _found("sensitivity C of a target under replace-one", "targets on both sides", source)


def target_half_noise(runs: int, source: Source) -> Finding:
    """Half of the noise on every part, charged as if it were full."""
    del runs
    return _found("half the noise on a target's gradients", "scales halved", source, weaken=2)


def errors_without_clip(runs: int, source: Source) -> Finding:
    """Squared errors that are not clipped, charged as if they were."""
    del runs

    def everything(self: TargetClip, z: Any, codes: Any, head: Any) -> Any:
        truth = self.scale.standardised(codes / TARGET_UNIT)
        of_head = self.scores(z, head)[:, 0] - truth
        return np.rint(np.stack([of_head**2, truth**2], 1) * ERROR_UNIT).astype(np.int64)

    with put(TargetClip, "squared_errors", everything):
        return _found("squared errors without their clip", "nothing bounds an error", source, charge=ERRORS)


TARGETS = (target_without_clip, target_half_sensitivity, target_half_noise, errors_without_clip)
