"""Gradient rounds that are wrong on purpose, which the audit must catch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from adlm.audit.finding import Finding
from adlm.audit.replay import replay
from adlm.audit.subject import Records
from adlm.audit.subjects import DELTA, of_moments
from adlm.audit.tap import DivergedError
from adlm.curator.mechanisms.gradient_rounds import GradientClip, GradientRecords
from adlm.curator.mechanisms.moments import MomentConfig
from adlm.curator.noise import Source
from adlm.estimation.gradient_head import Descent, GradientRounds


def _design(clip_norm: float = 0.25) -> MomentConfig:
    rounds = GradientRounds(2, clip_norm, 8.0, 2)
    return MomentConfig(Fraction(4), DELTA, 3, 1.0, share_sums=Fraction(1, 2), rounds=rounds)


def _pair() -> tuple[Records, Records]:
    """Two records that differ in class at the same place: their gradients point opposite ways."""
    values = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    one = Records(values, np.array([0, 1]))
    return one, Records(values, np.array([1, 1]))


@contextmanager
def put(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def _found(name: str, note: str, source: Source) -> Finding:
    """Replay the pair and report what its inputs prove against what is charged for the rounds."""
    subject = of_moments(name, _design(), "replace-one", (0, 1, 1, 2))
    data, neighbour = _pair()
    try:
        comparison = replay(subject, data, neighbour, source)
        charged = comparison.charges[1].epsilon_proved
        caught = bool(comparison.faults) or comparison.powers[1] > comparison.charges[1].loss ** 2
        lower = float("inf") if comparison.faults else float(comparison.epsilon(1))
    except (AssertionError, DivergedError) as error:
        charged, caught, lower, note = Fraction(4), True, float("inf"), f"{note}: {error}"
    return Finding(
        rung="control",
        mechanism=name,
        neighbours="replace-one",
        claimed=charged,
        proved=float("inf"),
        lower=lower if caught else 0.0,
        confidence=1.0,
        runs=1,
        control=True,
        note=note,
    )


def round_without_clip(runs: int, source: Source) -> Finding:
    """Residuals that are not bounded, charged as if they were."""
    del runs

    def everything(self: GradientClip, z: Any) -> Any:
        return np.full(len(z), 1 << 62, dtype=np.int64)

    with put(GradientClip, "allowed", everything):
        return _found("gradient round without its clip", "nothing bounds a gradient", source)


def half_the_sensitivity(runs: int, source: Source) -> Finding:
    """The sensitivity of adding a record, charged for replacing one: C where 2 C is due."""
    del runs

    def one(self: GradientClip, neighbours: str) -> Fraction:
        return Fraction(self.bound)

    with put(GradientClip, "sensitivity", one):
        return _found("sensitivity C under replace-one", "two gradients can point opposite ways", source)


def head_before_noise(runs: int, source: Source) -> Finding:
    """A head that saw a gradient sum before its noise was added."""
    del runs

    def peeking(
        kept: GradientRecords, plan: GradientRounds, offsets: Any, noise: tuple[str, int], source: Source
    ) -> Any:
        descent = Descent(replace(plan, step=1e4), np.zeros_like(offsets), kept.width)
        released = []
        for _ in range(plan.rounds):
            total = kept.gradient(descent.head())
            released.append(total + source.gaussian(total.shape, noise[1]))
            descent.update(total)  # should be what was released
        return np.stack(released)

    import adlm.curator.mechanisms.moments as moments

    with put(moments, "run_rounds", peeking):
        data, neighbour = _pair()
        crowd = Records(np.tile([[0.0, 1.0, 0.0]], (400, 1)), np.tile(np.array([0, 1]), 200))
        subject = of_moments("head", _design(), "replace-one", (0, 1, 1, 2))
        comparison = replay(subject, crowd.plus(data), crowd.plus(neighbour), source)
    caught = not comparison.within
    return Finding(
        rung="control",
        mechanism="head that saw a sum before its noise",
        neighbours="replace-one",
        claimed=comparison.charges[1].epsilon_proved,
        proved=float("inf"),
        lower=float(comparison.epsilon(1)) if caught else 0.0,
        confidence=1.0,
        runs=1,
        control=True,
        note="the next gradients of all other records move with it",
    )


def noise_used_again(runs: int, source: Source) -> Finding:
    """Noise of one round used in the next: the difference of the two carries none."""
    del runs

    def again(
        kept: GradientRecords, plan: GradientRounds, offsets: Any, noise: tuple[str, int], source: Source
    ) -> Any:
        descent = Descent(plan, offsets, kept.width)
        drawn, released = None, []
        for _ in range(plan.rounds):
            total = kept.gradient(descent.head())
            drawn = source.gaussian(total.shape, noise[1]) if drawn is None else drawn
            released.append(total + drawn)
            descent.update(released[-1])
        return np.stack(released)

    import adlm.curator.mechanisms.moments as moments

    with put(moments, "run_rounds", again):
        return _found("noise of one round used in the next", "one draw covers two sums", source)


ROUNDS = (round_without_clip, half_the_sensitivity, head_before_noise, noise_used_again)
