"""What a budget can be chosen for, and simulated releases for the page, which spend nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from adlm.data import datasets
from adlm.domain import NEIGHBOURS, Domain
from adlm.domain.domain import toml
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import Features, for_domain
from adlm.mechanism.forecast import forecast, table_noise
from adlm.mechanism.planner import Plan, plan_arrays
from adlm.privacy.accounting import parse_delta, parse_epsilon, unit_words

# ---- What a budget can be chosen for: a public data set by name, or a user's declared domain.

MOST_RECORDS = 10**9


@dataclass(frozen=True, eq=False)
class Choice:
    """A data set to plan for; only public facts about it are read."""

    key: str
    title: str
    origin: str
    n: int
    file: str = ""
    domain: Domain | None = None
    table: TableDomain | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; none where a number is predicted."""
        if self.table is not None:
            return tuple(self.table.answer.classes)
        assert self.domain is not None
        return self.domain.classes

    @property
    def neighbours(self) -> str:
        """The relation that the domain declares."""
        if self.table is not None:
            return self.table.neighbours
        assert self.domain is not None
        return self.domain.neighbours

    @property
    def contributions(self) -> int:
        """The declared maximum of records per person."""
        return 1 if self.table is None else self.table.contributions

    @property
    def unit(self) -> str:
        """The unit of privacy: `record`, or `person (at most 3 records)`."""
        return unit_words(self.contributions, self.table is not None and self.table.person is not None)

    @cached_property
    def features(self) -> Features:
        """The public features of arrays."""
        assert self.domain is not None
        return for_domain(self.domain)

    def related(self, neighbours: str) -> TableDomain:
        """The table under a relation."""
        assert self.table is not None
        return replace(self.table, neighbours=neighbours)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for the page."""
        return {
            "key": self.key,
            "title": self.title,
            "origin": self.origin,
            "file": self.file,
            "named": self.origin.startswith("--data"),
            "kind": "table" if self.table is not None else "array",
            "n": self.n,
            "classes": len(self.classes),
            "measure": "accuracy" if self.classes else "R\u00b2",
            "neighbours": self.neighbours,
            "unit": self.unit,
        }


@lru_cache(maxsize=1)
def named() -> tuple[Choice, ...]:
    """Return the public data sets; no record of them is read or fetched."""
    return tuple(
        Choice(d["name"], d["title"], f"--data {d['name']}", d["train"], domain=datasets.domain(d["name"]))
        for d in datasets.describe()
    )


def declared(text: str, name: str, n: int) -> Choice:
    """Read the text of a domain file: of a table, or of arrays."""
    check_size(n)
    key = f"domain-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    short = Path(name).name or "domain.toml"
    if _is_table(text):
        return Choice(key, short, "--domain", n, name, table=TableDomain.from_toml(text))
    return Choice(key, short, "", n, name, domain=Domain.from_toml(text))


def _is_table(text: str) -> bool:
    try:
        return "columns" in toml(text)
    except UserError:
        return False  # the caller's parser reports the error


def from_file(path: Path, n: int | None) -> Choice:
    """Read a domain file."""
    if n is None:
        raise UserError("--domain needs --size, the number of records, public or guessed")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise UserError(f"the domain file {path} cannot be read: {why}") from None
    return declared(text, str(path), n)


def check_size(n: int) -> None:
    """Refuse a number of records that no data set has."""
    if not 1 <= n <= MOST_RECORDS:
        raise UserError(f"the number of records must lie between 1 and {MOST_RECORDS:,}, got {n:,}")


def check_relation(neighbours: str) -> None:
    """Refuse an unknown relation."""
    if neighbours not in NEIGHBOURS:
        raise UserError(f"the relation must be one of {', '.join(NEIGHBOURS)}, got {neighbours!r}")


# ---- Forecasts for the page: the release is simulated on synthetic classes, so nothing is spent or read.
#
# Forecasts of the public data sets come with the package (`forecasts.json`, made by
# `benchmarks.pages --ui`): classes of photographs take a minute to draw. One is used
# only while features and plan are unchanged; any other budget is simulated on request.

_STEPS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 8, 10)
EPSILONS = tuple(f"{step:g}" for step in _STEPS)
DELTAS = ("0", "1e-7", "1e-6", "1e-5", "1e-4")
PRECOMPUTED = "forecasts.json"
MOST_EPSILON = 100.0


@dataclass(frozen=True)
class Budget:
    """Budget and relation of a release, as on the command line."""

    epsilon: str
    delta: str
    neighbours: str

    def __post_init__(self) -> None:
        check_relation(self.neighbours)
        parse_delta(self.delta)
        if float(parse_epsilon(self.epsilon)) > MOST_EPSILON:
            raise UserError(f"epsilon must be at most {MOST_EPSILON:g}, got {self.epsilon}")

    @property
    def curve(self) -> str:
        """The curve that this budget lies on."""
        return f"{self.delta} {self.neighbours}"


def point(choice: Choice, n: int, budget: Budget) -> dict[str, Any]:
    """Describe a release: images are simulated, from the stored simulations where they are current."""
    check_size(n)
    shown = _precomputed_point(choice, n, budget)
    if shown is None:
        shown = _table_point(choice, n, budget) if choice.table is not None else _point(choice, n, budget)
    return shown


def curve(choice: Choice, n: int, delta: str, neighbours: str) -> list[dict[str, Any]]:
    """Return the known points of a curve, without simulating anything."""
    check_size(n)
    points = (_precomputed_point(choice, n, Budget(epsilon, delta, neighbours)) for epsilon in EPSILONS)
    return [p for p in points if p is not None]


def full_curve(choice: Choice, n: int, delta: str, neighbours: str) -> list[dict[str, Any]]:
    """Return all points of a curve, simulating those that are not known."""
    return [point(choice, n, Budget(epsilon, delta, neighbours)) for epsilon in EPSILONS]


def plan_of(choice: Choice, n: int, budget: Budget, *, rounds: bool = True) -> Plan:
    """Return the planner's settings; without rounds they are those that are simulated."""
    return plan_arrays(
        choice.features,
        n,
        len(choice.classes),
        float(parse_epsilon(budget.epsilon)),
        float(parse_delta(budget.delta)),
        budget.neighbours,
        rounds=rounds,
    )


def _precomputed_point(choice: Choice, n: int, budget: Budget) -> dict[str, Any] | None:
    stored = _precomputed().get(choice.key)
    if stored is None or choice.domain is None or n != stored["n"]:
        return None
    figures = stored["curves"].get(budget.curve, {}).get(budget.epsilon)
    if figures is None or stored["features"] != _fingerprint(choice):
        return None
    accuracy, spread, *settings = figures
    if settings != settings_of(plan_of(choice, n, budget, rounds=False)):
        return None
    return _shown(budget, accuracy, spread, plan_of(choice, n, budget))


@lru_cache(maxsize=8)
def _fingerprint(choice: Choice) -> str:
    return choice.features.fingerprint()


@lru_cache(maxsize=1)
def _precomputed() -> Mapping[str, Any]:
    text = (resources.files("adlm.ui") / PRECOMPUTED).read_text(encoding="utf-8")
    stored: dict[str, Any] = json.loads(text)
    return stored


def settings_of(plan: Plan) -> list[Any]:
    """Return the settings of a plan that a simulation depends on."""
    if plan.objective is not None:
        return [plan.k, plan.method, plan.objective.ridge, float(plan.shares["loss"])]
    return [plan.k, plan.method, plan.noise]


@lru_cache(maxsize=4096)
def _point(choice: Choice, n: int, budget: Budget) -> dict[str, Any]:
    epsilon, delta, relation = budget.epsilon, budget.delta, budget.neighbours
    result = forecast(choice.features, n, len(choice.classes), epsilon, delta, relation)
    return _shown(budget, result.accuracy, result.spread, result.plan)


@lru_cache(maxsize=512)
def _table_point(choice: Choice, n: int, budget: Budget) -> dict[str, Any]:
    table = choice.related(budget.neighbours)
    found = table_noise(table, n, budget.epsilon, budget.delta)
    return {
        "epsilon": found.epsilon,
        "accuracy": None,
        "low": None,
        "high": None,
        "noise": round(found.records, 3),
        "words": [_sentence(w) for w in (found.plan.summary, found.sentence, *found.plan.reasons)],
        "remark": "There is no forecast: how accurate a model can be depends on columns that are not read.",
    }


def _shown(budget: Budget, accuracy: float, spread: float, plan: Plan) -> dict[str, Any]:
    """Put a simulation into JSON values; the interval is one standard deviation over synthetic tasks."""
    return {
        "epsilon": float(parse_epsilon(budget.epsilon)),
        "accuracy": round(accuracy, 5),
        "low": round(max(0.0, accuracy - spread), 5),
        "high": round(min(1.0, accuracy + spread), 5),
        "noise": None,
        "words": [_sentence(plan.summary), *map(_sentence, plan.reasons)],
        "remark": ROUNDS_REMARK if plan.rounds is not None else "",
    }


ROUNDS_REMARK = (
    "Class sums under the same budget were simulated here. Gradient rounds are taken where they do better, "
    "so expect rather more than this."
)


def _sentence(text: str) -> str:
    """Write words as a sentence; a setting that begins it keeps its name."""
    first = text if text[1:3] == " =" else text[:1].upper() + text[1:]
    return first.rstrip(".") + "."
