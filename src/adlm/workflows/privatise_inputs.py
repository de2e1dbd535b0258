"""Privatise files of images or vectors once: a folder, CSV, Parquet, Arrow or arrays, to a release."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.privacy.release import Release
from adlm.public.domain.inputs import InputDomain
from adlm.readers.inputs import read_inputs
from adlm.workflows.privatise import privatise


def privatise_inputs(
    path: Path | str,
    domain: InputDomain | Path | str,
    *,
    epsilon: object,
    delta: object = 0,
    neighbours: str | None = None,
    **options: Any,
) -> Release:
    """Read private images or vectors and make a moment release of them.

    Parameters
    ----------
    path : the files; `adlm.readers.input_files` says in which forms.
    domain : the declaration, or its domain file.
    epsilon, delta : the budget; delta 0 gives pure epsilon.
    neighbours : another relation than the declared one.
    options : further options of `privatise`: features, ledger, seed, size and so on.

    Formal guarantees
    -----------------
    As `privatise`, for a person if persons are declared, of whom at most the declared number of records is
    read. Under replace-one, file names are public as the number of records is: a neighbour has another
    picture, of any class, under one name.
    """
    declared = domain if isinstance(domain, InputDomain) else InputDomain.load(domain)
    if neighbours is not None:
        declared = replace(declared, neighbours=neighbours)
    if declared.contributions > 1 and options.get("size") is None:
        raise UserError(
            "where a person may have several records the number of records is private; give a public guess "
            "of it (size=..., --public-size)"
        )
    x, y = read_inputs(path, declared)
    return privatise(
        x,
        y,
        domain=declared.domain,
        epsilon=epsilon,
        delta=delta,
        contributions=declared.contributions,
        declared=None if declared.is_usual else declared.to_dict(),
        **options,
    )
