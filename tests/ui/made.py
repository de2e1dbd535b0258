"""What the tests of the page show: two releases, a model with its evaluation, an audit, a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.declared import AGE_COLUMN, column
from tests.report import artefacts

from adlm.mechanism.planner import plan_arrays
from adlm.privacy.accounting import Budget, Charge
from adlm.privacy.ledger import Ledger
from adlm.runtime.artefact import canonical
from adlm.ui import choices
from adlm.ui.choices import full_curve

DOMAIN = 'neighbours = "replace-one"\n' + AGE_COLUMN + column("sick", "label", classes=("no", "yes"))


def everything(folder: Path) -> tuple[list[Path], Path]:
    """Write artefacts and a ledger; return the folders to show and the ledger."""
    first = artefacts.moments(seeded=True)
    first.save(folder / "one" / "release")
    artefacts.model(first).save(folder / "one" / "model")
    (folder / "one" / "model.evaluation.json").write_bytes(canonical(artefacts.EVALUATION))
    (folder / "one" / "audit.json").write_bytes(canonical(artefacts.AUDIT))
    artefacts.moments(delta=Fraction(1, 10**5)).save(folder / "two")
    ledger = folder / "ledger.jsonl"
    charge = Charge(
        "class sums", "laplace", "replace-one", Fraction(1), Fraction(1), "docs/proof-moments.md Theorem 1"
    )
    Ledger(ledger, Budget(Fraction(4), Fraction(1, 10**5))).charge(charge)
    return [folder / "one", folder / "two"], ledger


@contextmanager
def quick_forecasts() -> Iterator[None]:
    """Accuracy by a formula in place of simulations, with the planner's plan, for tests of the page."""

    def forecast(features: Any, n: int, classes: int, epsilon: str, delta: str, relation: str) -> Any:
        plan = plan_arrays(features, n, classes, float(epsilon), float(delta), relation)
        share = float(epsilon) / (float(epsilon) + 0.3)
        return SimpleNamespace(accuracy=0.1 + 0.88 * share, spread=0.01, plan=plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adlm.ui.choices.forecast", forecast)
        patch.setattr("adlm.ui.choices._precomputed", dict)
        patch.setattr("adlm.ui.page.precomputed_curve", full_curve)
        choices._point.cache_clear()
        yield
    choices._point.cache_clear()
