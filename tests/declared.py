"""Declarations of small tables that several tests read; a declaration is the sum of its columns."""

from __future__ import annotations

import json


def column(name: str, kind: str, **settings: object) -> str:
    """The section of a column, in TOML: texts in quotes, tuples as lists."""
    values = {"kind": kind} | settings
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join([f"[columns.{name}]", *lines]) + "\n"


PERSON = column("person", "person", records=2)
AGE_COLUMN = column("age", "numeric", lower=0, upper=100)
DOSE = column("dose", "numeric", lower=0, upper=10)
STAGE = column("stage", "ordinal", values=("I", "II", "III"))
TOWN = column("town", "categorical", values=("a", "b", "c"))
WARD = column("ward", "categorical", values=("a", "b", "c"))
SEEN = """[columns.seen]
kind = "date"
lower = 2020-01-01
upper = 2020-12-31
"""
GROUPED = """[columns.code]
kind = "categorical"
other = "rest"
[columns.code.groups]
heart = ["390..459", "785..785"]
lung = ["460..519", "V1"]
"""
MISSING = 'missing = "category"\n'  # after a column: what is missing is a value of its own
ILL = column("ill", "label", classes=("no", "yes"))
DAYS = column("days", "target", lower=0, upper=20)

AGE = AGE_COLUMN + ILL
AGE_AND_TOWN = AGE_COLUMN + column("town", "categorical", values=("north", "south")) + ILL
