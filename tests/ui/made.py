"""What the tests of the page show: two releases, a model with its evaluation, an audit, a ledger."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from tests.declared import AGE_COLUMN, column
from tests.report import artefacts

from adlm.privacy.accounting import Budget, Charge
from adlm.privacy.ledger import Ledger
from adlm.runtime.artefact import canonical

KEPT = ("digits", "mnist", "fashion-mnist")  # whose simulations must come with the package
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
