"""Gradient rounds that are wrong on purpose, which the audit must catch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from adlm.audit.finding import Finding
from adlm.audit.replay import replay
from adlm.audit.replayed_controls import caught, half_sensitivity, put, replayed, without_clip
from adlm.audit.subject import Records
from adlm.audit.subjects import DELTA, of_moments
from adlm.curator.mechanisms.gradient_rounds import GradientRecords
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.noise import Source
from adlm.estimation.gradient_head import Descent, GradientRounds


def _design(clip_norm: float = 0.25) -> MomentConfig:
    rounds = GradientRounds(2, clip_norm, 8.0, 2)
    return MomentConfig(Fraction(4), DELTA, 3, 1.0, share_sums=Fraction(1, 2), rounds=rounds)


def _pair() -> tuple[Records, Records]:
    """Two records with equal features and different classes: their gradients have opposite signs."""
    values = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    one = Records(values, np.array([0, 1]))
    return one, Records(values, np.array([1, 1]))


def _found(name: str, note: str, source: Source) -> Finding:
    """Replay the pair against the charge for the rounds."""
    subject = of_moments(name, _design(), "replace-one", (0, 1, 1, 2))
    return replayed(subject, _pair(), 1, note, source)


def round_without_clip(runs: int, source: Source) -> Finding:
    """Residuals that are not bounded, charged as if they were."""
    del runs
    with without_clip():
        return _found("gradient round without its clip", "nothing bounds a gradient", source)


def half_the_sensitivity(runs: int, source: Source) -> Finding:
    """The sensitivity of adding a record, charged for replacing one: C where 2 C is due."""
    del runs
    with half_sensitivity():
        return _found("sensitivity C under replace-one", "two gradients can point opposite ways", source)


def head_before_noise(runs: int, source: Source) -> Finding:
    """A head that was updated by a gradient sum before its noise was added."""
    del runs

    def peeking(
        records: GradientRecords, plan: GradientRounds, offsets: Any, noise: tuple[str, int], source: Source
    ) -> Any:
        descent = Descent(replace(plan, step=1e4), np.zeros_like(offsets), records.width)
        released = []
        for _ in range(plan.rounds):
            total = records.gradient(descent.head())
            released.append(total + source.gaussian(total.shape, noise[1]))
            descent.update(total)  # should be what was released
        return np.stack(released)

    import adlm.curator.mechanisms.moments as moments

    with put(moments, "run_rounds", peeking):
        data, neighbour = _pair()
        crowd = Records(np.tile([[0.0, 1.0, 0.0]], (400, 1)), np.tile(np.array([0, 1]), 200))
        subject = of_moments("head", _design(), "replace-one", (0, 1, 1, 2))
        comparison = replay(subject, crowd.plus(data), crowd.plus(neighbour), source)
    return caught(
        "head that saw a sum before its noise",
        comparison.charges[1].epsilon_proved,
        0.0 if comparison.within else float(comparison.epsilon(1)),
        "the next gradients of all other records move with it",
    )


def noise_used_again(runs: int, source: Source) -> Finding:
    """Noise of one round reused in the next: the difference of the two carries none."""
    del runs

    def reused(
        records: GradientRecords, plan: GradientRounds, offsets: Any, noise: tuple[str, int], source: Source
    ) -> Any:
        descent = Descent(plan, offsets, records.width)
        drawn, released = None, []
        for _ in range(plan.rounds):
            total = records.gradient(descent.head())
            drawn = source.gaussian(total.shape, noise[1]) if drawn is None else drawn
            released.append(total + drawn)
            descent.update(released[-1])
        return np.stack(released)

    import adlm.curator.mechanisms.moments as moments

    with put(moments, "run_rounds", reused):
        return _found("noise of one round used in the next", "one draw covers two sums", source)


ROUNDS = (round_without_clip, half_the_sensitivity, head_before_noise, noise_used_again)
