"""An additive model from noisy contingency tables: the estimates after each stage of a table's release.

Stage one releases a table of indicators by class for each column. From these come *scores*: smoothed log
ratios, one for each indicator and class. Stage two releases the first and second derivatives of the logistic
loss at a public share of the sum of the scores, in one weight a column; a Newton step gives the weights,
and so takes account of redundant columns. Stage three releases tables of residuals. Everything here reads
noisy numbers alone: it is post-processing, for the curator between stages and for the analyst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.estimation import exact
from adlm.estimation.class_counts import posterior_counts
from adlm.privacy.triangle import symmetric

Reals = npt.NDArray[np.float64]
Block = tuple[int, int]

ALIKE = 0.125  # assumed correlation of columns before stage two estimates it
MOST_WEIGHT = 1.5
MOST_SCORE = 3.0
RARE = 0.02  # an indicator's share of a class is clipped to this factor from 0 and from 1
SCORE_SPREADS = (0.03, 0.1, 0.2, 0.4, 0.8, 1.6)  # prior standard deviations of scores, weighted by the tables
RESIDUAL_SPREADS = (0.02, 0.05, 0.1, 0.2, 0.4)
CORRELATION = 3.0  # correlation length of scores, in indicators of an ordered column
LEAST_RELEVANCE = 0.1  # of a column, as a share of the mean
PROBABILITY_UNIT = 2.0**30  # grid of exp(score - largest score)
DRAWS, MATCHES = 4096, 20  # sampled records, and steps of iterative scaling, for class offsets
DAMPING = 0.5  # of the indicator-by-indicator step of stage three


@dataclass(frozen=True)
class Linear:
    """A linear classifier: logits z @ weight' + bias, for M classes and k indicators."""

    weight: Reals  # (M, k)
    bias: Reals  # (M,)

    def logits(self, indicators: Reals) -> Reals:
        """Return (n, M)."""
        return exact.product(indicators, self.weight.T) + self.bias


@dataclass(frozen=True)
class Scores:
    """The estimates of stage one.

    Attributes
    ----------
    scores : (M, k) log ratio of a class's share in an indicator to its share overall.
    prior : (M,) log class shares.
    rates : (M, k) smoothed class shares in each indicator.
    records : (k,) records in each indicator, at least 0.
    n : total number of records.
    offsets : (M,) logits of the classes where every score is zero; log class shares in older files.
    """

    scores: Reals
    prior: Reals
    rates: Reals
    records: Reals
    n: float
    offsets: Reals


def class_scores(
    sums: Reals,
    counts: Reals,
    sd_indicators: Reals,
    sd_counts: float,
    n: float | None,
    blocks: Sequence[Block],
    ordered: Sequence[bool],
) -> Scores:
    """Turn noisy tables of indicators by class, (M, k), and class counts, (M,), into scores.

    Parameters
    ----------
    sums, counts : (M, k) noisy tables and (M,) noisy class counts.
    sd_indicators, sd_counts : (k,) and the standard deviation of the noise on each.
    n : number of records; None if private.
    blocks, ordered : span of each column's indicators, and whether they are ordered.
    """
    classes, width = sums.shape
    totals = _class_totals(sums, counts, sd_indicators, sd_counts, n, blocks)
    total = float(totals.sum())
    shares = totals / total
    scores, rates, records = np.zeros((classes, width)), np.zeros((classes, width)), np.zeros(width)
    for (start, stop), in_order in zip(blocks, ordered, strict=True):
        block, sd = sums[:, start:stop], float(sd_indicators[start])
        block = block - (block.sum(1) - totals)[:, None] / (stop - start)  # each row must sum to its total
        size = np.maximum(block.sum(0), max(sd, 1.0))
        records[start:stop] = np.maximum(block.sum(0), 0.0)
        for c, share in enumerate(shares):
            excess = np.clip(block[c] / size, 0.0, 1.0) - share
            spread = share * (1 - share)
            noise = (sd / size) ** 2 * ((1 - share) ** 2 + (classes - 1) * share**2) + spread / size
            rate = share + smooth(excess, noise, spread, SCORE_SPREADS, in_order)
            rates[c, start:stop] = np.clip(rate, RARE * share, 1 - RARE * (1 - share))
        part = np.clip(np.log(rates[:, start:stop] / shares[:, None]), -MOST_SCORE, MOST_SCORE)
        weight = records[start:stop] + 1e-9
        scores[:, start:stop] = part - (part @ weight / weight.sum())[:, None]
    offsets = _offsets(scores, rates, records, shares, blocks)
    return Scores(scores, np.log(shares), rates, records, total, offsets)


def _offsets(scores: Reals, rates: Reals, records: Reals, shares: Reals, blocks: Sequence[Block]) -> Reals:
    """Class offsets, (M,), that make predicted class shares agree with released ones, on sampled records.

    Records are sampled class by class, each column from its released table.
    """
    random = np.random.default_rng(0)
    codes = np.searchsorted(np.cumsum(shares)[:-1], (np.arange(DRAWS) + 0.5) / DRAWS)
    logits = np.zeros((DRAWS, len(shares)))
    for start, stop in blocks:
        weight = rates[:, start:stop] * records[start:stop] + 1e-9
        below = np.cumsum(weight, 1) / weight.sum(1, keepdims=True)
        indicators = (random.random(DRAWS)[:, None] > below[codes, :-1]).sum(1)
        logits += scores[:, start + indicators].T
    logits *= start_weight(len(blocks))
    offsets = np.log(shares)
    for _ in range(MATCHES):
        offsets += np.log(shares / np.maximum(softmax(logits + offsets).mean(0), 1e-6))
    return np.asarray(offsets - np.log(np.exp(offsets).sum()))


def start_weight(blocks: int) -> float:
    """Weight of every column before stage two: columns are assumed to be somewhat correlated."""
    return 1 / (1 + ALIKE * (blocks - 1))


def noise_by_relevance(summary: Scores, blocks: Sequence[Block], norm: str) -> Reals:
    """Return (k,) relative noise scales for a second round: less noise where a column is more relevant.

    A column's relevance r is the spread of its scores over the records. For error sum r^2 b^2 under a budget
    in L1 the best scales b are proportional to r^(-2/3), in L2 to r^(-1/2). A floor keeps every column in.
    """
    spread = summary.scores.max(0) - summary.scores.min(0)
    relevance = np.array(
        [
            np.sqrt(float(spread[start:stop] ** 2 @ summary.records[start:stop]) / summary.n)
            for start, stop in blocks
        ]
    )
    relevance = relevance + LEAST_RELEVANCE * max(float(relevance.mean()), 1e-9)
    scales = relevance ** (-2 / 3 if norm == "l1" else -1 / 2)
    scales = scales * ((1 / scales).mean() if norm == "l1" else np.sqrt((1 / scales**2).mean()))
    return np.concatenate([np.full(stop - start, b) for b, (start, stop) in zip(scales, blocks, strict=True)])


def _class_totals(
    sums: Reals, counts: Reals, sd: Reals, sd_counts: float, n: float | None, blocks: Sequence[Block]
) -> Reals:
    """Average all estimates of a class's size: its count, and the sum of each column's indicators."""
    summary = [sums[:, start:stop].sum(1) for start, stop in blocks]
    weight = [1 / ((stop - start) * max(float(sd[start]), 1e-9) ** 2) for start, stop in blocks]
    if sd_counts > 0:
        summary.append(counts)
        weight.append(1 / sd_counts**2)
    totals = np.average(np.stack(summary), axis=0, weights=weight)
    if n is not None:
        totals = totals + (n - totals.sum()) / len(totals)
    together = posterior_counts([float(total) for total in totals], float(np.sum(weight)) ** -0.5)
    totals = totals if together is None else np.array(together)
    floor = max(0.005 * (n if n is not None else totals.sum()), 1.0)
    totals = np.maximum(totals, floor)
    return np.asarray(totals * (n / totals.sum()) if n is not None else totals)


def smooth(value: Reals, noise: Reals, unit: float, spreads: Sequence[float], ordered: bool) -> Reals:
    """Return the posterior mean of `value` without its noise, averaged over prior spreads.

    A Gaussian prior of standard deviation `unit` times each of `spreads`, correlated between neighbours in
    an ordered column, is weighted by how well it fits (m,) values of known noise variance (m,).

    Parameters
    ----------
    value, noise : (m,) noisy values, and the variance of the noise on each.
    unit : standard deviation that `spreads` are multiples of.
    spreads : of the priors that are averaged.
    ordered : whether neighbours are correlated.
    """
    place = np.arange(len(value))
    alike = np.exp(-np.abs(place[:, None] - place) / CORRELATION) if ordered else np.eye(len(value))
    means, fits = [], []
    for spread in spreads:
        prior = (spread * unit) ** 2 * alike
        total = prior + np.diag(np.maximum(noise, 1e-18))
        solved = np.linalg.solve(total, value)
        means.append(prior @ solved)
        fits.append(-0.5 * float(value @ solved) - 0.5 * float(np.linalg.slogdet(total)[1]))
    odds = np.exp(np.array(fits) - max(fits))
    return np.asarray((odds / odds.sum()) @ np.stack(means))


@dataclass(frozen=True)
class ColumnWeights:
    """The model of stage two: logits b_l + sum over columns of alpha times the column's score.

    Parameters theta are M - 1 offsets b (class 0 has none) and q weights alpha; `columns` is (k, q) with
    ones where an indicator belongs to a column. `start` is the initial value of every alpha.
    """

    scores: Reals
    offsets: Reals
    columns: Reals
    start: float

    @classmethod
    def of(cls, scores: Reals, offsets: Reals, blocks: Sequence[Block]) -> ColumnWeights:
        """Make it for the blocks of a feature map."""
        columns = np.zeros((scores.shape[1], len(blocks)))
        for index, (start, stop) in enumerate(blocks):
            columns[start:stop, index] = 1.0
        return cls(scores, offsets, columns, start_weight(len(blocks)))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.offsets) - 1 + int(self.columns.shape[1])

    def linear(self, theta: Reals | None = None) -> Linear:
        """The classifier of given parameters, or of the initial ones."""
        offsets, alpha = np.zeros(len(self.offsets) - 1), np.full(self.columns.shape[1], self.start)
        if theta is not None:
            offsets, alpha = offsets + theta[: len(offsets)], alpha + theta[len(offsets) :]
        alpha = np.clip(alpha, 0.0, MOST_WEIGHT)
        return Linear(self.scores * (self.columns @ alpha), self.offsets + np.concatenate([[0.0], offsets]))

    @cached_property
    def _weights(self) -> Reals:
        """Matrix for indicators: (k, M q) scores of each column, then (k, M) initial weights."""
        return np.hstack([*(row[:, None] * self.columns for row in self.scores), self.linear().weight.T])

    def inputs(self, indicators: Reals) -> tuple[Reals, Reals]:
        """Derivatives of logits in the parameters, (n, M, size), and initial logits, (n, M)."""
        classes, columns = len(self.offsets), self.columns.shape[1]
        out = np.zeros((len(indicators), classes, self.size))
        products = exact.product(indicators, self._weights)
        out[:, :, classes - 1 :] = products[:, :-classes].reshape(-1, classes, columns)
        for c in range(1, classes):
            out[:, c, c - 1] = 1.0
        return out, products[:, -classes:] + self.offsets

    def derivatives(self, indicators: Reals, codes: npt.NDArray[np.int64]) -> tuple[Reals, Reals]:
        """Per-record derivatives at the initial parameters.

        Returns
        -------
        (n, size) gradients of the log likelihood, and (n, rows, size) rows whose outer products sum to minus
        its second derivative: one row for two classes, M for more.
        """
        inputs, logits = self.inputs(indicators)
        probability = softmax(logits)
        wrong = -probability
        wrong[np.arange(len(codes)), codes] += 1.0
        gradient = _over_classes(wrong, inputs)
        if len(self.offsets) == 2:
            step = inputs[:, 1:] - inputs[:, :1]
            return gradient, step * np.sqrt(probability[:, 0] * probability[:, 1])[:, None, None]
        middle = _over_classes(probability, inputs)
        return gradient, (inputs - middle[:, None]) * np.sqrt(probability)[:, :, None]

    def typical_norm(self, summary: Scores, norm: str) -> float:
        """Typical norm of a record's inputs if columns were independent, from stage one alone."""
        spread = self.scores.max(0) - self.scores.min(0)
        squared = float(spread**2 @ summary.records) / summary.n
        if norm == "l2":
            return float(np.sqrt(1 + squared))
        return 1 + float(spread @ summary.records) / summary.n


def derivatives(tensors: Mapping[str, npt.NDArray[Any]]) -> tuple[Reals, Reals]:
    """Return the released gradient (p,) and curvature (p, p) in real numbers."""
    upper = tensors["curvature"] * float(tensors["step_curvature"][0]) ** 2
    return tensors["gradient"] * float(tensors["step_gradient"][0]), symmetric(upper)


def newton(gradient: Reals, curvature: Reals, sd_gradient: float, sd_curvature: float) -> Reals:
    """Return the step to the optimum of the noisy quadratic, regularised by the size of its noise.

    Parameters
    ----------
    gradient, curvature : (p,) and (p, p), noisy.
    sd_gradient, sd_curvature : standard deviation of the noise on each.
    """
    values, vectors = np.linalg.eigh(curvature)
    edge = 2 * sd_curvature * np.sqrt(len(gradient)) + sd_gradient  # of the noise's spectrum
    step = vectors @ ((vectors.T @ gradient) / (np.maximum(values, 0.0) + edge))
    return np.asarray(np.clip(step, -2.0, 2.0))


def residual_step(
    residual: Reals,
    sd: float,
    summary: Scores,
    slope: float,
    blocks: Sequence[Block],
    ordered: Sequence[bool],
) -> Reals:
    """Turn noisy residual tables, (1, k) for two classes and (M, k) for more, into changes of (M, k) weights.

    Parameters
    ----------
    residual : noisy residual tables.
    sd : standard deviation of the noise on them.
    summary : the estimates of stage one.
    slope : the second derivative, relative to that without a model.
    blocks, ordered : span of each column's indicators, and whether they are ordered.
    """
    classes = len(summary.prior)
    change = np.zeros((classes, residual.shape[1]))
    for row, table in enumerate(residual):
        rate = summary.rates[1 if classes == 2 else row]
        strength = np.maximum(summary.records * rate * (1 - rate) * slope, 1e-3)
        step = np.zeros(len(table))
        for (start, stop), in_order in zip(blocks, ordered, strict=True):
            part = slice(start, stop)
            noise = (sd / strength[part]) ** 2 + 1 / strength[part]
            raw = np.clip(table[part] / strength[part], -10.0, 10.0)
            step[part] = DAMPING * smooth(raw, noise, 1.0, RESIDUAL_SPREADS, in_order)
        if classes == 2:
            change += np.stack([-step / 2, step / 2])
        else:
            change[row] += step
    return change


def softmax(logits: Reals) -> Reals:
    """Class probabilities, (n, M), the same bits in every batch: sums of M numbers on a grid are exact."""
    shifted = np.rint(exact.exp(logits - logits.max(1, keepdims=True)) * PROBABILITY_UNIT)
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def _over_classes(weights: Reals, inputs: Reals) -> Reals:
    """Return sum_c weights_nc inputs_ncp, (n, size), added up in the order of the classes."""
    total = weights[:, 0, None] * inputs[:, 0]
    for c in range(1, weights.shape[1]):
        total += weights[:, c, None] * inputs[:, c]
    return total
