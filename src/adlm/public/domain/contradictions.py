"""Contradictions within a column's declaration, each with its error sentence."""

from __future__ import annotations

import datetime
import itertools
import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adlm.public.domain.column import Column


def contradiction(column: Column) -> str | None:
    """Return a sentence about a contradiction in a column's declaration, or None."""
    return _texts(column) or _range(column) or _format(column) or _aliases(column) or _categories(column)


def _texts(column: Column) -> str | None:
    listed = itertools.chain(
        column.values, column.classes, (text for text, _ in column.aliases), *(m for _, m in column.groups)
    )
    padded = next((text for text in listed if text != text.strip()), None)
    if padded is None:
        return None
    return f"cells are read without outer spaces, so {padded!r} never occurs; write {padded.strip()!r}"


def _range(column: Column) -> str | None:
    if column.kind not in ("numeric", "date", "target"):
        return None
    low, high = column.number(column.lower), column.number(column.upper)
    if not math.isfinite(high - low):
        return f"the range from {column.lower} to {column.upper} is too wide to compute with; declare less"
    if column.missing in (None, "category") or low <= column.number(column.missing) <= high:
        return None
    return f"missing must lie between lower and upper (got {column.missing})"


def _format(column: Column) -> str | None:
    if column.format is None:
        return None
    try:
        datetime.datetime.strptime(datetime.date(2024, 5, 31).strftime(column.format), column.format)
    except (ValueError, re.error):
        return f"format must be one that strptime reads, such as %d.%m.%Y (got {column.format!r})"
    return None


def _aliases(column: Column) -> str | None:
    for text, name in column.aliases:
        if text in column.classes and text != name:
            return f"alias {text!r} names {name!r}, but is a class itself; remove the alias"
    return None


def _categories(column: Column) -> str | None:
    if column.kind != "categorical":
        return None
    if column.other in column.values:
        return f"other names {column.other!r}, which is one of the values; remove it from the values"
    (_, ranges), _ = column.category_ranges()
    for low, high, _ in ranges:
        if low > high:
            return f"the range {low:g}..{high:g} holds nothing; write the lower number first"
    for (low, high, group), (start, end, another) in itertools.combinations(ranges, 2):
        if group != another and max(low, start) <= min(high, end):
            return f"ranges {low:g}..{high:g} and {start:g}..{end:g} of two groups overlap; separate them"
    return None
