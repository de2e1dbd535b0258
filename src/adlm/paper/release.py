"""The release of Algorithm 1: every record with adaptive noise, once (lines 8-19), and what it costs.

Each feature has its own grid, fine enough for its noise to have the same integer scale as all others:
the unit is b_j / SCALE. Records are truncated to the grid, so a release is integer arithmetic and exact
noise; the product with the unit comes afterwards. Records are released in random order. All settings are
checked before the first record is read, and every charge is written before its noise is drawn.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from adlm.domain import Domain
from adlm.errors import UserError, WeakReleaseWarning
from adlm.paper.loss import CROSS_ENTROPY, Polynomial, by_name
from adlm.paper.networks import layer_sizes, name_of
from adlm.paper.relevance import PRIVATE, PrivateRelevance, RelevanceSource, budget_ratios, relevance_charge
from adlm.privacy.accounting import Charge, Totals, compose, parse_epsilon, show
from adlm.privacy.certificate import LEARNT_BOUNDS, SEEDED
from adlm.privacy.clipping import ALLOCATIONS
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import progress

SCALE = 1 << 30  # noise scale in grid steps, for every feature and coefficient
CHUNK = 1 << 20  # values perturbed at a time
METHODS = ("adlm", "ilm")
MODES = ("economical", "literal")
DELTA_H0_RULES = ("counted", "per-patch", "given")
SPLIT = ("0.25", "0.5", "0.25")  # of epsilon, for relevances, features and labels
PROVED_TIMES = 4  # a proved epsilon that is so many times the claimed one is warned of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PrivateRecords:
    """Private records in memory, and how they were encoded.

    Attributes
    ----------
    x : (n, *shape) records in the units of the domain.
    labels : n labels; None where labels have no budget.
    domain : of the records.
    features : their encoding, for the certificate; a table's columns.
    stamps : warnings for every release of them.
    """

    x: npt.ArrayLike
    labels: npt.ArrayLike | None
    domain: Domain
    features: Mapping[str, Any] = field(default_factory=dict)
    stamps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The public settings of a record release.

    Attributes
    ----------
    epsilon2, epsilon3 : budgets that the paper gives to the features and to the labels; epsilon3 = 0 leaves
        labels out of the release, for unsupervised networks.
    batch_size : |L|.
    delta_h0 : sensitivity of the private layer, and `delta_h0_rule`, how it was found: `counted` (Lemma 3
        with the neurons of a network's first layer), `per-patch` (the authors' code), `given` (by the
        user).
    hidden : |h_(k)|, neurons of the last hidden layer, for Delta_F.
    allocation : `identical` (ILM), `linear` (AdLM) or `optimal`.
    loss : the polynomial whose coefficients are released.
    mode : `economical` releases the order that depends on the label; `literal` perturbs all three.
    network : name of the network that the sizes were counted from, for the certificate; empty if unknown.
    """

    epsilon2: Fraction
    epsilon3: Fraction
    batch_size: int
    delta_h0: Fraction
    delta_h0_rule: str
    hidden: int
    allocation: str = "linear"
    loss: Polynomial = field(default=CROSS_ENTROPY)
    mode: str = "economical"
    network: str = ""

    def __post_init__(self) -> None:
        for what, value, allowed in (
            ("mode", self.mode, MODES),
            ("delta_h0_rule", self.delta_h0_rule, DELTA_H0_RULES),
            ("allocation", self.allocation, ALLOCATIONS),
        ):
            if value not in allowed:
                raise UserError(f"{what} must be one of {', '.join(allowed)} (got {value!r}).")
        if self.batch_size < 1 or not self.delta_h0 > 0:
            raise UserError(
                f"batch_size and delta_h0 must be positive (got {self.batch_size} and {self.delta_h0})."
            )
        if not (self.epsilon2 > 0 and self.epsilon3 >= 0):
            raise UserError(
                f"epsilon2 must be positive and epsilon3 not negative (got {self.epsilon2} and "
                f"{self.epsilon3}); epsilon3 = 0 releases no labels."
            )

    @property
    def labelled(self) -> bool:
        """Whether labels are released."""
        return self.epsilon3 > 0

    @property
    def orders(self) -> tuple[int, ...]:
        """Orders of the loss that get noise and are released."""
        return (0, 1, 2) if self.mode == "literal" else self.loss.informative()


@dataclass(frozen=True)
class RecordMechanism:
    """The settings for one data set: ratios, units, and charges.

    Attributes
    ----------
    ratios : (d,) beta_j; a feature with ratio zero, or whose grid has no step, is not released.
    units : (d,) size of a grid step of each feature; infinite where it is not released.
    steps : (d,) grid steps between the bounds of each feature.
    label_unit, label_steps : the same for a label in {0, 1}.
    bias_unit : the same unit at ratio one, for the bias.
    """

    settings: Settings
    domain: Domain
    ratios: Floats
    units: Floats
    steps: npt.NDArray[np.int64]
    label_unit: float
    label_steps: int
    bias_unit: float

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The charges of the features and, if they are released, of the labels.

        Formal guarantees
        -----------------
        Neighbours: replace-one. All noisy records are released, so the bound is on the joint law of every
        value of the one record that differs. In grid steps feature j moves by at most ``steps[j]`` under
        discrete Laplace noise of scale SCALE, so the log ratio is at most sum_j steps[j] / SCALE = |L| d
        eps2 / Delta_h0, up to truncation. A label moves two coefficients of each released order by its
        slope. The bias and the orders without slope do not depend on records. Records are released in a
        random order (`chunks`), so the bound holds wherever in the file the one record lies: where a person
        is replaced whose record is read at another place, no other record is seen to move.
        """
        s, moved = self.settings, sum(map(int, self.steps))
        label = s.loss.label_sensitivity(s.orders) * self.label_steps
        if moved == 0 or (label == 0 and s.labelled):
            raise UserError(
                f"the noise is so large that nothing of a record would be left (Delta_h0 = {s.delta_h0}, "
                f"|L| = {s.batch_size}); raise epsilon or the batch size."
            )
        charge = partial(
            Charge,
            mechanism="laplace",
            neighbours=self.domain.neighbours,
            scale=Fraction(SCALE),
            unproved=LEARNT_BOUNDS if self.domain.bounds_learnt_from_data else "",
        )
        features = charge(
            what=f"{self.domain.size} features of every record, noise (1/|L|) Lap(Delta_h0/eps_j) each",
            sensitivity=Fraction(moved),
            proof="L1 distance of two records in grid steps, a grid for each feature; discrete Laplace noise",
            epsilon_claimed=s.epsilon2,
        )
        if not s.labelled:
            return (features,)
        labels = charge(
            what=f"loss coefficients of order {', '.join(map(str, s.orders))} of every record",
            sensitivity=Fraction(label),
            proof="a label moves two coefficients of an order by its slope; discrete Laplace noise",
            epsilon_claimed=s.epsilon3,
        )
        return features, labels

    def chunks(
        self, x: npt.ArrayLike, labels: npt.ArrayLike | None, source: Source
    ) -> Iterator[tuple[npt.NDArray[np.float32], ...]]:
        """Perturbed records (m, *shape) and coefficients (m, M) or (m, 3, M), in chunks (lines 12-19).

        The order is uniformly random, the same for both. Records alone where labels are not released.
        """
        records, codes = np.asarray(x), None if labels is None else np.asarray(labels)
        rows = max(1, CHUNK // self.domain.size)
        order = source.permutation(len(records))
        with progress.bar(len(records), "noise", "records") as advance:
            for start in range(0, len(records), rows):
                chosen = order[start : start + rows]
                part = self.domain.scale(records[chosen])
                if codes is None:
                    yield (self._records(part, source),)
                else:
                    y = self.domain.encode_labels(codes[chosen])
                    yield self._records(part, source), self._coefficients(y, source)
                advance(len(part))

    def bias(self, source: Source) -> float:
        """The static bias b = 1 of the first layer with its noise (line 14). It depends on no record."""
        return 1.0 + int(source.laplace(1, SCALE)[0]) * self.bias_unit

    def _records(self, x: npt.NDArray[np.float32], source: Source) -> npt.NDArray[np.float32]:
        released = np.flatnonzero(self.ratios)
        flat = x.reshape(len(x), -1)
        unit = self.units[released]
        steps = np.floor(flat[:, released].astype(np.float64) / unit).astype(np.int64)
        steps += source.laplace(steps.shape, SCALE)
        if len(released) == flat.shape[1]:
            return (steps * unit).astype(np.float32).reshape(x.shape)
        noisy = np.zeros_like(flat)
        noisy[:, released] = steps * unit
        return noisy.reshape(x.shape)

    def _coefficients(self, y: npt.NDArray[np.int64], source: Source) -> npt.NDArray[np.float32]:
        loss, classes = self.settings.loss, len(self.domain.classes)
        hot = np.zeros((len(y), classes), dtype=np.int64)
        hot[np.arange(len(y)), y] = self.label_steps
        orders = [
            loss.constant[r] + (loss.slope[r] * hot + source.laplace(hot.shape, SCALE)) * self.label_unit
            for r in self.settings.orders
        ]
        phi = np.stack(orders, axis=1).astype(np.float32)
        return phi if self.settings.mode == "literal" else phi[:, 0]


def mechanism_for(settings: Settings, domain: Domain, relevance: PrivateRelevance | None) -> RecordMechanism:
    """Budget ratios, grids and charges of a release (lines 9-11 and 17); nothing private is read."""
    if domain.neighbours != "replace-one":
        raise UserError(
            "a record release shows how many records there are, so nothing holds under add-remove; declare "
            "neighbours = replace-one, or use adlm release."
        )
    if relevance is not None and len(relevance.values) != domain.size:
        raise UserError(f"there are {len(relevance.values)} relevances for {domain.size} features.")
    values = None if relevance is None else relevance.values
    ratios = budget_ratios(settings.allocation, values, size=domain.size)
    unit = float(settings.delta_h0 / settings.batch_size / settings.epsilon2)  # b_j where beta_j = 1
    delta_f = settings.loss.delta_f(len(domain.classes), settings.hidden)
    label = float(delta_f / settings.batch_size / (settings.epsilon3 or 1))
    units = np.divide(unit / SCALE, ratios, out=np.full_like(ratios, np.inf), where=ratios > 0)
    units[~np.isfinite(units)] = np.inf
    ratios = np.where(np.isfinite(units), ratios, 0.0)
    # floor(x / unit) in the same arithmetic as for records, at the largest possible x
    steps = np.where(ratios > 0, np.floor(1.0 / units), 0.0)
    if not math.isfinite(float(steps.max())) or float(steps.max()) > 2.0**60:
        raise UserError("a budget is so large that its grid does not fit in 64 bits; lower epsilon.")
    return RecordMechanism(
        settings,
        domain,
        np.where(steps > 0, ratios, 0.0),  # the others would be noise alone
        units,
        steps.astype(np.int64),
        label / SCALE,
        math.floor(1.0 / (label / SCALE)),
        unit / SCALE,
    )


@dataclass(frozen=True)
class Budgets:
    """eps1 for the relevances (None for ILM, which has none), eps2 for the features, eps3 for the labels.

    Without eps3 no labels are released; unsupervised networks can still be trained.
    """

    epsilon1: Fraction | None
    epsilon2: Fraction
    epsilon3: Fraction | None

    @classmethod
    def split(cls, epsilon: object, shares: tuple[object, ...] = SPLIT, method: str = "adlm") -> Budgets:
        """Split a total epsilon; ILM divides AdLM's share of the relevances between the other two."""
        total = parse_epsilon(epsilon)
        parts = [parse_epsilon(share, "a share of the split") for share in shares]
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
    rows : records to average relevances over, drawn at random; None for all.
    """

    delta_h0: str | int | Fraction = "counted"
    allocation: str = "linear"
    loss: str = "cross-entropy"
    mode: str = "economical"
    rows: int | None = None


def settings_for(
    domain: Domain, network: nn.Module, budgets: Budgets, L: int, options: RecordOptions
) -> Settings:
    """Line 9: Delta_h0 = 2 sum over h0 of d, and |h_(k)| for line 17, from the sizes of the network."""
    sizes, classes = layer_sizes(network, domain.shape), len(domain.classes)
    if budgets.epsilon3 is not None and sizes.outputs != classes:
        raise UserError(
            f"the network answers with {sizes.outputs} numbers and the domain has {classes} classes; give it "
            f"an output layer of {classes}"
        )
    delta_h0, rule = options.delta_h0, "given"
    if isinstance(delta_h0, str):
        if delta_h0 not in ("counted", "per-patch"):
            raise UserError(f"delta_h0 must be counted, per-patch or a number (got {delta_h0!r}).")
        rule, delta_h0 = delta_h0, sizes.counted if delta_h0 == "counted" else sizes.per_patch
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
    rows: int | None,
    ledger: Ledger,
) -> None:
    """Check all inputs, and that the budget suffices, before the relevances are charged."""
    if (budgets.epsilon1 is None) != (explained is None):
        raise UserError(
            "AdLM has an epsilon1 and needs a relevance network with its provenance; without epsilon1 it is "
            "ILM, which has none: give explained=None"
        )
    records.domain.outside(records.x)  # refuses a wrong shape or a value that is not finite
    n = _count(records, settings)
    if records.labels is not None:
        records.domain.encode_labels(records.labels)
    # What is proved of the features does not depend on the relevances, so it is known before them.
    planned = mechanism_for(replace(settings, allocation="identical"), records.domain, None).charges
    if budgets.epsilon1 is not None and explained is not None:
        unproved = PRIVATE if explained.provenance == "private" else ""
        planned = (
            relevance_charge(records.domain, rows or n, budgets.epsilon1, unproved=unproved),
            *planned,
        )
    totals = compose(planned)
    if ledger.budget is not None:
        spent = compose([*ledger.charges, *planned]).epsilon_proved
        if ledger.budget.epsilon < spent < math.inf:  # what is not proved, the ledger refuses
            raise UserError(
                f"the budget of epsilon {show(ledger.budget.epsilon)} would be overspent: with this release "
                f"the proved total is {show(spent)}; lower epsilon, |L|, or raise Delta_h0"
            )
    for weakness in _weaknesses(settings, records.domain, n, totals):
        warnings.warn(weakness, WeakReleaseWarning, stacklevel=_caller_level())


def _count(records: PrivateRecords, settings: Settings) -> int:
    """The number of records; labels must be given for each if, and only if, they have a budget."""
    n, labels = len(np.asarray(records.x)), records.labels
    if (labels is None) == settings.labelled:
        raise UserError("labels are given when, and only when, they have a budget: epsilon3 > 0.")
    if n == 0 or (labels is not None and n != len(np.asarray(labels))):
        raise UserError(f"there must be records, and one label for each (got {n} records).")
    return n


def _caller_level() -> int:
    """Stack level at which the function that calls this one meets code outside of `adlm.paper`."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("adlm.paper."):
        level, frame = level + 1, frame.f_back
    return level


def _weaknesses(settings: Settings, domain: Domain, n: int, totals: Totals) -> Iterator[str]:
    """Sentences on settings under which little can be learnt, or little is proved."""
    if settings.batch_size > n:
        yield (
            f"|L| = {settings.batch_size} is above the number of records, {n}: no batch is that large, while "
            "noise is divided by |L| and the proved epsilon multiplied by it; lower the batch size"
        )
    scale = float(settings.delta_h0 / settings.batch_size / settings.epsilon2)
    share = n / max(1, len(domain.classes))
    spread = math.sqrt(2 / share) * scale  # of the mean of a feature over the records of a class
    if spread > 1:
        yield (
            f"noise of scale {scale:.3g} on values in [0, 1] is too large to learn from: in the mean of a "
            f"class of {share:.0f} records its standard deviation is still {spread:.2g}; raise epsilon or "
            "|L|, or lower Delta_h0"
        )
    claimed, proved = totals.epsilon_claimed, totals.epsilon_proved
    if math.isinf(proved):
        yield f"no epsilon is proved: {'; '.join(totals.unproved)}; give a public or certified one"
    elif proved >= PROVED_TIMES * claimed:
        yield (
            f"the proved epsilon, {show(proved)}, is {float(proved / claimed):.3g} times the claimed one, "
            f"{show(claimed)}; lower |L| or epsilon, or raise Delta_h0"
        )


def release(
    records: PrivateRecords,
    settings: Settings,
    *,
    relevance: PrivateRelevance | None,
    ledger: Ledger,
    source: Source,
) -> Release:
    """Release all records: the tensors ``x``, ``phi`` (if labels have a budget), ``bias``, ``budget_ratios``.

    Parameters
    ----------
    records : the private records, with their domain.
    settings : the public settings.
    relevance : the private relevances; None for ILM, whose allocation is `identical`.
    ledger : all charges are written there first, except those of the relevances, which it already has.
    source : of the noise.

    Formal guarantees
    -----------------
    See `RecordMechanism.charges`. The certificate carries the relevances' charges too.
    """
    s, domain, n = settings, records.domain, _count(records, settings)
    mechanism = mechanism_for(s, domain, relevance)
    ledger.charge(*mechanism.charges)  # and only then draw
    tensors = {
        "bias": torch.tensor([mechanism.bias(source)], dtype=torch.float64),
        "budget_ratios": torch.from_numpy(mechanism.ratios),
    }
    parts = zip(*mechanism.chunks(records.x, records.labels, source), strict=True)
    for name, values in zip(("x", "phi"), parts, strict=False):
        tensors[name] = torch.from_numpy(np.concatenate(values))
    facts: dict[str, Any] = {
        "method": "ilm" if relevance is None else "adlm",
        "n": n,
        "allocation": s.allocation,
        "batch_size": s.batch_size,
        "delta_f": str(s.loss.delta_f(len(domain.classes), s.hidden)),
        "delta_h0": str(s.delta_h0),
        "delta_h0_rule": s.delta_h0_rule,
        "epsilon2": str(s.epsilon2),
        "epsilon3": str(s.epsilon3),
        "hidden": s.hidden,
        "loss": s.loss.name,
        "mode": s.mode,
        "withheld": int((mechanism.ratios == 0).sum()),
    }
    if s.network:
        facts["network"] = s.network
    carried: tuple[Charge, ...] = ()
    stamps = records.stamps
    if relevance is not None:
        tensors["relevance"] = torch.from_numpy(relevance.values)
        carried, facts = relevance.charges, facts | relevance.settings
        stamps += relevance.stamps
    return Release.make(
        tensors,
        kind="records",
        domain=domain,
        features=records.features,
        settings=facts,
        charges=(*carried, *mechanism.charges),
        stamps=stamps + ((SEEDED,) if source.seeded else ()),
    )
