"""Validation of a domain's settings: each check returns the normalised value or raises a sentence."""

from __future__ import annotations

import math
import numbers
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from adlm.errors import UserError

Parsed = TypeVar("Parsed")


def shape(given: Any) -> tuple[int, ...]:
    """A record's shape: integers of at least 1."""
    values = _sequence("shape", given)
    if not values:
        raise UserError("domain.shape must have at least one dimension (got none)")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise UserError(f"domain.shape must hold integers of at least 1 (got {show(value)})")
    if math.prod(int(value) for value in values) >= 2**31:
        raise UserError(f"domain.shape must have fewer than 2^31 values (got {show(values)})")
    return tuple(int(value) for value in values)


def bound(key: str, given: Any, size: int) -> float | tuple[float, ...]:
    """One finite number, or one for each of `size` features."""
    if isinstance(given, numbers.Real):
        return _number(key, given)
    values = _sequence(key, given)
    if len(values) != size:
        raise UserError(
            f"domain.{key} must be one number or one for each of the {size} features (got {len(values)})"
        )
    return tuple(_number(key, value) for value in values)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(f"domain.{key} must hold numbers (got {show(value)})")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"domain.{key} must be finite (got {show(value)}); declare a public bound")
    return number


def names(key: str, given: Any, what: str) -> tuple[str, ...]:
    """Distinct names that any file can hold; `what` is what each of them names."""
    values = _sequence(key, given)
    for value in values:
        if not isinstance(value, str) or not value or not _encodable(value):
            raise UserError(f"domain.{key} must hold names in quotes (got {show(value)})")
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise UserError(f"domain.{key} must name each {what} once (got {value!r} twice)")
        seen.add(value)
    return tuple(str(value) for value in values)


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def truth(key: str, value: Any) -> None:
    """Refuse a value that is neither true nor false."""
    if not isinstance(value, bool):
        raise UserError(f"domain.{key} must be true or false (got {show(value)})")


def one_of(key: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not an allowed word."""
    if not isinstance(value, str) or value not in allowed:
        raise UserError(f"domain.{key} must be one of {', '.join(allowed)} (got {show(value)})")


def _sequence(key: str, given: Any) -> list[Any]:
    if isinstance(given, np.ndarray):
        given = given.reshape(-1).tolist()
    if isinstance(given, str) or not isinstance(given, list | tuple):
        raise UserError(f"domain.{key} must be a list (got {show(given)})")
    return list(given)


def show(value: Any) -> str:
    """Format a value for a message: short, on one line."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a very large number"  # printing it could pass Python's limit on digits
    try:
        text = ascii(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def reason(error: BaseException) -> str:
    """The reason of an error, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).replace("\n", " ") or type(error).__name__


def toml(text: str) -> dict[str, Any]:
    """Read the text of a domain file."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"a domain must be valid TOML ({reason(error)})") from None


def named_columns(raw: Any) -> list[tuple[str, Any]] | None:
    """Columns by name, from the sections of a file or the list of `to_dict`; None for anything else."""
    if isinstance(raw, Mapping):
        return [(str(name), settings) for name, settings in raw.items()]
    if isinstance(raw, list | tuple) and all(isinstance(c, Mapping) and "name" in c for c in raw):
        return [(str(c["name"]), {key: v for key, v in c.items() if key != "name"}) for c in raw]
    return None


def load(path: str | Path, parse: Callable[[str], Parsed]) -> Parsed:
    """Read a domain file; an error names the file."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:  # a missing file, or bytes that are not UTF-8
        raise UserError(f"cannot read the domain file {path} ({reason(error)})") from None


class DomainFile:
    """A domain that is declared in a TOML file."""

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Make a domain from settings."""
        raise NotImplementedError

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Make a domain from the text of a domain file."""
        return cls.from_dict(toml(text))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a domain file; an error in it names the file."""
        return load(path, cls.from_toml)
