"""Declarations of small tables that several tests read."""

from __future__ import annotations

AGE = """
[columns.age]
kind = "numeric"
lower = 0
upper = 100
[columns.ill]
kind = "label"
classes = ["no", "yes"]
"""
AGE_AND_TOWN = AGE.replace(
    "[columns.ill]", '[columns.town]\nkind = "categorical"\nvalues = ["north", "south"]\n[columns.ill]'
)
