"""Inputs of the scikit-learn API, arrays and data frames, encoded by their declared domain."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from adlm.domain import Domain
from adlm.domain.columns import Column
from adlm.domain.encoding import encode_frame, encode_labels
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.privacy.release import Release

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


class PrivacyWarning(UserWarning):
    """A use that is allowed but costs privacy."""


def steps_before() -> list[str]:
    """Name the steps that scikit-learn fitted on the records or targets before it called `fit`."""
    frame = sys._getframe(2)
    names: list[str] = []
    while frame is not None and frame.f_back is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Pipeline):
            names += [
                name
                for name, step in caller.steps[:-1]
                if step not in (None, "passthrough") and get_tags(step).requires_fit
            ]
        if isinstance(caller, TransformedTargetRegressor):
            transformer = caller.transformer_
            if get_tags(transformer).requires_fit:
                names.append(type(transformer).__name__)
        frame = frame.f_back
    return list(dict.fromkeys(names))


def check_no_weights(given: MutableMapping[str, Any]) -> None:
    """Refuse parameters that `fit` does not take; sample weights may be None."""
    if given.pop("sample_weight", None) is not None:
        raise UserError(
            "sample weights are refused: noise is made for records that count once each, and a weight lets "
            "one record move a sum further; leave sample_weight out"
        )
    if given:
        raise UserError(f"fit takes X and y (got {', '.join(sorted(given))} too); leave that out")


def declared(release: Release) -> tuple[TableDomain | None, Domain]:
    """The declared table of a release, None for other records, and the domain of its records."""
    spec = release.certificate.features.get("spec") or {}
    table = TableDomain.from_dict(spec["table"]) if "table" in spec else None
    return table, release.certificate.domain


def column_labels(table: TableDomain) -> list[str]:
    """Names of a table's columns; none for a table from an array, whose columns have no names."""
    names = [column.name for column in table.features]
    return [] if names == [f"x{j}" for j in range(len(names))] else names


def one_column(y: Any) -> Any:
    """Return the column of a frame of labels."""
    if not hasattr(y, "columns"):
        return y
    if len(y.columns) != 1:
        raise UserError(f"labels are one column (got a frame of {len(y.columns)}); give y=frame[NAME]")
    return y[y.columns[0]]


def check_lengths(x: Any, y: Any) -> None:
    """Refuse records and labels of different lengths."""
    if len(x) != len(y):
        raise UserError(f"there are {len(x)} records and {len(y)} labels; give one label for each record")


def class_labels(names: tuple[str, ...]) -> npt.NDArray[Any]:
    """Return the labels that a classifier predicts, in the order of the declared classes.

    Integers if every class is named by one, False and True if these are the two classes, else the names.

    Formal guarantees
    -----------------
    A function of the declaration alone: the values and the type of private labels have no part in it.
    """
    if all(_INTEGER.fullmatch(name) and abs(int(name)) < 2**63 for name in names):
        return np.array([int(name) for name in names], dtype=np.int64)
    if sorted(names) == ["false", "true"]:
        return np.array([name == "true" for name in names])
    return np.array(names)


def label_codes(y: Any, table: TableDomain) -> npt.NDArray[np.int64]:
    """Return the (n,) class codes of a table's labels."""
    shape = np.shape(y)
    if len(shape) != 1:
        raise UserError(f"labels must be a list of one per record, shape (n,) (got shape {shape})")
    return encode_labels(table.label, y, table.missing)


def array_table(x: npt.NDArray[Any], y: npt.NDArray[Any], domain: Domain | None) -> TableDomain:
    """A table of numeric columns, with the bounds of a domain, or bounds learnt from data with a warning."""
    columns, relation = _numeric_columns(x, domain, "bounds and classes are")
    names = tuple(str(v) for v in np.unique(y)) if domain is None else domain.classes
    if domain is None and len(names) < 2:
        raise UserError("Classifier can't train when only one class is present; give at least two classes")
    label = Column("label", "label", classes=names)
    return TableDomain((*columns, label), neighbours=relation, bounds_learnt_from_data=_is_learnt(domain))


def target_table(x: npt.NDArray[Any], y: npt.NDArray[Any], domain: Domain | None) -> TableDomain:
    """A table of numeric columns and a numeric target, with a domain's bounds or bounds learnt from data."""
    columns, relation = _numeric_columns(x, domain, "bounds of the columns and of the target are")
    if domain is None:
        bottom, top = float(np.min(y)), float(np.max(y))
        top = top if top > bottom else bottom + 1.0
    elif domain.target is None:
        raise UserError(
            "the domain has classes, and a regressor needs the target's bounds: "
            "Domain(shape, lower, upper, (), target=(LOWER, UPPER))"
        )
    else:
        bottom, top = domain.target
    target = Column("target", "target", bottom, top)
    return TableDomain((*columns, target), neighbours=relation, bounds_learnt_from_data=_is_learnt(domain))


def _is_learnt(domain: Domain | None) -> bool:
    return domain is None or domain.bounds_learnt_from_data


def _numeric_columns(
    x: npt.NDArray[Any], domain: Domain | None, learnt: str
) -> tuple[tuple[Column, ...], str]:
    """Columns of an array and the relation, by a domain; else learnt from the data, with a warning."""
    if domain is None:
        warnings.warn(
            f"no domain was given: {learnt} learnt from the data, which is not private; the certificate "
            "proves nothing, and says so",
            PrivacyWarning,
            stacklevel=5,
        )
        low, high = x.min(0).astype(float), x.max(0).astype(float)
    elif x.shape[1] != domain.size:
        raise UserError(f"records have {x.shape[1]} features, the domain has {domain.size}")
    else:
        low, high = (np.broadcast_to(bound, x.shape[1]) for bound in (domain.lower, domain.upper))
    high = np.where(high > low, high, low + 1.0)
    columns = (Column(f"x{j}", "numeric", float(low[j]), float(high[j])) for j in range(x.shape[1]))
    return tuple(columns), "replace-one" if domain is None else domain.neighbours


def check_no_person(domain: TableDomain | Domain | None) -> None:
    """Refuse an array where the domain has a person column, which needs a data frame."""
    if isinstance(domain, TableDomain) and domain.person is not None:
        raise UserError(
            f"the domain names persons by column {domain.person.name!r}; give a DataFrame with it"
        )


def encode_array(table: TableDomain, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Encode an array whose columns are in the order of the table's."""
    if x.shape[1] != len(table.features):
        raise UserError(f"records have {x.shape[1]} columns, the table has {len(table.features)}")
    return encode_frame(table, _Columns([c.name for c in table.features], x))


class _Columns:
    """The columns of an array, by name."""

    def __init__(self, names: list[str], x: npt.NDArray[Any]) -> None:
        self.columns, self._x = names, x

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return np.ascontiguousarray(self._x[:, self.columns.index(name)])
