"""Black-box audits: any function from records to output, and its claimed epsilon.

A plug-in is a `Mechanism`. It is run many times on two neighbouring data sets; an attack that distinguishes
them more often than the claim allows refutes it. Nothing is assumed about the noise. Three attacks share the
level of one test. The first projects the output on the direction in which the two data sets differ most,
learnt on other runs. The second uses the low byte of the output, learnt likewise, and the third the plug-in's
own score, if it has one.

>>> import numpy as np
>>> rng = np.random.default_rng()
>>> noisy_sum = Mechanism(
...     name="a sum with too little noise", run=lambda records: records.sum() + rng.laplace(0, 0.5),
...     data=np.array([1.0, 0.0]), neighbour=np.array([1.0, 1.0]), epsilon=1, relation="replace-one",
... )
>>> audit_mechanism(noisy_sum, 20_000).verdict
'VIOLATED'
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from adlm.audit.attacks import curve, low_byte
from adlm.audit.statistics import ALPHA, Finding, Reals, threshold_bound
from adlm.domain import NEIGHBOURS
from adlm.errors import UserError
from adlm.privacy.accounting import parse_delta, parse_epsilon


@dataclass(frozen=True)
class Mechanism:
    """A third-party mechanism, and its claimed epsilon.

    Attributes
    ----------
    name : of the mechanism, with the version of its library.
    run : from records to a number or a vector of numbers, with fresh noise at each call.
    data, neighbour : two data sets that differ as `relation` says; a worst case, as far as one is known.
    epsilon, delta : the claim, as a number or an exact text such as "1/3".
    relation : `replace-one` or `add-remove`.
    many : the same as `run`, many times at once: from records and a number of runs to (runs, width) outputs.
    score : the attacker's score: from (runs, width) outputs to (runs,) numbers, larger for `data`.
    slow : factor by which the number of runs is reduced.
    not_tried : what this audit leaves out, to be printed with its finding.
    """

    name: str
    run: Callable[[Any], Any]
    data: Any
    neighbour: Any
    epsilon: object
    relation: str
    delta: object = 0
    many: Callable[[Any, int], Any] | None = None
    score: Callable[[Reals], Reals] | None = None
    slow: int = 1
    not_tried: str = "other neighbours, other settings, other inputs"

    def __post_init__(self) -> None:
        parse_epsilon(self.epsilon)
        parse_delta(self.delta)
        if self.relation not in NEIGHBOURS:
            raise UserError(f"relation must be one of {', '.join(NEIGHBOURS)}, got {self.relation!r}")

    def outputs(self, records: Any, runs: int) -> Reals:
        """Return (runs, width) outputs."""
        made = self.many(records, runs) if self.many is not None else [self.run(records) for _ in range(runs)]
        values = np.asarray(made, dtype=np.float64).reshape(runs, -1)
        if not np.isfinite(values).all():
            raise UserError(
                f"{self.name} gave an output that is not a finite number; the audit needs numbers"
            )
        return values


def audit_mechanism(mechanism: Mechanism, runs: int = 100_000) -> Finding:
    """Distinguish two neighbouring data sets by a mechanism's output alone.

    Parameters
    ----------
    mechanism : the plug-in.
    runs : on each data set; half as many more are made to train the attacks on, and used for nothing else.
    """
    runs = max(100, runs // mechanism.slow)
    pair = (mechanism.data, mechanism.neighbour)
    learnt = [mechanism.outputs(records, max(50, runs // 2)) for records in pair]
    tested = [mechanism.outputs(records, runs) for records in pair]
    attacks: dict[str, tuple[Reals, Reals]] = {}
    direction = learnt[0].mean(0) - learnt[1].mean(0)
    attacks["output"] = (tested[0] @ direction, tested[1] @ direction)
    byte = [np.bincount(low_byte(outputs[:, 0]), minlength=256) + 1.0 for outputs in learnt]
    ratio = np.log(byte[0] / byte[1])
    attacks["low byte"] = (ratio[low_byte(tested[0][:, 0])], ratio[low_byte(tested[1][:, 0])])
    if mechanism.score is not None:
        attacks["own score"] = (mechanism.score(tested[0]), mechanism.score(tested[1]))
    delta, level = parse_delta(mechanism.delta), ALPHA / len(attacks)  # the attacks share it
    bounds = {
        name: threshold_bound(*scores, alpha=level, delta=float(delta)).value
        for name, scores in attacks.items()
    }
    best = max(bounds, key=lambda name: bounds[name])
    claim: Fraction = parse_epsilon(mechanism.epsilon)
    listed = ", ".join(f"{name} {value:.3f}" for name, value in bounds.items())
    return Finding(
        attack="distinguishing, black box",
        mechanism=mechanism.name,
        neighbours=mechanism.relation,
        claimed=claim,
        proved=claim,
        lower=bounds[best],
        confidence=1 - ALPHA,
        runs=runs,
        delta=float(delta),
        note=f"lower bounds by attack: {listed}; not tried: {mechanism.not_tried}",
        curve=curve(attacks[best]),
    )


def find_mechanism(name: str) -> Mechanism:
    """Return a plug-in: `file.py:NAME` or `module:NAME`.

    NAME is a `Mechanism`, or a function without arguments that returns one. The file is run.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon:
        raise UserError(
            f"a subject is given as FILE.py:NAME or module:NAME, got {name!r}; see docs/audit-others.md"
        )
    value = getattr(_module(place), attribute, None)
    if value is None:
        raise UserError(f"{place} has no {attribute!r}; give the name of a Mechanism in it")
    mechanism = value() if not isinstance(value, Mechanism) and callable(value) else value
    if not isinstance(mechanism, Mechanism):
        raise UserError(
            f"{name} must be a Mechanism of adlm.audit.black_box (got {type(mechanism).__name__})"
        )
    return mechanism


def _module(place: str) -> Any:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        if not Path(place).is_file():
            raise UserError(f"there is no file {place}; give the plug-in as FILE.py:NAME")
        spec = importlib.util.spec_from_file_location("adlm_audit_plugin", place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:  # a user's file may raise anything
        raise UserError(f"the plug-in {place} cannot be loaded: {type(error).__name__}: {error}") from None
    return module
