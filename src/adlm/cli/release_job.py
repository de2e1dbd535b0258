"""Common parts of `adlm release` and `adlm release-records`: ledger, warnings, signing, summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from adlm.cli.console import Output, given, key_of, stamped
from adlm.errors import UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from adlm.paper.release import PrivateRecords
    from adlm.privacy.accounting import Totals
    from adlm.privacy.ledger import Ledger
    from adlm.privacy.noise import Source
    from adlm.privacy.release import Release

METHODS = ("adlm", "ilm")
LARGE_EPSILON = 10  # from here on the user is warned


@dataclass(frozen=True)
class Request:
    """The options of both commands.

    Attributes
    ----------
    file, data, domain : source of the records: a file or a folder with its domain, or a data set's name.
    epsilon, delta : the budget, as it was written.
    out : the folder to make.
    neighbours, limit : a relation that overrides the declared one, and the number of records to read.
    ledger, budget : the ledger's file, and its total budget.
    seed, sign : repeatable noise, and the key to sign with.
    """

    file: str | None
    data: str | None
    domain: Path | None
    epsilon: str
    delta: str
    out: Path
    neighbours: str | None
    limit: int | None
    ledger: Path | None
    budget: str | None
    seed: int | None
    sign: Path | None

    def check(self, context: typer.Context, method: str, only_for_files: tuple[str, ...] = ()) -> None:
        """Refuse contradictory or ineffective options, before anything is read."""
        if method not in METHODS:
            raise UserError(f"--method must be one of {', '.join(METHODS)}, got {method!r}")
        from adlm.domain import NEIGHBOURS
        from adlm.privacy.accounting import Budget

        Budget.of(self.epsilon, self.delta)
        if self.neighbours is not None and self.neighbours not in NEIGHBOURS:
            raise UserError(f"--neighbours must be one of {', '.join(NEIGHBOURS)} (got {self.neighbours!r})")
        if (self.file is None) == (self.data is None):
            raise UserError(
                "give either a file with --domain, or --data NAME; adlm data list shows the names"
            )
        needed, names = (
            ("tables from a file", only_for_files) if self.file is None else ("--data", ("limit", "cache"))
        )
        if self.file is None and given(context, "domain"):
            raise UserError("--domain is for tables from a file, and for images and vectors; leave it out")
        for name in names:
            if given(context, name):
                raise UserError(f"--{name} is for {needed}; leave it out")

    def open(self, public_size: int | None = None) -> Job:
        """Warn of a weak budget, and prepare the key, disk space, noise source and ledger."""
        from adlm.privacy.accounting import Budget
        from adlm.privacy.ledger import Ledger, default_path
        from adlm.privacy.noise import Source
        from adlm.runtime.artefact import require_space

        require_space(self.out, what="release")
        _warn(self.epsilon, self.delta, public_size)
        key = key_of(self.sign)
        place = self.ledger or default_path(self.data or _named(self.file))
        ledger = Ledger(place, None if self.budget is None else Budget.parse(self.budget))
        source = Source.system() if self.seed is None else Source.seeded_with(self.seed)
        return Job(self.out, ledger, place, source, key, self.epsilon)

    def records(self) -> PrivateRecords:
        """Read a data set by its name, or about `limit` records of it."""
        from adlm.data import datasets
        from adlm.engine.records import window
        from adlm.paper.release import PrivateRecords

        assert self.data is not None
        records = datasets.load(self.data, "train")
        domain = records.domain
        if self.neighbours is not None:
            domain = replace(domain, neighbours=self.neighbours)
        if self.limit is None:
            return PrivateRecords(records.x, records.y, domain)
        size = datasets.size(self.data, "train")
        window_rows = window(records.x, records.y, self.limit, neighbours=domain.neighbours, size=size)
        return PrivateRecords(records.x[window_rows], records.y[window_rows], domain)

    @property
    def of_inputs(self) -> bool:
        """Whether the file or folder holds images or vectors, by its domain."""
        from adlm.domain.table import TableDomain, load_domain

        declared = None if self.domain is None else load_domain(self.domain)
        return isinstance(declared, TableDomain) and declared.input is not None

    def domain_file(self) -> Path:
        """The domain file of a file, which is required."""
        if self.domain is None:
            raise UserError("a file needs --domain FILE.toml; adlm domain init drafts one")
        return self.domain


@dataclass(frozen=True)
class Job:
    """A prepared release: its folder, ledger, noise source and key."""

    out: Path
    ledger: Ledger
    place: Path
    source: Source
    key: Ed25519PrivateKey | None
    epsilon: str = ""

    def run(self, make: Callable[[], Release], kind: str, output: Output) -> None:
        """Make the release, sign and write it, and print its cost.

        Parameters
        ----------
        make : makes the release; records it writes itself, chunk by chunk.
        kind : `moments` or `records`.
        output : of the command.
        """
        from adlm.errors import StoppedError, UserError
        from adlm.model.fit import sentences, small_classes

        try:
            release = self._written(make(), kind)
        except UserError as error:
            if self.ledger.made:
                raise UserError(
                    f"{error}; the charge stays in {self.place}, for noise may have been drawn"
                ) from error
            raise
        except KeyboardInterrupt:
            raise StoppedError(self._stopped()) from None
        certificate = release.certificate
        for words in sentences(small_classes(release)):
            caution(words)
        figures = {
            "out": str(self.out),
            "kind": kind,
            "n": certificate.settings.get("n"),
            "stamps": list(certificate.stamps),
            "ledger": str(self.place),
            "charges": self.ledger.count,
            "signed_by": release.signature and release.signature.signer,
        }
        if release.engine is not None:
            figures["engine"] = dict(release.engine)
        output.result(
            figures | certificate.totals.to_dict(),
            f"{self.out}: {certificate.totals.sentence()}{self._used(certificate.totals)}; charged to "
            f"{self.place}{self._before()}{stamped(certificate.stamps)}",
        )

    def _used(self, totals: Totals) -> str:
        """Say what was asked for, where rounding made the epsilon another one."""
        from adlm.privacy.accounting import parse_epsilon, show

        if totals.unproved or totals.epsilon_claimed != totals.epsilon_proved:
            return ""
        asked, used = show(parse_epsilon(self.epsilon)), show(totals.epsilon_proved)
        return "" if asked == used else f" (asked {asked}, used {used})"

    def _before(self) -> str:
        """Say what the records have been charged in total, where this was not their first release."""
        from adlm.privacy.accounting import compose

        charges = self.ledger.charges
        if len(charges) <= len(self.ledger.made):
            return ""
        if len({charge.neighbours for charge in charges}) > 1:
            return f"; these records have {len(charges)} charges, under two relations that do not add up"
        return f"; these records have been charged in total: {compose(charges).sentence()}"

    def _written(self, release: Release, kind: str) -> Release:
        """Sign the release and write it; of records, which are already written, only the signature."""
        from adlm.privacy.signature import FILE
        from adlm.runtime.artefact import canonical, write_file

        release = release if self.key is None else release.signed(self.key)
        if kind != "records":
            release.save(self.out)
        elif release.signature is not None:
            write_file(self.out / FILE, canonical(release.signature.to_dict()), what="signature")
        return release

    def _stopped(self) -> str:
        """Return a sentence on the cost of an interrupted release, and whether it was written."""
        from adlm.privacy.accounting import compose

        outcome = (
            f"{self.out} was written"
            if self.out.exists()
            else f"{self.out} was not made; nothing half-written is left behind"
        )
        if not self.ledger.made:
            return f"stopped; nothing was charged, and {outcome}"
        return (
            f"stopped after the charge: {compose(self.ledger.made).sentence()} stays in {self.place}, for "
            f"noise may have been drawn, and {outcome}"
        )


def _named(file: str | None) -> str:
    """Name a data set after its path."""
    return str(file) if file is None or "://" in file else str(Path(file).resolve())


def caution(words: str) -> None:
    """Print a warning on standard error."""
    typer.echo(f"adlm: warning: {words}", err=True)


def _warn(epsilon: str, delta: str, size: int | None) -> None:
    """Warn of a budget that gives hardly any protection, before anything is read."""
    from adlm.privacy.accounting import Budget
    from adlm.privacy.certificate import MOST_DELTA, MOST_EPSILON

    budget = Budget.of(epsilon, delta)
    if budget.epsilon > LARGE_EPSILON:
        stamp = (
            f", and above {MOST_EPSILON} the release is stamped NOT PRIVATE"
            if budget.epsilon > MOST_EPSILON
            else ""
        )
        caution(f"epsilon {epsilon} is large: the odds can change e^{epsilon} times{stamp}")
    most = min(MOST_DELTA, Fraction(1, size)) if size else MOST_DELTA
    if budget.delta >= most:
        caution(
            f"delta {delta} is at least {float(most):g}: so much is met by publishing a random record as it "
            "is; the release is stamped NOT PRIVATE"
        )
