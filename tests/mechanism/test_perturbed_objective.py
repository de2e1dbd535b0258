"""The perturbed loss: what docs/proof-objective.md says of it, against slow twins."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.engine.passes import Records
from adlm.errors import UserError
from adlm.mechanism import objective as perturbed
from adlm.mechanism.class_sums import centre_stages
from adlm.mechanism.objective import (
    FINE_UNIT,
    NOISE_STEPS,
    SUM_UNIT,
    Bounded,
    Correct,
    LossGradient,
    Objective,
    calibrate,
    gradient_error,
    minimise,
    perturbed_minimum,
    residual_error,
    residuals,
)
from adlm.mechanism.stages import Terms
from adlm.mechanism.stages import calibrate as calibrate_stages
from adlm.model.head import FEATURE_UNIT, LARGEST_WEIGHT
from adlm.privacy.accounting import Budget, Charge, Mechanism, compose
from adlm.privacy.noise import Scale, Source

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
RELATIONS = ("replace-one", "add-remove")
CLASSES = Objective("classes", 3, "laplace", 1.0, 40.0, 1.2, 1.1, 0.3, 100)
TWO = replace(CLASSES, classes=2)
TARGET = replace(CLASSES, loss="target", classes=1)


def quotient_norm(g: Any) -> float:
    """The least sum of |g_m + t| over t, which is attained at one of the -g_m."""
    return float(np.min(np.abs(np.asarray(g)[:, None] - np.asarray(g)[None]).sum(0)))


def constraints(classes: int, y: int) -> list[Reals]:
    """The linear constraints a p <= cap that say: the quotient norm of p - e_y is at most cap."""
    others = [m for m in range(classes) if m != y]
    found = []
    for twos in itertools.combinations(others, classes // 2):
        for one in (m for m in others if m not in twos) if classes % 2 else (None,):
            a = np.zeros(classes)
            a[list(twos)] = 2.0
            if one is not None:
                a[one] = 1.0
            found.append(a)
    return found


def largest(scores: Reals, y: int, cap: float) -> Reals:
    """The p of the capped loss, by a solver that knows nothing of pools."""
    classes = len(scores)
    bounds = np.stack(constraints(classes, y))
    start = np.full(classes, 0.2 * cap / classes)
    start[y] = 1 - start[0] * (classes - 1)

    def value(p: Reals) -> float:
        return float((p * np.log(p) - p * scores).sum())

    solve: Any = scipy.optimize.minimize
    found = solve(
        value,
        start,
        jac=lambda p: np.log(p) + 1 - scores,
        method="SLSQP",
        bounds=[(1e-14, 1.0)] * classes,
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(classes)},
            {"type": "ineq", "fun": lambda p: cap - bounds @ p, "jac": lambda p: -bounds},
        ],
        options={"maxiter": 500, "ftol": 1e-14},
    )
    return np.asarray(found.x)


def slow_residual(scores: list[Any], y: int, cap: float, digits: int = 50) -> list[Any]:
    """The gradient of the capped loss in the scores, to many digits."""
    with mpmath.workdps(digits):
        u = [mpmath.mpf(s) for s in scores]
        classes = len(u)
        order = sorted((m for m in range(classes) if m != y), key=lambda m: -u[m])
        weight = [2 if j < classes // 2 else classes % 2 * (j == classes // 2) for j in range(classes - 1)]

        def at(multiplier: Any) -> tuple[list[Any], Any]:
            pools: list[tuple[Any, int]] = []
            for m, w in zip(order, weight, strict=True):
                pools.append((u[m] - multiplier * w, 1))
                while len(pools) > 1 and pools[-2][0] / pools[-2][1] < pools[-1][0] / pools[-1][1]:
                    last, before = pools.pop(), pools.pop()
                    pools.append((last[0] + before[0], last[1] + before[1]))
            exps = [mpmath.exp(total / size - u[y]) for total, size in pools for _ in range(size)]
            whole = 1 + mpmath.fsum(exps)
            p = [e / whole for e in exps]
            return p, mpmath.fsum(w * q for w, q in zip(weight, p, strict=True))

        p, norm = at(mpmath.mpf(0))
        if norm > cap:
            low, high = mpmath.mpf(0), mpmath.mpf(1)
            while at(high)[1] > cap:
                high *= 2
            for _ in range(int(2.2 * digits) + 20):
                middle = (low + high) / 2
                low, high = (middle, high) if at(middle)[1] > cap else (low, middle)
            p, _ = at(high)
        out = [mpmath.mpf(0)] * classes
        for m, q in zip(order, p, strict=True):
            out[m] = q
        out[y] = -mpmath.fsum(p)
        return out


def some_scores(rng: np.random.Generator, classes: int) -> Reals:
    """Scores of all kinds: alike, far apart, tied, with one class far ahead."""
    scale = float(rng.choice([0.0, 1e-9, 0.1, 1.0, 5.0, 40.0, 300.0]))
    scores = rng.normal(size=classes) * scale
    if rng.random() < 0.4:
        scores = np.round(scores)
    if rng.random() < 0.3:
        scores[rng.integers(classes)] += rng.choice([-1, 1]) * 30.0
    return np.asarray(scores)


def records_of(rows: npt.NDArray[Any], labels: npt.NDArray[Any], batch: int = 1 << 16) -> Records:
    """Stored records, in parts of some number."""
    return Records.of_batches(
        lambda: [(rows[i : i + batch], labels[i : i + batch]) for i in range(0, len(rows), batch)]
    )


class Tap(Source):
    """A source that notes what is asked of it, and adds nothing to the minimum."""

    def __init__(self, key: bytes, *, seeded: bool) -> None:
        super().__init__(key, seeded=seeded)
        self.drawn: list[tuple[str, Integers]] = []
        self.values: list[tuple[Integers, Scale]] = []

    def laplace(self, shape: int | tuple[int, ...], scale: Scale) -> Integers:
        out = super().laplace(shape, scale)
        self.drawn.append(("laplace", out))
        return out

    def radial(self, rows: int, width: int, scale: Scale) -> Integers:
        out = super().radial(rows, width, scale)
        self.drawn.append(("radial", out))
        return out

    def add(self, values: Integers, mechanism: Mechanism, scale: Scale) -> Integers:
        self.values.append((values, scale))
        return values


# ---- Lemma 1


@settings(max_examples=150)
@given(
    st.lists(
        st.lists(
            st.one_of(
                st.floats(-2, 2),
                st.floats(allow_nan=False, allow_infinity=False),
                st.sampled_from([0.0, 1.0, -1.0, 1.99, 2.0**-14, 1 - 2.0**-14, 0.5, 1e308, 5e-324]),
            ),
            min_size=4,
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["laplace", "radial"]),
    st.floats(0.01, 3),
    st.floats(0.01, 3),
    st.floats(0.01, 1.9),
)
def test_any_features_whatever_end_within_both_norms(
    values: list[list[float]], noise: Mechanism, norm: float, length: float, constant: float
) -> None:
    objective = replace(CLASSES, noise=noise, norm=norm, length=length, constant=constant)
    rows = Bounded(objective, 4).rows(np.array(values))
    for row in rows.tolist():
        assert sum(v * v for v in row) <= math.floor(length * FEATURE_UNIT) ** 2
        size = sum(map(abs, row)) if noise == "laplace" else math.isqrt(sum(v * v for v in row) - 1) + 1
        assert size <= math.floor(norm * FEATURE_UNIT) or not any(row)


def test_a_bounded_record_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(200, 9)).astype(np.float32) * 0.6
    for noise in ("laplace", "radial"):
        bounded = Bounded(replace(CLASSES, noise=noise), 9)
        together = bounded.rows(z)
        assert all((bounded.rows(z[i : i + 1]) == together[i]).all() for i in range(200))


def test_a_record_within_its_bounds_is_kept_to_the_last_grid_step() -> None:
    z = np.array([[0.25, -0.5, 2.0**-14, 0.0]])
    rows = Bounded(CLASSES, 4).rows(z)
    assert (rows[0, 1:] == z[0] * FEATURE_UNIT).all()
    assert rows[0, 0] == math.floor(0.3 * FEATURE_UNIT)


def test_features_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="not a finite number"):
        Bounded(CLASSES, 1).rows(np.array([[np.nan]]))


# ---- the loss


@pytest.mark.parametrize("classes", [3, 4, 5, 6])
def test_residuals_are_those_of_a_convex_maximisation(classes: int) -> None:
    rng = np.random.default_rng(classes)
    for cap in (0.3, 1.0, 1.7):
        for _ in range(12):
            scores, y = rng.normal(size=classes) * rng.choice([0.1, 1, 3]), int(rng.integers(classes))
            expected = largest(scores, y, cap)
            expected[y] -= 1
            found = residuals(scores[None].copy(), np.array([y]), replace(CLASSES, classes=classes, cap=cap))
            np.testing.assert_allclose(found[0], expected, atol=2e-5)


def test_the_cap_is_the_ball_of_the_quotient_norm() -> None:
    rng = np.random.default_rng(2)
    for classes in (3, 4, 5, 6, 7):
        sides = np.stack(constraints(classes, 0))
        for p in rng.dirichlet(np.full(classes, 0.4), 200):
            g = p.copy()
            g[0] -= 1
            assert math.isclose((sides @ p).max(), quotient_norm(g), abs_tol=1e-12)


@pytest.mark.parametrize("classes", [3, 4, 5, 10, 33])
def test_no_residual_has_a_quotient_norm_above_the_cap(classes: int) -> None:
    rng = np.random.default_rng(classes)
    for cap in (0.05, 1.0, 1.25, 1.9, 2.0):
        scores = np.stack([some_scores(rng, classes) for _ in range(300)])
        labels = rng.integers(0, classes, 300)
        found = residuals(scores.copy(), labels, replace(CLASSES, classes=classes, cap=cap))
        assert max(map(quotient_norm, found)) <= cap + 1e-13
        assert np.abs(found.sum(1)).max() <= 1e-14
        soft = np.exp(scores - scores.max(1, keepdims=True))
        soft /= soft.sum(1, keepdims=True)
        soft[np.arange(300), labels] -= 1
        free = np.array([quotient_norm(g) < cap - 1e-9 for g in soft])
        np.testing.assert_allclose(found[free], soft[free], atol=1e-14)


@pytest.mark.parametrize("objective", [replace(CLASSES, classes=5), CLASSES, TWO, TARGET])
def test_residuals_are_the_gradient_of_a_convex_function_with_the_stated_curvature(
    objective: Objective,
) -> None:
    rng, kinks = np.random.default_rng(3), 0
    for _ in range(300):
        u, v = (some_scores(rng, objective.rows) for _ in range(2))
        label = np.array([rng.integers(objective.classes)]) if objective.classes > 1 else rng.normal(size=1)

        def g(at: Reals, label: npt.NDArray[Any] = label) -> Reals:
            return np.asarray(residuals(at[None].copy(), label, objective)[0])

        assert ((g(u) - g(v)) * (u - v)).sum() >= -1e-12 * (1 + np.abs(u - v).sum())  # monotone
        # 1-Lipschitz from the largest change of a score to the L1 norm: the step of Lemma 4
        assert np.abs(g(u) - g(v)).sum() <= np.abs(u - v).max() + 1e-12
        step = 1e-5
        sides = step * np.eye(objective.rows)
        near = u + 1e-2 * rng.normal(size=objective.rows)  # tied scores lie on kinks, where no Hessian exists
        at_u, hessian = (
            np.stack([(g(at + side) - g(at - side)) / (2 * step) for side in sides]) for at in (u, near)
        )
        assert max(np.trace(at_u), np.trace(hessian)) <= float(objective.curvature) + 1e-6
        kinks += np.abs(hessian - hessian.T).max() > 1e-6
    assert kinks <= 3  # symmetric, so a gradient, but for the few points with a kink within a step


def test_the_curvature_is_attained() -> None:
    for objective in (CLASSES, TWO, replace(TWO, cap=0.6), TARGET):
        label = np.array([1]) if objective.loss == "classes" else np.array([0.1])
        best, step = 0.0, 1e-6
        for at in np.linspace(-2, 2, 401):
            u = np.zeros(objective.rows) if objective.rows > 1 else np.array([at])
            u[0] -= 1e-3 * (objective.rows > 1)  # just inside the cap
            u[-1] -= 1e-3 * (objective.rows > 1)
            trace = sum(
                (
                    residuals((u + side)[None], label, objective)[0]
                    - residuals((u - side)[None], label, objective)[0]
                )[m]
                / (2 * step)
                for m, side in enumerate(step * np.eye(objective.rows))
            )
            best = max(best, float(trace))
        assert best > 0.98 * float(objective.curvature)


def test_two_classes_have_the_capped_logistic_loss() -> None:
    scores = np.linspace(-8, 8, 65)[:, None]
    for cap in (0.4, 1.0, 2.0):
        for label in (0, 1):
            found = residuals(scores.copy(), np.full(65, label), replace(TWO, cap=cap))
            free = 1 / (1 + np.exp(-scores)) - label
            np.testing.assert_allclose(found, np.clip(free, -cap / 2, cap / 2), atol=1e-15)


def test_a_target_has_hubers_loss() -> None:
    scores, targets = np.linspace(-3, 3, 61)[:, None], np.full(61, 0.25)
    found = residuals(scores.copy(), targets, replace(TARGET, cap=0.7))
    np.testing.assert_array_equal(found, np.clip(scores - 0.25, -0.7, 0.7))


@pytest.mark.parametrize(("classes", "count"), [(3, 60), (4, 40), (10, 20), (60, 3)])
def test_a_residual_has_the_stated_error_at_fifty_digits(classes: int, count: int) -> None:
    rng = np.random.default_rng(classes)
    for i in range(count):
        scores, y = some_scores(rng, classes), int(rng.integers(classes))
        cap = (1.0, 1.0, 0.4, 1.6)[i % 4]
        objective = replace(CLASSES, classes=classes, cap=cap)
        if i % 3 == 0:  # y far behind a crowd
            scores[y] -= float(rng.choice([5, 700.0, 1e5]))
        found = residuals(scores[None].copy(), np.array([y]), objective)[0]
        exact = slow_residual([float(s) for s in scores], y, cap)
        error = float(mpmath.fsum(abs(e - mpmath.mpf(float(f))) for e, f in zip(exact, found, strict=True)))
        assert error <= residual_error(objective, float(np.abs(scores).max()))


def test_a_residual_of_two_classes_has_the_stated_error() -> None:
    for score in np.concatenate([np.linspace(-40, 40, 201), [-600.0, 600.0, 1e-300]]):
        exact = 1 / (1 + mpmath.exp(mpmath.mpf(float(score))))
        found = residuals(np.array([[score]]), np.array([1]), replace(TWO, cap=2.0))[0, 0]
        assert abs(float(exact) + found) <= 2.0**-50


# ---- Lemma 4


def problem(
    objective: Objective, n: int, width: int, seed: int
) -> tuple[npt.NDArray[np.int16], npt.NDArray[Any]]:
    """Bounded records with labels, of which some are long."""
    rng = np.random.default_rng(seed)
    rows = Bounded(objective, width).rows(rng.normal(size=(n, width)) * 0.5)
    labels = rng.integers(0, objective.classes, n) if objective.classes > 1 else rng.normal(size=n)
    return rows, labels.astype(np.int32) if objective.classes > 1 else labels


def slow_penalty(objective: Objective, weights: npt.NDArray[Any]) -> Any:
    """The gradient of ridge / 2 (|W|^2 + smoothness |D W|^2), term by term."""
    total = weights * objective.ridge
    for start, stop in objective.runs:
        for j in range(1 + start, stop):
            for row in range(len(weights)):
                step = objective.ridge * objective.smoothness * (weights[row, j + 1] - weights[row, j])
                total[row, j + 1] += step
                total[row, j] -= step
    return total


def exact_gradient(
    objective: Objective,
    rows: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    offsets: Reals,
) -> Any:
    """The gradient of the loss without ridge and noise, to many digits: an object array."""
    with mpmath.workdps(40):
        w = np.vectorize(lambda v: mpmath.mpf(float(v)), otypes=[object])(weights)
        total = w * 0
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
            z = np.array([mpmath.mpf(v) / FEATURE_UNIT for v in row], dtype=object)
            scores = w @ z + [mpmath.mpf(float(v)) for v in offsets]
            cap = mpmath.mpf(objective.cap)
            if objective.loss == "target":
                g = [max(-cap, min(cap, scores[0] - mpmath.mpf(label)))]
            elif objective.classes == 2:
                p = 1 / (1 + mpmath.exp(-scores[0])) - label
                g = [max(-cap / 2, min(cap / 2, p))]
            else:
                g = slow_residual(list(scores), int(label), objective.cap, 40)
            total = total + np.outer(np.array(g, dtype=object), z)
        return total


@pytest.mark.parametrize("objective", [replace(CLASSES, classes=4), TWO, TARGET])
def test_the_gradients_error_is_below_its_bound(objective: Objective) -> None:
    rng = np.random.default_rng(5)
    rows, labels = problem(objective, 60, 5, 6)
    for scale, batch in ((0.0, 60), (3.0, 7), (200.0, 1)):
        weights, offsets = rng.normal(size=(objective.rows, 6)) * scale, rng.normal(size=objective.rows)
        targets = (lambda given: given) if objective.loss == "target" else None
        total = records_of(rows, labels, batch).total(LossGradient(objective, weights, offsets, targets))
        assert total is not None
        n, blocks = total[1].integers()
        assert (n, blocks) == (60, -(-60 // batch))
        exact = exact_gradient(objective, rows, labels, weights, offsets)
        with mpmath.workdps(40):
            found = [mpmath.mpf(int(v)) / mpmath.mpf(SUM_UNIT) for v in total[0].integers().ravel()]
            apart = mpmath.sqrt(mpmath.fsum((a - b) ** 2 for a, b in zip(found, exact.ravel(), strict=True)))
        assert float(apart) <= gradient_error(objective, weights, offsets, 60, int(blocks))


def test_the_bound_counts_every_block_that_is_rounded() -> None:
    objective = replace(CLASSES, noise="radial")
    rows, labels = problem(objective, 64, 3, 1)
    weights = np.random.default_rng(0).normal(size=(3, 4))
    alone, together = (
        records_of(rows, labels, batch).total(LossGradient(objective, weights, np.zeros(3)))
        for batch in (1, 64)
    )
    assert alone is not None
    assert together is not None
    bounds = [
        gradient_error(objective, weights, np.zeros(3), 64, int(total[1].integers()[1]))
        for total in (alone, together)
    ]
    assert bounds[0] - bounds[1] == pytest.approx(63 * math.sqrt(12) / 2 / SUM_UNIT, rel=1e-3)
    apart = np.linalg.norm((alone[0].integers() - together[0].integers()).astype(float) / SUM_UNIT)
    assert apart <= sum(bounds)


# ---- Theorem 1


def log_integral(values: Reals, scale: float) -> float:
    """Logarithm of the integral over t of exp(-sum |v_m + t| / scale), piece by piece."""
    knots = np.sort(-values)
    heights = -np.abs(values[:, None] + knots[None]).sum(0) / scale
    classes, parts = len(values), [heights[0] + math.log(scale / len(values))]
    parts.append(heights[-1] + math.log(scale / classes))
    for left, right, low, high in zip(knots, knots[1:], heights, heights[1:], strict=False):
        if right > left:
            top, drop = max(low, high), abs(low - high)
            mean = 1 - drop / 2 if drop < 1e-9 else -math.expm1(-drop) / drop
            parts.append(top + math.log((right - left) * mean))
    return float(np.logaddexp.reduce(parts))


def log_density(
    objective: Objective, scale: float, rows: Reals, labels: npt.NDArray[Any], weights: Reals
) -> float:
    """Log density of the minimum at weights whose rows add up to zero, up to a constant."""
    scores = rows @ weights.T
    linear = -(residuals(scores.copy(), labels, objective).T @ rows + objective.ridge * weights)
    if objective.rows > 1:
        noise = sum(log_integral(linear[:, j], scale) for j in range(rows.shape[1]))
    elif objective.noise == "laplace":
        noise = -float(np.abs(linear).sum()) / scale
    elif objective.noise == "gaussian":
        noise = -float((linear**2).sum()) / (2 * scale**2)
    else:
        noise = -float(np.linalg.norm(linear)) / scale
    step = 1e-6
    hessian = objective.ridge * np.eye(weights.size)
    for row, score, label in zip(rows, scores, labels, strict=True):
        inner = np.stack(
            [
                (
                    residuals((score + side)[None], np.array([label]), objective)
                    - residuals((score - side)[None], np.array([label]), objective)
                )[0]
                / (2 * step)
                for side in step * np.eye(objective.rows)
            ]
        )
        hessian += np.kron((inner + inner.T) / 2, np.outer(row, row))
    return float(noise + np.linalg.slogdet(hessian)[1])


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize(
    ("objective", "contributions"),
    [
        (CLASSES, 1),
        (replace(CLASSES, classes=4), 1),
        (TWO, 1),
        (replace(TWO, noise="radial"), 1),
        (replace(TARGET, noise="radial"), 1),
        (CLASSES, 3),
        (TWO, 3),
    ],
)
def test_no_neighbours_have_a_density_ratio_above_epsilon_and_some_come_close(
    objective: Objective, contributions: int, neighbours: str
) -> None:
    rng = np.random.default_rng(7)
    objective = replace(objective, norm=1.0, length=1.0, constant=0.5)
    epsilon = Fraction(10)
    noise = calibrate(objective, epsilon, neighbours, contributions)
    bounded, best = Bounded(objective, 1), 0.0
    charged = float(sum(c.loss for c in noise.charges[:2]))
    assert charged <= 10
    for trial in range(400):
        n, changed = int(rng.integers(0, 9)), contributions
        z = rng.choice([0.5, -0.5, 0.6, -0.6, 0.9, 1.5], (n + 2 * changed, 1))
        if trial % 2:
            z[:] = rng.choice([0.5, 0.6, -0.5])  # records alike: what they move adds up
        rows = bounded.rows(z) / FEATURE_UNIT
        labels = (
            rng.integers(0, objective.classes, len(rows))
            if objective.classes > 1
            else rng.choice([-9.0, 9.0, 0.4], len(rows))
        )
        if trial % 4 == 1:
            labels[:] = labels[0]
            labels[-changed:] = rng.choice(labels if objective.classes == 1 else objective.classes)
        weights = rng.normal(size=(objective.rows, 2)) * rng.choice([1e-3, 0.1, 2.0])
        if objective.rows > 1:
            weights -= weights.mean(0)
        one = slice(0, n + changed)
        other = np.r_[0:n, n + changed : n + 2 * changed] if neighbours == "replace-one" else np.arange(n)
        ratio = log_density(objective, noise.scale, rows[one], labels[one], weights) - log_density(
            objective, noise.scale, rows[other], labels[other], weights
        )
        best = max(best, abs(ratio))
        assert abs(ratio) <= charged + 1e-4
    assert best > 0.9 * charged


# ---- charges


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("contributions", [1, 3])
@pytest.mark.parametrize("objective", [CLASSES, TWO, TARGET, replace(CLASSES, noise="radial", size=10**7)])
def test_charges_keep_to_epsilon_and_use_it(
    objective: Objective, contributions: int, neighbours: str
) -> None:
    for epsilon in (Fraction(1, 4), Fraction(1), Fraction(8)):
        strong = replace(objective, ridge=20.0 * contributions / float(epsilon))
        made = calibrate(strong, epsilon, neighbours, contributions)
        total = compose(made.charges)
        assert epsilon * Fraction(999, 1000) < Fraction(total.epsilon_proved) <= epsilon
        assert total.contributions == contributions
        assert all(Charge.from_dict(c.to_dict()) == c for c in made.charges)
        loss, ridge, error = made.charges
        times = contributions * (2 if neighbours == "replace-one" else 1)
        bound = Fraction(math.floor(strong.norm * FEATURE_UNIT), FEATURE_UNIT)
        assert loss.sensitivity == times * strong.gradient_bound * bound
        assert loss.scale == Fraction(made.scale)
        assert (
            ridge.sensitivity
            == contributions * strong.curvature * Fraction(strong.length_bound, FEATURE_UNIT) ** 2
        )
        assert error.sensitivity == 2 * Fraction(strong.tolerance) / Fraction(strong.ridge)
        assert error.scale == Fraction(made.rounding, FINE_UNIT)


def test_a_charge_whose_epsilon_was_lowered_is_refused() -> None:
    for charge in calibrate(CLASSES, Fraction(10), "replace-one").charges:
        raw = charge.to_dict() | {"epsilon_proved": "0.000001"}
        with pytest.raises(UserError, match="its numbers give"):
            Charge.from_dict(raw)


def test_a_ridge_that_would_cost_more_than_half_of_epsilon_is_refused() -> None:
    with pytest.raises(UserError, match="give a larger ridge"):
        calibrate(replace(CLASSES, ridge=1.0), Fraction(1), "replace-one")


def test_gaussian_noise_cannot_be_charged_as_pure() -> None:
    with pytest.raises(UserError, match="needs delta"):
        calibrate(replace(TWO, noise="gaussian"), Fraction(10), "replace-one")
    with pytest.raises(UserError, match="two classes or a numeric target"):
        calibrate(
            replace(CLASSES, noise="gaussian"), Fraction(10), "replace-one", mu=Fraction(1), delta=DELTA
        )


# ---- Theorem 4


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("contributions", [1, 2])
@pytest.mark.parametrize("objective", [TWO, TARGET])
def test_the_privacy_loss_of_gaussian_noise_is_at_most_that_of_a_corner(
    objective: Objective, contributions: int, neighbours: str
) -> None:
    rng, closest = np.random.default_rng(2), math.inf
    objective = replace(objective, noise="gaussian", norm=1.0, length=1.0, constant=0.5)
    noise = calibrate(objective, Fraction(10), neighbours, contributions, mu=Fraction(2), delta=DELTA)
    longest, kappa = (float(charge.sensitivity) for charge in noise.charges[:2])
    kappa /= objective.ridge
    steepest, ends = float(objective.gradient_bound), (0, 1) if objective.classes == 2 else (-1, 1)
    bounded = Bounded(objective, 1)
    for trial in range(150):
        n = int(rng.integers(0, 6))
        z = rng.choice([0.5, -0.5, 0.6, 0.9, 1.5], (n + 2 * contributions, 1))
        if trial % 2:
            z[:] = 0.6
        rows = bounded.rows(z) / FEATURE_UNIT
        labels = (
            rng.integers(0, 2, len(rows)) if objective.classes == 2 else rng.choice([-9.0, 9.0], len(rows))
        )
        weights = rng.normal(size=(1, 2)) * rng.choice([0.1, 3.0])
        one = slice(0, n + contributions)
        mine = np.arange(n, n + contributions)
        others = (
            np.arange(n + contributions, n + 2 * contributions) if neighbours == "replace-one" else mine[:0]
        )
        other = np.r_[0:n, others]
        ratio = log_density(objective, noise.scale, rows[one], labels[one], weights) - log_density(
            objective, noise.scale, rows[other], labels[other], weights
        )
        # how each record that differs can move the linear term, away from that of the first data set
        sign = np.where(labels == 1, -1.0, 1.0) if objective.classes == 2 else np.ones(len(rows))
        moves = [steepest * sign[i] * rows[i] for i in mine] + [-steepest * sign[i] * rows[i] for i in others]
        linear = -(residuals(rows[one] @ weights.T, labels[one], objective).T @ rows[one])[0]
        linear = linear - objective.ridge * weights[0]
        corners = [np.array(c) @ np.array(moves) for c in itertools.product(ends, repeat=len(moves))]
        assert max(np.linalg.norm(c) for c in corners) <= longest + 1e-9
        most = max(float(2 * linear @ c + c @ c) / (2 * noise.scale**2) for c in corners)
        assert ratio <= most + kappa + 1e-4
        closest = min(closest, most + kappa - ratio)
    assert closest < 0.3


DELTA = Fraction(1, 10**5)


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("contributions", [1, 3])
@pytest.mark.parametrize("objective", [TWO, TARGET])
def test_all_stages_with_delta_keep_to_the_budget_and_use_it(
    objective: Objective, contributions: int, neighbours: str
) -> None:
    for form, epsilon in (("centred", "1"), ("indicators", "1/4"), ("centred", "8")):
        ridge = 20.0 * contributions / float(Fraction(epsilon))
        noisy = replace(objective, noise="gaussian", ridge=ridge)
        table = TableDomain((Column("age", "numeric", 0, 1), Column("y", "label", classes=("no", "yes"))))
        table = replace(table, neighbours=neighbours)
        shares = (Fraction(1, 20), Fraction(1, 50))
        centre = centre_stages(shares, table, size=100, fourier=0, length=1.0, gaussian=True)
        stages = (
            *(centre if form == "centred" else ()),
            perturbed.objective_stage(Fraction(4, 5), noisy, 4, neighbours),
            perturbed.check_stage(Fraction(1, 50), "gaussian", target=noisy.loss == "target"),
        )
        budget = Budget.of(epsilon, "1e-5")
        made = calibrate_stages(stages, Terms(budget, neighbours, contributions))
        total = compose(made.charges)
        assert budget.epsilon * Fraction(85, 100) < Fraction(total.epsilon_proved) <= budget.epsilon
        assert total.delta == budget.delta
        kinds = [charge.mechanism for charge in made.charges if charge.delta]
        assert kinds.count("gaussian") == len(made.charges) - 3
        assert {charge.contributions for charge in made.charges} == {contributions}
        with pytest.raises(UserError, match="needs delta"):
            calibrate_stages(stages, Terms(Budget.of(epsilon), neighbours, contributions))


# ---- Theorem 2


@pytest.mark.parametrize(
    "objective",
    [
        replace(CLASSES, classes=4),
        replace(CLASSES, noise="radial"),
        TWO,
        TARGET,
        replace(CLASSES, cap=0.3, ridge=8.0),
        replace(TWO, smoothness=0.7, runs=((0, 3),)),
        replace(CLASSES, classes=4, smoothness=2.0, runs=((0, 2), (2, 4))),
    ],
)
def test_the_minimum_is_within_its_certified_distance_of_the_true_one(objective: Objective) -> None:
    width, n = 4, 50
    rows, labels = problem(objective, n, width, 9)
    noise = calibrate(objective, Fraction(4), "replace-one")
    offsets = np.array([-0.5, -1.5, -1.0, -2.0])[: objective.classes]
    offsets = np.zeros(1) if objective.loss == "target" else offsets
    targets = (lambda given: given) if objective.loss == "target" else None
    tap = Tap.seeded_with(3)
    perturbed_minimum(records_of(rows, labels, 16), objective, noise, offsets, tap, width, targets)
    (fine, scale) = tap.values[0]
    assert scale == noise.rounding
    point = fine / FINE_UNIT
    shift = offsets[1:] - offsets[:1] if objective.classes == 2 else offsets
    (_, drawn), shape = tap.drawn[0], (objective.rows, 1 + width)
    with mpmath.workdps(40):
        step = mpmath.mpf(noise.scale) / NOISE_STEPS
        linear = np.array([int(v) * step for v in drawn.ravel()], dtype=object).reshape(shape)
        if objective.rows > 1:
            linear = linear - linear.sum(0) / objective.rows
        exact = exact_gradient(objective, rows, labels, point, shift)
        high = np.vectorize(mpmath.mpf, otypes=[object])(point)
        slope = exact + linear + slow_penalty(objective, high)
        size = float(mpmath.sqrt(mpmath.fsum(v * v for v in slope.ravel())))
    assert size <= 1.001 * objective.tolerance  # the released point is rounded to 2^-40
    known = linear.astype(float)

    def simple(flat: Reals) -> Reals:
        weights = flat.reshape(shape)
        real = rows / FEATURE_UNIT
        given = labels if targets is None else targets(labels)
        loss = residuals(real @ weights.T + shift, given, objective).T @ real
        return np.asarray((loss + slow_penalty(objective, weights) + known).ravel())

    twin = scipy.optimize.root(simple, np.zeros(fine.size), tol=1e-13)
    certified = 2 * Fraction(objective.tolerance) / Fraction(objective.ridge)
    apart = float(np.linalg.norm(twin.x - point.ravel()))
    assert apart <= float(certified) / 2 + np.linalg.norm(simple(twin.x)) / objective.ridge
    if objective.rows > 1:
        assert np.abs(point.sum(0)).max() <= objective.rows / FINE_UNIT


def test_noise_of_the_objective_is_the_rounding_of_a_real_draw() -> None:
    laws: tuple[tuple[Mechanism, tuple[int, int]], ...] = (("laplace", (15, 1)), ("radial", (3, 5)))
    for noise, shape in laws:
        objective = replace(CLASSES, noise=noise)
        rows, labels = problem(objective, 20, 4, 2)
        made, tap = calibrate(objective, Fraction(4), "add-remove"), Tap.seeded_with(1)
        perturbed_minimum(records_of(rows, labels), objective, made, np.zeros(3), tap, 4)
        assert [(name, drawn.shape) for name, drawn in tap.drawn] == [("radial", shape)]
    many = Source.seeded_with(2).radial(20_000, 1, NOISE_STEPS).ravel()
    # a rounded continuous draw: the law of |x| exp(-|x|), and all of the low bits in use. The seed is fixed.
    assert scipy.stats.kstest(many / NOISE_STEPS, "laplace").pvalue > 1e-4
    assert scipy.stats.kstest((many % (1 << 20)) / (1 << 20), "uniform").pvalue > 1e-4


def test_weights_beyond_the_largest_are_cut_off_before_their_noise() -> None:
    objective = replace(TARGET, ridge=1e-3, cap=1e-4, size=10)
    made = perturbed.ObjectiveNoise(20.0, 1, ())
    tap = Tap.seeded_with(4)
    rows, labels = problem(objective, 4, 2, 3)
    perturbed_minimum(records_of(rows, labels), objective, made, np.zeros(1), tap, 2, lambda given: given)
    limit = LARGEST_WEIGHT * FINE_UNIT
    assert np.abs(tap.values[0][0]).max() == limit


def test_a_solver_that_does_not_converge_releases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = problem(CLASSES, 50, 4, 1)
    noise, tap = calibrate(CLASSES, Fraction(4), "replace-one"), Tap.seeded_with(5)
    monkeypatch.setattr(perturbed, "MOST_STEPS", 2)
    with pytest.raises(UserError, match="nothing was released"):
        perturbed_minimum(records_of(rows, labels), CLASSES, noise, np.zeros(3), tap, 4)
    assert len(tap.drawn) == 1  # the linear term; the minimum never met its noise
    assert not tap.values


def test_a_gradient_known_too_coarsely_is_never_certified() -> None:
    """Far more records than the public size: their rounding errors alone exceed the tolerance."""
    asked = []

    def gradient(weights: Reals) -> Reals:
        asked.append(1)
        return np.asarray(CLASSES.ridge * weights)

    with pytest.raises(UserError, match="a public size closer"):
        minimise(gradient, lambda _: 1e-3, CLASSES, None, (3, 2))
    assert len(asked) < 5

    def rough(weights: Reals) -> Reals:
        return np.asarray(CLASSES.ridge * weights + 1e-3 * np.sign(weights + 1e-30))

    with pytest.raises(UserError, match="nothing was released"):
        minimise(rough, lambda _: 0.0, CLASSES, None, (3, 2))


def test_the_tolerance_is_a_function_of_public_numbers() -> None:
    rows, labels = problem(CLASSES, 30, 2, 1)
    assert replace(CLASSES, size=10**8).tolerance == pytest.approx(3e-3)
    few, many = (
        calibrate(CLASSES, Fraction(4), "add-remove"),
        calibrate(replace(CLASSES, size=10**8), Fraction(4), "add-remove"),
    )
    assert many.rounding > few.rounding
    scales = set()
    for part in (rows[:10], rows):  # other records, the same noise
        tap = Tap.seeded_with(1)
        perturbed_minimum(records_of(part, labels[: len(part)]), CLASSES, few, np.zeros(3), tap, 2)
        scales.add(tap.values[0][1])
    assert scales == {few.rounding}


# ---- Lemma 3


def test_a_record_counts_once_or_not_at_all() -> None:
    rng = np.random.default_rng(3)
    rows, labels = problem(CLASSES, 40, 3, 2)
    weights = rng.integers(-(1 << 31), 1 << 31, (3, 4))
    total = [Correct(weights)((rows[i : i + 1], labels[i : i + 1]))[0][0] for i in range(40)]
    assert set(total) <= {0, 1}
    assert Correct(weights)((rows, labels))[0][0] == sum(total)
    exact = [
        max(range(3), key=lambda m: (sum(int(a) * int(b) for a, b in zip(row, weights[m], strict=True)), -m))
        for row in rows.tolist()
    ]
    assert sum(total) == sum(a == b for a, b in zip(exact, labels.tolist(), strict=True))
