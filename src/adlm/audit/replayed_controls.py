"""Shared parts of the controls that are tested by replay: patching in a fault, and the finding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from typing import Any

import numpy as np

from adlm.audit.finding import Finding
from adlm.audit.replay import replay
from adlm.audit.subject import Records, Subject
from adlm.audit.tap import DivergedError
from adlm.curator.mechanisms.gradient_rounds import GradientClip
from adlm.curator.noise import Source
from adlm.privacy.accounting import Epsilon


@contextmanager
def put(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a class or a module within this context."""
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def without_clip() -> AbstractContextManager[None]:
    """Gradients that are not clipped, charged as if they were."""

    def everything(self: GradientClip, squares: Any) -> Any:
        return np.full(len(squares), 1 << 62, dtype=np.int64)

    return put(GradientClip, "allowed_for", everything)


def half_sensitivity() -> AbstractContextManager[None]:
    """The sensitivity of adding a record, charged for replacing one: C where 2 C is due."""

    def one(self: GradientClip, neighbours: str) -> Fraction:
        return Fraction(self.bound)

    return put(GradientClip, "sensitivity", one)


def replayed(
    subject: Subject, pair: tuple[Records, Records], charge: int, note: str, source: Source
) -> Finding:
    """Replay a pair of neighbours, and report the lower bound against one charge.

    Parameters
    ----------
    subject : the control, under replace-one.
    pair : two sets of records that differ in one.
    charge : which of the release's charges is refuted.
    note : why the control is wrong.
    source : of the noise.
    """
    claimed: Epsilon = Fraction(4)
    lower = 0.0
    try:
        comparison = replay(subject, *pair, source)
        claimed = comparison.charges[charge].epsilon_proved
        if comparison.faults:
            lower = float("inf")
        elif comparison.powers[charge] > comparison.charges[charge].loss ** 2:
            lower = float(comparison.epsilon(charge))
    except (AssertionError, DivergedError) as error:
        lower, note = float("inf"), f"{note}: {error}"
    return caught(subject.name, claimed, lower, note)


def caught(name: str, claimed: Epsilon, lower: float, note: str) -> Finding:
    """Return the finding of an exact argument against a control.

    Parameters
    ----------
    name, note : the control, and why it is wrong.
    claimed : the epsilon that is charged for it.
    lower : the lower bound from its inputs; 0 if it was not refuted.
    """
    return Finding(
        rung="control",
        mechanism=name,
        neighbours="replace-one",
        claimed=claimed,
        proved=float("inf"),
        lower=lower,
        confidence=1.0,
        runs=1,
        control=True,
        note=note,
    )
