"""The settings of Algorithm 1, all checked before the first record is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from torch import nn

from adlm.analyst.layer_sizes import layer_sizes
from adlm.analyst.networks import name_of
from adlm.curator.allocation import ALLOCATIONS
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.records import PrivateRecords, Settings, calibrate
from adlm.curator.relevance import RelevanceSource, relevance_charge
from adlm.errors import UserError
from adlm.estimation.polynomial import by_name
from adlm.privacy.accounting import Charge, compose, parse_epsilon, show
from adlm.public.domain import Domain

METHODS = ("adlm", "ilm")


@dataclass(frozen=True)
class Budgets:
    """eps1 for the relevances (None for ILM, which has none), eps2 for the features, eps3 for the labels.

    Without eps3 no labels are released; unsupervised networks can still be trained.
    """

    epsilon1: Fraction | None
    epsilon2: Fraction
    epsilon3: Fraction | None

    @classmethod
    def split(
        cls, epsilon: object, shares: tuple[object, ...] = ("0.25", "0.5", "0.25"), method: str = "adlm"
    ) -> Budgets:
        """Split a total epsilon; ILM divides AdLM's share of the relevances between the other two."""
        total, parts = (
            parse_epsilon(epsilon),
            [parse_epsilon(share, "a share of the split") for share in shares],
        )
        if method not in METHODS:
            raise UserError(f"method must be one of {', '.join(METHODS)} (got {method!r}).")
        if len(parts) != 3:
            raise UserError(
                f"the split must have three shares, for relevances, features and labels (got {len(parts)})."
            )
        if method == "ilm":
            parts[0] = Fraction(0)
        first, second, third = (total * part / sum(parts) for part in parts)
        return cls(first or None, second, third)


@dataclass(frozen=True)
class RecordOptions:
    """Settings that Algorithm 1 leaves open, with their usual values.

    Attributes
    ----------
    delta_h0 : Delta_h0 of line 9: `counted` (Lemma 3, on the network's first layer), `per-patch` (the
        authors' code) or a number.
    allocation : of eps2 over the features: `linear` (Eq. 16) or `optimal`; ILM is always `identical`.
    loss : `cross-entropy` or `square`.
    mode : `literal` puts noise on all three orders of the loss, as in lines 18-19; `economical` on the one
        that depends on the label.
    rows : records to average relevances over; None for all.
    folder : where the release is written, chunk by chunk; None keeps it in memory.
    """

    delta_h0: str | int | Fraction = "counted"
    allocation: str = "linear"
    loss: str = "cross-entropy"
    mode: str = "economical"
    rows: int | None = None
    folder: Path | None = None


def settings_for(
    domain: Domain, network: nn.Module, budgets: Budgets, L: int, options: RecordOptions
) -> Settings:
    """Line 9: Delta_h0 = 2 sum over h0 of d, and |h_(k)| for line 17, from the sizes of the network.

    Parameters
    ----------
    domain : of the records.
    network : to be trained; only its sizes are read.
    budgets : eps1, eps2 and eps3.
    L : batch size.
    options : how Delta_h0 is counted, and the rest.
    """
    sizes, classes = layer_sizes(network, domain.shape), len(domain.classes)
    if budgets.epsilon3 is not None and sizes.outputs != classes:
        raise UserError(
            f"the network answers with {sizes.outputs} numbers and the domain has {classes} classes; give it "
            f"an output layer of {classes}"
        )
    delta_h0 = options.delta_h0
    rule = delta_h0 if isinstance(delta_h0, str) else "given"
    if rule not in ("counted", "per-patch") and isinstance(delta_h0, str):
        raise UserError(f"delta_h0 must be counted, per-patch or a number (got {delta_h0!r}).")
    if rule != "given":
        delta_h0 = sizes.counted if rule == "counted" else sizes.per_patch
    return Settings(
        epsilon2=budgets.epsilon2,
        epsilon3=budgets.epsilon3 or Fraction(0),
        batch_size=L,
        delta_h0=Fraction(delta_h0),
        delta_h0_rule=rule,
        hidden=sizes.hidden,
        allocation="identical" if budgets.epsilon1 is None else options.allocation,
        loss=by_name(options.loss),
        mode=options.mode,
        network=name_of(network),
    )


def check_first(
    records: PrivateRecords,
    settings: Settings,
    budgets: Budgets,
    *,
    explained: RelevanceSource | None,
    options: RecordOptions,
    ledger: Ledger,
) -> None:
    """Check all inputs, and that the budget suffices, before the relevances are charged.

    Parameters
    ----------
    records : the private records.
    settings, budgets : of the release.
    explained : the relevance network; None without eps1.
    options : records to average relevances over, and where the release is to be written.
    ledger : the one to be charged.
    """
    if budgets.epsilon1 is not None and explained is None:
        raise UserError("AdLM needs a relevance network and its provenance; ILM needs neither.")
    if settings.allocation not in ALLOCATIONS:
        raise UserError(f"allocation must be one of {', '.join(ALLOCATIONS)} (got {settings.allocation!r}).")
    if options.folder is not None and options.folder.exists():
        raise UserError(
            f"{options.folder} exists already; choose another place for the release or remove it first"
        )
    # Reads every record, in blocks, and refuses a wrong shape or a value that is not finite.
    domain, y = records.domain, records.labels
    domain.outside(records.x)
    n = len(np.asarray(records.x))
    if (y is None) == settings.labelled:
        raise UserError("labels are given when, and only when, they have a budget: epsilon3.")
    if n == 0 or (y is not None and n != len(domain.encode_labels(y))):
        raise UserError(f"there must be records, and one label for each (got {n} records).")
    planned: tuple[Charge, ...] = calibrate(replace(settings, allocation="identical"), domain, None).charges
    if budgets.epsilon1 is not None:
        rows = n if options.rows is None else options.rows
        planned = (relevance_charge(domain, rows, budgets.epsilon1), *planned)
    if ledger.budget is not None:
        spent = compose([*ledger.charges, *planned]).epsilon_proved
        if spent > ledger.budget.epsilon:
            raise UserError(
                f"the budget of epsilon {show(ledger.budget.epsilon)} would be overspent: with this release "
                f"the proved total is {show(spent)}; lower epsilon, |L|, or raise Delta_h0"
            )
