"""Sums of clipped records by class, in exact integers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adlm.domain import Domain
from adlm.engine.passes import Batches, Part, Records, as_records, clamped, halved
from adlm.errors import UserError
from adlm.features import Features, described
from adlm.mechanism import second_moments as stage
from adlm.mechanism.calibration import (
    NOTHING_BEFORE,
    Calibration,
    Indicators,
    MomentConfig,
    Scales,
    Upstream,
    calibrate,
)
from adlm.mechanism.gradient_rounds import GradientClip, GradientRecords, clip_of, run_rounds, stored
from adlm.mechanism.second_moments import Batch, CrossMoments, Second
from adlm.model.estimates import class_offsets, plausible_counts
from adlm.model.head import RESIDUAL_UNIT, Head, calibrated, calibration_spread, feature_mean, final_head
from adlm.privacy.accounting import Charge, Mechanism
from adlm.privacy.certificate import SEEDED
from adlm.privacy.clipping import EXACT_ROWS, Clip, Reals
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime import loops, progress

# ---- Sums of clipped records by class, in exact integers.

Integers = npt.NDArray[np.int64]


def add_class_sums(table: Integers, rows: Reals, codes: Integers, count: int) -> None:
    """Add records to a table of class sums, in blocks for which doubles are exact.

    Parameters
    ----------
    table : (M, 1 + k), changed in place: `count` for each record of a class, then sums of its rows.
    rows : (n, k) clipped records in grid steps, integers as doubles.
    codes : (n,) classes.
    count : increment of a class's count for one record, in grid steps.
    """
    known = len(codes) and codes.min() >= 0 and codes.max() < len(table)  # compiled code checks no index
    if known and loops.add_class_sums.pays(len(rows)):
        loops.add_class_sums(table, rows, codes, count)
        return
    for start in range(0, len(rows), EXACT_ROWS):
        block, labels = rows[start : start + EXACT_ROWS], codes[start : start + EXACT_ROWS]
        member = np.zeros((len(block), len(table)))
        member[np.arange(len(block)), labels] = 1.0
        table[:, 1:] += (member.T @ block).astype(np.int64)
        table[:, 0] += count * member.sum(0).astype(np.int64)


# ---- The moment release: noise on whole-data sums of frozen public features.
#
# The degree-2 loss needs only class sums, counts and second moments of z = h0(x). They are computed in
# exact integers, charged, and released once with exact noise. Proofs: docs/proof-moments.md.


__all__ = [
    "Batch",
    "Batches",
    "Calibration",
    "CrossMoments",
    "Indicators",
    "MomentConfig",
    "Scales",
    "Second",
    "Upstream",
    "calibrate",
    "facts",
    "measure",
    "release",
]


def release(
    batches: Records | Batches,
    *,
    domain: Domain,
    features: Features,
    config: MomentConfig,
    ledger: Ledger,
    source: Source,
    upstream: Upstream = NOTHING_BEFORE,
) -> Release:
    """Make a moment release: one pass over the records for the sums, a second one if its basis needs it.

    Parameters
    ----------
    batches : records of an engine, or a function that yields ((n, width) features, (n,) class codes) batches,
        the same ones each time it is called.
    domain : of the records; its relation is that of the charges.
    features : the public map that made the features.
    config : the public settings, with the budget.
    ledger : the charges are written there before noise is drawn.
    source : of the noise.
    upstream : inputs from earlier steps.

    Formal guarantees
    -----------------
    Relation: the domain's. Guarantee: `calibrate`. Every charge is in the ledger before noise is drawn. n is
    kept only where it is public: under replace-one with one record a person.
    """
    entry = described(features)
    measured = measure(batches, domain=domain, config=config, ledger=ledger, source=source, upstream=upstream)
    return measured.release(domain, entry, upstream)


@dataclass(frozen=True)
class Measured:
    """The noisy numbers of a release, before its certificate is made.

    Attributes
    ----------
    tensors : the noisy integers and their grid steps, by name.
    settings : the config and its noise, for the certificate.
    charges : of the numbers; in the ledger.
    seeded : whether the noise is reproducible, which the certificate is stamped with.
    """

    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    charges: tuple[Charge, ...]
    seeded: bool

    def release(self, domain: Domain, features: Mapping[str, Any], upstream: Upstream) -> Release:
        """Make the release, with the description of its features and of earlier steps."""
        return Release.make(
            dict(self.tensors) | dict(upstream.tensors),
            kind="moments",
            domain=domain,
            features=features,
            settings=dict(self.settings) | dict(upstream.settings),
            charges=upstream.charges + self.charges,
            stamps=upstream.stamps + ((SEEDED,) if self.seeded else ()),
        )


def measure(
    batches: Records | Batches,
    *,
    domain: Domain,
    config: MomentConfig,
    ledger: Ledger,
    source: Source,
    upstream: Upstream = NOTHING_BEFORE,
) -> Measured:
    """Pass over the records and draw the noise: all of a release that needs records.

    Parameters
    ----------
    batches, domain, config, ledger, source, upstream : as for `release`, and with its guarantees.
    """
    scales, charges = calibrate(config, domain.neighbours).for_domain(domain)
    if upstream.unproved:
        charges = tuple(replace(c, unproved=upstream.unproved) for c in charges)
    records = as_records(batches)
    table, second, n, gradient_records = _sums(records, len(domain.classes), config)
    if not upstream.charged:
        ledger.charge(*charges)
    table = clamped(table + source.draw(config.mechanism, table.shape, scales.sums))
    clip = config.clip()
    step = np.concatenate([[1 / clip.count if clip.count else 0.0], clip.steps])
    tensors = {"class_sums": torch.from_numpy(table), "step": torch.from_numpy(step)}
    public = domain.neighbours == "replace-one" and config.contributions == 1  # else n is private
    stated = facts(config, scales, n if public else None, len(domain.classes))
    if config.second is not None:
        released = (tensors, stated)
        added, changed = _second_moments(records, (second, n), config, scales, released, source)
        tensors, stated = tensors | added, stated | changed
    if config.rounds is not None and gradient_records is not None:
        tensors |= _gradients(gradient_records, config, scales, (table, step, stated["sd_sums"]), source)
    return Measured(tensors, stated, charges, source.seeded)


def _second_moments(
    records: Records,
    summed: tuple[npt.NDArray[Any] | None, int],
    config: MomentConfig,
    scales: Scales,
    released: tuple[Mapping[str, Tensor], Mapping[str, Any]],
    source: Source,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Release second moments: those that the first pass summed, or those of one more pass, around means."""
    clip, stated, (second, n) = config.second_clip(), released[1], summed
    assert config.second is not None
    assert clip is not None
    tensors: dict[str, Tensor] = {}
    across = outer = None
    if config.second.later:
        known, outer = stage.second_moment_basis(*released, config.second)
        partial = stage.Products(clip, known.get("centres"), known.get("basis"), outer)
        with progress.bar(n, "second moments", "records") as advance:
            total = records.total(partial, advance)
        assert total is not None
        second, across = total[0].integers(), total[1].integers() if outer else None
        tensors |= {name: torch.from_numpy(value) for name, value in known.items()}
    assert second is not None
    noisy, bits = halved(
        stage.noisy_triangle(second, config.mechanism, scales.second, scales.second_diagonal, source)
    )
    tensors["second"] = torch.from_numpy(noisy)
    tensors["step_second"] = torch.from_numpy(clip.steps[: config.second.q] * 2.0 ** (bits // 2))
    changed = {name: stated[name] / 2.0**bits for name in ("sd_second", "sd_second_diagonal")}
    if across is not None and outer is not None:
        noisy, bits = halved(source.add(across, config.mechanism, scales.cross))
        tensors["cross"] = torch.from_numpy(noisy)
        step = outer[1].steps[0] * outer[2].steps[0] * 2.0**bits
        tensors["step_cross"] = torch.tensor(step, dtype=torch.float64)
        changed["sd_cross"] = stated["sd_cross"] / 2.0**bits
    return tensors, changed


def _gradients(
    gradient_records: GradientRecords,
    config: MomentConfig,
    scales: Scales,
    sums: tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], float],
    source: Source,
) -> dict[str, Tensor]:
    """Release gradient rounds, and a check of their final head; `sums` are noisy, with step and sd."""
    assert config.rounds is not None
    table, step, sd = sums
    offsets = class_offsets(table[:, 0], sd)
    if config.rounds.centred:
        gradient_records = gradient_records.around(feature_mean(table, step, sd))
    noise = (config.mechanism, scales.gradients)
    gradients = run_rounds(gradient_records, config.rounds, offsets, noise, source)
    tensors = {"gradients": torch.from_numpy(gradients)}
    head = final_head(gradients, config.rounds, offsets)
    if config.calibrations:
        head, predicted = _calibrate_head(head, gradient_records, config, (table, scales), source)
        tensors["predicted"] = torch.from_numpy(predicted)
    correct = clamped(source.add(gradient_records.correct(head), config.mechanism, scales.correct))
    gradient_records.records.close()
    return tensors | {"correct": torch.from_numpy(correct)}


def _calibrate_head(
    head: Head,
    gradient_records: GradientRecords,
    config: MomentConfig,
    released: tuple[npt.NDArray[np.int64], Scales],
    source: Source,
) -> tuple[Head, npt.NDArray[np.int64]]:
    """Correct a head's class offsets by noisy sums of its predictions; the sums are (calibrations, M)."""
    assert config.rounds is not None
    (table, scales), step = released, 1 / config.clip().count
    sd = noise_spread(config.mechanism, 1 + config.k) * scales.sums
    counts = plausible_counts(table[:, 0], sd).astype(np.float64) * step
    spread = calibration_spread(sd * step, float(scales.predicted))
    predicted = np.empty((config.calibrations, len(table)), dtype=np.int64)
    for row in predicted:
        row[...] = clamped(source.add(gradient_records.predicted(head), "gaussian", scales.predicted))
        head = calibrated(head, counts, row.astype(np.float64) / RESIDUAL_UNIT, spread)
    return head, predicted


def facts(config: MomentConfig, scales: Scales, n: int | None, classes: int) -> dict[str, Any]:
    """Return the config and its noise, for the certificate.

    Parameters
    ----------
    config : the public settings.
    scales : of the noise, in grid steps.
    n : number of records; None where it is private.
    classes : number of classes.
    """
    second, spread = config.second, noise_spread(config.mechanism, 1 + config.k)
    off = diagonal = across = 0.0
    if second is not None:
        off = diagonal = noise_spread(config.mechanism, second.q * (second.q + 1) // 2)
        if config.mechanism == "radial":
            off, diagonal = off / stage.OFF_DIAGONAL, diagonal / stage.DIAGONAL
        width = (config.k - second.q) * min(classes - 1, second.q)
        across = noise_spread(config.mechanism, width) if second.cross else 0.0
    return {
        "n": n,
        "mechanism": config.mechanism,
        "k": config.k,
        "level": config.clip_norm,
        "constant": config.constant,
        "share_sums": str(config.share_sums if second is not None or config.rounds else Fraction(1)),
        "allocation": "identical" if config.scales is None else "adaptive",
        "second": None if second is None else second.to_dict(),
        "contributions": config.contributions,
        "sd_sums": spread * scales.sums,
        "sd_second": off * scales.second,
        "sd_second_diagonal": diagonal * scales.second_diagonal,
        "sd_cross": across * scales.cross,
        "rounds": None if config.rounds is None else config.rounds.to_dict(),
        "sd_gradients": scales.gradients * noise_spread(config.mechanism, classes * (1 + config.k)),
        "sd_correct": scales.correct * noise_spread(config.mechanism, 1),
        "indicators": config.indicators and config.indicators.to_dict(),
        "sd_indicators": scales.indicators
        * (noise_spread(config.mechanism, config.indicators.width) if config.indicators else 0.0),
        "sd_values": scales.values,
        "sd_predicted": scales.predicted,
    }


def noise_spread(mechanism: Mechanism, width: int) -> float:
    """Return the standard deviation of a coordinate of noise of scale 1 on rows of some width."""
    return {"laplace": math.sqrt(2.0), "radial": math.sqrt(1.0 + width), "gaussian": 1.0}[mechanism]


@dataclass(frozen=True)
class ClassSums:
    """Partial sums of class sums and counts, of products when one pass serves both, and of n.

    Attributes
    ----------
    classes, k : number of classes, and of coordinates summed.
    clip : of class sums.
    products : the clip of products of this pass, None for that of class sums.
    q : coordinates with products in this pass; 0 for none.
    """

    classes: int
    k: int
    clip: Clip
    products: Clip | None = None
    q: int = 0

    @classmethod
    def of(cls, config: MomentConfig, classes: int) -> ClassSums:
        """Return the part of a config that a pass needs, without the budget."""
        if config.second is None or config.second.later:
            return cls(classes, config.k, config.clip())
        products = None if config.joint else config.second_clip()
        return cls(classes, config.k, config.clip(), products, config.second.q)

    def __call__(self, part: Part) -> tuple[Integers, ...]:
        """Sum the clipped records of a part: (M, 1 + k), (q, q) or nothing, (1,)."""
        z, codes = part
        values = np.asarray(z)[:, : self.k]
        rows = self.clip.integers(values)
        table = np.zeros((self.classes, 1 + self.k), dtype=np.int64)
        add_class_sums(table, rows, codes, self.clip.count)
        factors = rows[:, : self.q] if self.products is None else self.products.integers(values[:, : self.q])
        return table, stage.products_of(factors, factors), np.array([len(rows)], dtype=np.int64)


@dataclass(frozen=True)
class ClassSumsKept:
    """The same, and the part as gradient rounds store it."""

    sums: ClassSums
    clip: GradientClip

    def __call__(self, part: Part) -> tuple[Part, tuple[Integers, ...]]:
        """Return features on their grid with their classes, and the sums."""
        values = np.asarray(part[0])[:, : self.sums.k]
        return stored(values, part[1], self.clip), self.sums(part)


def _sums(
    records: Records | Batches, classes: int, config: MomentConfig
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None, int, GradientRecords | None]:
    """Sum clipped records by class, and their products when the same pass serves for both."""
    private, sums = as_records(records), ClassSums.of(config, classes)
    gradient_records = None
    with progress.bar(private.rows, "class sums", "records") as advance:
        if config.rounds is None:
            total = private.total(sums, advance)
        else:
            clip = clip_of(config.rounds)
            records, total = private.keep(ClassSumsKept(sums, clip), advance)
    if total is None:
        raise UserError("there are no records to release; give at least one")
    table, second, (n,) = (part.integers() for part in total)
    if config.rounds is not None and isinstance(records, Records):
        gradient_records = GradientRecords(records, clip, config.k, int(n))
    at_once = config.second is not None and not config.second.later
    return table, second if at_once else None, int(n), gradient_records
