"""A data set's ledger: a file with a budget, written before any noise is drawn.

The file is JSON lines: a header, then one line a group of charges. The header has the budget, or that there
is none, and is written with the first charge, so a command that fails before it charges sets no budget. A
line is appended under an exclusive lock and made durable before the caller continues. So two processes cannot
both spend the rest of a budget, and a crash can lose a release but never a charge. A last line without its
newline was never acknowledged, so no noise followed it; it is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

from platformdirs import user_data_dir

from adlm.errors import UserError
from adlm.privacy.accounting import Budget, Charge, Totals, compose, left_over, parse_exact, show, unit_words
from adlm.privacy.certificate import box, charges_part, guarantee
from adlm.runtime.artefact import sha256

SCHEMA = 1
_START = b'{"adlm ledger":'


class Ledger:
    """The charges of one data set, in memory or in a file.

    Parameters
    ----------
    path : the ledger's file; None keeps the charges in memory, for data that are read only here.
    budget : the total that may be spent. A file keeps the budget of its first charge; another one is refused.
    allow_unproved : whether a charge without a proved epsilon may be made against a budget.

    Attributes
    ----------
    made : the charges that were made through this object, in order; a file may hold those of others too.
    count : the number of charges in the ledger after the last one that was made through this object.

    Raises
    ------
    UserError : the file is no ledger, was altered, cannot be opened, or has another budget.

    Examples
    --------
    >>> import numpy as np
    >>> from adlm import Budget, Domain, Ledger, privatise
    >>> ledger = Ledger(budget=Budget.of(2))  # with a path it is a file that all releases of the data share
    >>> domain = Domain((2,), 0, 1, ("no", "yes"))
    >>> release = privatise(np.eye(2), [0, 1], domain, epsilon=1, ledger=ledger)
    >>> ledger.left() >= 1
    True
    """

    def __init__(
        self, path: Path | None = None, budget: Budget | None = None, *, allow_unproved: bool = False
    ) -> None:
        self.path = None if path is None else Path(path)
        self.budget = budget
        self.allow_unproved = allow_unproved
        self.made: list[Charge] = []
        self.count = 0
        self._memory: list[Charge] = []
        if self.path is not None and os.path.lexists(self.path):  # the first charge makes the file
            with self._locked() as file:
                self._read(file)

    def __repr__(self) -> str:
        """Path, number of charges and total, in one line."""
        charges = self.charges
        total = ""
        if len({c.neighbours for c in charges}) == 1:
            total = f", {compose(charges).sentence()}"
        return f"Ledger({str(self.path or 'in memory')!r}, charges={len(charges)}{total})"

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All charges so far."""
        if self.path is None:
            return tuple(self._memory)
        if not os.path.lexists(self.path):
            return ()
        with self._locked() as file:
            return tuple(self._read(file))

    def totals(self) -> Totals | None:
        """The total spent so far, or None when nothing was."""
        charges = self.charges
        return compose(charges) if charges else None

    def _repr_html_(self) -> str:
        charges, one = self.charges, len({c.neighbours for c in self.charges}) == 1
        spent = guarantee(compose(charges)) if one else [("charges", len(charges))]
        left = self.left()
        budget = "none" if self.budget is None else show(self.budget.epsilon)
        facts = [*spent, ("budget", budget), ("left, pure", "no limit" if left is None else show(left))]
        return box(f"Ledger {self.path or 'in memory'}", facts, [charges_part(charges, units=True)])

    def left(
        self, delta: Fraction = Fraction(0), neighbours: str | None = None, contributions: int | None = None
    ) -> Fraction | None:
        """Return the largest epsilon that one more release can have, or None without a budget.

        Parameters
        ----------
        delta : of that release; 0 for pure epsilon.
        neighbours : its relation. For another relation than that of the charges so far nothing is left,
            because charges for two relations do not add up.
        contributions : the records of one person that it protects together; as the charges so far by default.
            A charge for fewer records than another is multiplied, so that the budget is one for persons.
        """
        charges = self.charges
        if self.budget is None:
            return None
        return _left(self.budget, charges, delta, neighbours, contributions)

    def check(self, *charges: Charge) -> None:
        """Refuse charges that could not be made now: `charge` without writing.

        Raises
        ------
        UserError : as for `charge`.
        """
        before = self.charges
        self._check([*before, *charges], before)
        self._lines(charges, first=True)

    def charge(self, *charges: Charge) -> None:
        """Write charges down, all or none, before their noise is drawn.

        Parameters
        ----------
        charges : what a mechanism is about to release.

        Raises
        ------
        UserError : there is a budget, and the charges do not compose with what was spent or exceed the budget
            together with it; or the file cannot be written.
        """
        if self.path is None:
            self._check([*self._memory, *charges], self._memory)
            self._memory.extend(charges)
            self.made.extend(charges)
            self.count = len(self._memory)
            return
        with self._locked() as file:
            before = self._read(file)
            self._check([*before, *charges], before)
            lines = self._lines(charges, first=not os.fstat(file.fileno()).st_size)
            # Before writing: an interrupted caller must not conclude that nothing was spent.
            self.made.extend(charges)
            try:
                self._append(file, lines)
            except UserError:
                del self.made[len(self.made) - len(charges) :]
                raise
            self.count = len(before) + len(charges)

    def _check(self, after: Sequence[Charge], before: Sequence[Charge]) -> None:
        if self.budget is None:
            return  # without a budget every charge is recorded and none is refused
        requested = max((c.delta for c in after[len(before) :]), default=Fraction(0))
        if any(c.delta > self.budget.delta for c in after):
            raise UserError(
                f"the budget would be overspent: it allows delta {float(self.budget.delta):g} and this "
                f"release asks for delta {float(requested):g}; make it with a smaller delta, or with 0"
            )
        total = compose(after, self.budget.delta if self.budget.delta else None)
        if math.isinf(total.epsilon_proved):
            if not self.allow_unproved:
                raise UserError(
                    f"no epsilon is proved for this release ({'; '.join(total.unproved)}), so it cannot be "
                    f"made against a budget of {show(self.budget.epsilon)}; make it without a budget"
                )
            return
        if total.epsilon_proved > self.budget.epsilon:
            unit = max((c.contributions for c in after[len(before) :]), default=1)
            left = _left(self.budget, before, requested, contributions=unit)
            raise UserError(
                f"the budget would be overspent: the total would be epsilon {show(total.epsilon_proved)}, "
                f"delta {float(total.delta):g} per {total.unit}{total.multiplied()}, the budget is epsilon "
                f"{show(self.budget.epsilon)}, delta {float(self.budget.delta):g}; what is left for a "
                f"release with delta {float(requested):g} under {total.neighbours} per {unit_words(unit)} is "
                f"epsilon {show(left)}"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        assert self.path is not None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", 0)
        except OSError as error:
            raise UserError(f"the ledger {self.path} cannot be opened: {error.strerror or error}") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read(self, file: IO[bytes]) -> list[Charge]:
        """Read all lines, dropping a torn last one and keeping the budget of a new ledger, if it has one."""
        file.seek(0)
        raw = file.read()
        charges, torn = self._understood(raw)
        if torn:
            os.ftruncate(file.fileno(), len(raw) - torn)
        return charges

    def _understood(self, raw: bytes) -> tuple[list[Charge], int]:
        """Return the charges in a file's content, and the number of unacknowledged bytes at its end."""
        whole, newline, torn = raw.rpartition(b"\n")
        if raw[: len(_START)] != _START[: len(raw)]:  # another kind of file, not a torn header
            raise UserError(
                f"{self.path} is not an adlm ledger, and was left as it is; give another file, or a new name"
            )
        lines = whole.split(b"\n") if newline else []
        if not lines:
            return [], len(torn)
        entries = [self._parse(number, line) for number, line in enumerate(lines, 1)]
        self._take_budget(entries[0])
        charges: list[Charge] = []
        for number, entry in enumerate(entries[1:], 2):
            if not isinstance(entry.get("charges"), list):
                raise UserError(f"line {number} of the ledger {self.path} has no charges; it was altered")
            charges.extend(Charge.from_dict(c) for c in entry["charges"])
        return charges, len(torn)

    def _header(self) -> dict[str, Any]:
        budget = self.budget and {"epsilon": str(self.budget.epsilon), "delta": str(self.budget.delta)}
        return {"adlm ledger": SCHEMA, "budget": budget}

    def _take_budget(self, header: dict[str, Any]) -> None:
        if header.get("adlm ledger") != SCHEMA:
            raise UserError(f"{self.path} is not an adlm ledger of schema {SCHEMA}; give another file")
        stored, given = None, header.get("budget")
        if given is not None or "budget" not in header:
            given = given if isinstance(given, dict) else {}
            stored = Budget(self._number(given.get("epsilon")), self._number(given.get("delta")))
        if self.budget is not None and stored != self.budget:
            was = f"epsilon {show(stored.epsilon)}, delta {float(stored.delta):g}" if stored else "no budget"
            raise UserError(
                f"the ledger {self.path} was made with {was}; a budget cannot be changed afterwards"
            )
        self.budget = stored

    def _number(self, text: object) -> Fraction:
        try:
            return parse_exact(text)
        except (ValueError, ZeroDivisionError) as error:
            raise UserError(f"the budget of the ledger {self.path} cannot be read: {error}") from None

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            entry = json.loads(line)
            body = {key: value for key, value in entry.items() if key != "sha256"}
            if entry["sha256"] == sha256(_line(body)):
                return body
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            pass
        raise UserError(f"line {number} of the ledger {self.path} was altered; restore it from a copy")

    def _lines(self, charges: Sequence[Charge], *, first: bool) -> bytes:
        """Encode a group of charges, after the header if it is the first group."""
        header = _hashed(self._header()) if first else b""
        return header + _hashed({"charges": [c.to_dict() for c in charges]})

    def _append(self, file: IO[bytes], lines: bytes) -> None:
        """Append lines, all or none, and make them durable."""
        start = os.fstat(file.fileno()).st_size
        try:
            if file.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), start)
            raise UserError(
                f"the ledger {self.path} cannot be written: {error.strerror or error}; nothing was released"
            ) from None


@dataclass(frozen=True)
class LedgerView:
    """A read-only snapshot of a ledger. It cannot charge anything, and its file is not touched."""

    path: Path
    budget: Budget | None
    charges: tuple[Charge, ...]

    @classmethod
    def read(cls, path: Path) -> LedgerView:
        """Read a ledger's file without opening it for writing."""
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise UserError(f"the ledger {path} cannot be read: {error.strerror or error}") from None
        book = Ledger()
        book.path = Path(path)
        charges, _ = book._understood(raw)
        return cls(Path(path), book.budget, tuple(charges))

    def left(
        self, delta: Fraction = Fraction(0), neighbours: str | None = None, contributions: int | None = None
    ) -> Fraction | None:
        """The same as `Ledger.left`."""
        if self.budget is None:
            return None
        return _left(self.budget, self.charges, delta, neighbours, contributions)


def _left(
    budget: Budget,
    charges: Sequence[Charge],
    delta: Fraction,
    neighbours: str | None = None,
    contributions: int | None = None,
) -> Fraction:
    if neighbours is not None and any(c.neighbours != neighbours for c in charges):
        return Fraction(0)
    unit = contributions or max((c.contributions for c in charges), default=1)
    return left_over(budget.epsilon, budget.delta, charges, delta, unit)


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _hashed(body: dict[str, Any]) -> bytes:
    return _line(body | {"sha256": sha256(_line(body))}) + b"\n"


def default_path(name: str) -> Path:
    """Return the default path of the user's ledger of a data set; ADLM_LEDGERS sets the folder."""
    folder = os.environ.get("ADLM_LEDGERS") or str(Path(user_data_dir("adlm")) / "ledgers")
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(name).name)
    mark = "" if plain == name else f"-{sha256(name.encode())[:12]}"
    return Path(folder) / f"{plain}{mark}.jsonl"
