"""MST and AIM on the inference of mbi, in its own environment; so this script imports nothing of adlm.

`PYTHON mbi_synthesis.py METHOD FOLDER EPSILON DELTA ROWS SEED` reads `codes.npy`, (n, columns) integers, and
`sizes.npy`, the number of values of each column, the last one being the label; it writes `drawn.npy`, (ROWS,
columns). Both are written from their papers (add-remove, zCDP): MST, McKenna, Miklau and Sheldon 2021; AIM,
McKenna, Mullins, Sheldon and Miklau 2022. The paper's settings stand below, with what is capped here.
"""

import itertools
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import jax

jax.config.update("jax_enable_x64", True)

import networkx as nx  # noqa: E402
import numpy as np  # noqa: E402
import opt_einsum  # noqa: E402
from mbi import Dataset, Domain, LinearMeasurement, WeightedQuery, estimation, junction_tree  # noqa: E402

ITERATIONS = 1000  # of mirror descent for the last model; the inference of mbi
ROUND_ITERATIONS = 100  # between rounds of AIM, at most, from the model before
MODEL_MB = 2.0  # AIM: largest junction tree; the authors' default is 80
ROUNDS = 16  # AIM: for each column, at most, as in the paper
CANDIDATES = 80  # capped here: a random subset, without records, of what a round chooses from
ANNEAL = 0.1  # AIM: share of the budget that selects


def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest rho whose zCDP implies (epsilon, delta)-DP (Canonne, Kamath and Steinke 2020)."""
    orders = 1 + np.logspace(-3, 4, 4000)
    low, high = 0.0, epsilon + 1
    for _ in range(80):
        rho = (low + high) / 2
        log = (orders - 1) * (orders * rho - epsilon) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
        low, high = (rho, high) if log.min() <= math.log(delta) else (low, rho)
    return low


def chosen(scores: dict[Any, float], epsilon: float, sensitivity: float, rng: np.random.Generator) -> Any:
    """Draw a candidate by the exponential mechanism."""
    keys, values = list(scores), np.array(list(scores.values()))
    return keys[int(np.argmax(values * epsilon / (2 * sensitivity) + rng.gumbel(size=len(values))))]


class Measurer:
    """Exact and noisy marginals of the records."""

    def __init__(self, codes: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> None:
        self.names = tuple(f"c{at}" for at in range(len(sizes)))
        self.domain = Domain(self.names, tuple(int(size) for size in sizes))
        self.data = Dataset(dict(zip(self.names, codes.T, strict=True)), self.domain)
        self.rng = rng
        self.found: dict[tuple[str, ...], np.ndarray] = {}

    def exact(self, clique: tuple[str, ...]) -> np.ndarray:
        if clique not in self.found:
            self.found[clique] = np.asarray(self.data.project(clique).datavector(), dtype=np.float64)
        return self.found[clique]

    def noisy(self, clique: tuple[str, ...], sd: float) -> LinearMeasurement:
        exact = self.exact(clique)
        return LinearMeasurement(exact + self.rng.normal(0, sd, exact.shape), clique, sd)

    def estimate(
        self,
        measured: list[LinearMeasurement],
        iterations: int,
        before: Any = None,
        total: float | None = None,
    ) -> Any:
        return estimation.MirrorDescent().estimate(
            self.domain, measured, known_total=total, iters=iterations, warm_start=before
        )


def vector(model: Any, clique: tuple[str, ...]) -> np.ndarray:
    """Return the model's marginal, in records.

    mbi compiles a program for each clique that the model has no table of; this contracts the same factors.
    """
    if model.marginals.supports(clique):
        return np.asarray(model.project(clique).datavector(), dtype=np.float64)
    parts: list[Any] = []
    for factor in model.potentials.cliques:
        values = np.asarray(model.potentials[factor].values, dtype=np.float64)
        parts += [np.exp(values - values.max()), list(model.potentials[factor].domain.attributes)]
    found = opt_einsum.contract(*parts, list(clique))
    return np.asarray(found / found.sum() * float(model.total)).ravel()


class Rounds:
    """Mirror descent on a junction tree, as in mbi, without a compiler: AIM changes the tree every round.

    `potentials` are logarithms by measured clique, kept from round to round.
    """

    def __init__(self, domain: Domain, total: float) -> None:
        self.domain, self.total = domain, total
        self.potentials: dict[tuple[str, ...], np.ndarray] = {}

    def shaped(self, values: np.ndarray, part: tuple[str, ...], whole: tuple[str, ...]) -> np.ndarray:
        """Lay a table of some names over one of more names, which are in the order of the domain."""
        return np.reshape(values, [self.domain[name] if name in part else 1 for name in whole])

    def summed(self, values: np.ndarray, whole: tuple[str, ...], part: tuple[str, ...]) -> np.ndarray:
        """Sum a table to some of its names."""
        return np.asarray(values.sum(tuple(at for at, name in enumerate(whole) if name not in part)))

    def marginals(
        self, homes: dict[Any, Any], order: list[Any], potentials: dict[Any, np.ndarray]
    ) -> dict[Any, np.ndarray]:
        """Belief propagation: the tables of all maximal cliques, in records."""
        logs: dict[Any, Any] = dict.fromkeys(homes.values(), 0.0)
        for clique, home in homes.items():
            logs[home] = logs[home] + self.shaped(potentials[clique], clique, home)
        beliefs = {c: np.exp(values - values.max()) for c, values in logs.items()}
        for home, values in beliefs.items():
            shape = tuple(self.domain[name] for name in home)
            beliefs[home] = np.broadcast_to(values, shape) / (values.sum() * np.prod(shape) / values.size)
        sent: dict[Any, np.ndarray] = {}
        for start, end in order:
            shared = tuple(name for name in start if name in end)
            message = self.summed(beliefs[start], start, shared)
            before = sent.get((end, start))
            if before is not None:
                message = message / np.maximum(before, 1e-300)
            sent[start, end] = message = message / message.sum()
            found = beliefs[end] * self.shaped(message, shared, end)
            beliefs[end] = found / found.sum()
        return {clique: values * self.total for clique, values in beliefs.items()}

    def fit(self, measured: list[LinearMeasurement], steps: int) -> None:
        """Fit the measurements from where the last round ended."""
        tree, _ = junction_tree.make_junction_tree(self.domain, [m.clique for m in measured])
        maximal, order = list(tree.nodes), junction_tree.message_passing_order(tree)
        homes = {m.clique: next(c for c in maximal if set(m.clique) <= set(c)) for m in measured}
        shapes = {clique: tuple(self.domain[name] for name in clique) for clique in [*homes, *maximal]}
        homes |= {c: c for c in maximal if c not in homes.values()}
        potentials = {c: self.potentials.get(c, np.zeros(shapes[c])) for c in homes}
        targets = [np.asarray(m.noisy_measurement).reshape(shapes[m.clique]) for m in measured]

        def loss(tables: dict[Any, np.ndarray]) -> tuple[float, dict[Any, np.ndarray], dict[Any, np.ndarray]]:
            value = 0.0
            slopes: dict[Any, Any] = {}
            sums: dict[Any, np.ndarray] = {}
            for m, target in zip(measured, targets, strict=True):
                if m.clique not in sums:
                    sums[m.clique] = self.summed(tables[homes[m.clique]], homes[m.clique], m.clique)
                gap = (sums[m.clique] - target) / m.stddev
                value += float((gap * gap).sum()) / 2
                slopes[m.clique] = slopes.get(m.clique, 0.0) + gap / m.stddev
            return value, slopes, sums

        tables = self.marginals(homes, order, potentials)
        value, slopes, sums = loss(tables)
        step = 2.0 * min(m.stddev for m in measured) ** 2 / (self.total * len(measured))
        for _ in range(steps):
            trial = {c: v - step * slopes[c] if c in slopes else v for c, v in potentials.items()}
            found = self.marginals(homes, order, trial)
            after, steeper, found_sums = loss(found)
            along = sum(float((slopes[c] * (sums[c] - found_sums[c])).sum()) for c in slopes)
            if value - after >= 0.5 * along:
                small = value - after <= 1e-5 * max(value, 1.0)
                potentials, tables, step = trial, found, 1.5 * step
                value, slopes, sums = after, steeper, found_sums
                if small:
                    break
            else:
                step *= 0.5
        self.potentials, self.tables = potentials, tables

    def vector(self, clique: tuple[str, ...]) -> np.ndarray:
        """Return a marginal, in records."""
        for home, table in self.tables.items():
            if set(clique) <= set(home):
                return self.summed(table, home, clique).ravel()
        parts: list[Any] = []
        for names, values in self.potentials.items():
            parts += [np.exp(values - values.max()), list(names)]
        found = opt_einsum.contract(*parts, list(clique))
        return np.asarray(found / found.sum() * self.total).ravel()


def compressed(
    codes: np.ndarray, sizes: np.ndarray, sd: float, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Measure the columns; values below three standard deviations become one value (MST, section 4.2).

    Returns
    -------
    For each column its noisy counts, and the new code of each value.
    """
    counts, codes_of = [], []
    for column, size in zip(codes.T, sizes, strict=True):
        noisy = np.bincount(column, minlength=size) + rng.normal(0, sd, size)
        kept = noisy >= 3 * sd
        new = np.where(kept, np.cumsum(kept) - 1, kept.sum())
        counts.append(noisy)
        codes_of.append(new.astype(np.int64))
    return counts, codes_of


def mst(codes: np.ndarray, sizes: np.ndarray, rho: float, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Columns, a maximum spanning tree of pairs, and the pairs of that tree; a third of rho each."""
    columns = len(sizes)
    sd = math.sqrt(columns / (2 * rho / 3))
    counts, codes_of = compressed(codes, sizes, sd, rng)
    new_sizes = np.array([int(new.max()) + 1 for new in codes_of])
    measurer = Measurer(
        np.stack([new[c] for new, c in zip(codes_of, codes.T, strict=True)], 1), new_sizes, rng
    )
    first = []
    for name, noisy, new, size in zip(measurer.names, counts, codes_of, new_sizes, strict=True):
        # a value that stands for several has more noise, and less weight
        weights = 1 / np.sqrt(np.bincount(new, minlength=size))
        pooled = np.bincount(new, noisy, size) * weights
        first.append(LinearMeasurement(pooled, (name,), sd, WeightedQuery(weights)))
    inverse = 1 / sizes
    total = max(1.0, float(sum(c.sum() * w for c, w in zip(counts, inverse, strict=True)) / inverse.sum()))
    model = measurer.estimate(first, ITERATIONS, total=total)
    pairs = list(itertools.combinations(measurer.names, 2))
    scores = {pair: float(np.abs(measurer.exact(pair) - vector(model, pair)).sum()) for pair in pairs}
    epsilon = math.sqrt(8 * rho / 3 / (columns - 1))
    tree = nx.utils.UnionFind(measurer.names)
    edges: list[tuple[str, str]] = []
    for _ in range(columns - 1):
        free = {pair: score for pair, score in scores.items() if tree[pair[0]] != tree[pair[1]]}
        edges.append(chosen(free, epsilon, 1.0, rng))
        tree.union(*edges[-1])
    sd = math.sqrt((columns - 1) / (2 * rho / 3))
    model = measurer.estimate(first + [measurer.noisy(edge, sd) for edge in edges], ITERATIONS, total=total)
    drawn = model.synthetic_data(rows).to_dict()
    out = []
    for name, noisy, new in zip(measurer.names, counts, codes_of, strict=True):
        weights = np.maximum(noisy, 1e-9)
        column = np.empty(rows, dtype=np.int64)
        for code in np.unique(drawn[name]):
            members = np.flatnonzero(new == code)
            share = weights[members] / weights[members].sum()
            at = np.flatnonzero(drawn[name] == code)
            column[at] = rng.choice(members, len(at), p=share)
        out.append(column)
    return np.stack(out, 1)


def aim(codes: np.ndarray, sizes: np.ndarray, rho: float, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Adaptive rounds; the workload is every pair of columns with the label (the paper's TARGET)."""
    measurer = Measurer(codes, sizes, rng)
    names, label = measurer.names, measurer.names[-1]
    workload: list[tuple[str, ...]]
    workload = [(*pair, label) for pair in itertools.combinations(names[:-1], 2)] or [names]
    candidates: dict[tuple[str, ...], float] = {}
    for clique in workload:
        for size in range(1, len(clique) + 1):
            candidates.update(dict.fromkeys(itertools.combinations(clique, size), 0.0))
    for part in candidates:
        candidates[part] = float(sum(len(set(part) & set(clique)) for clique in workload))
    rounds = len(names) * ROUNDS
    sd = math.sqrt(rounds / (2 * (1 - ANNEAL) * rho))
    epsilon = math.sqrt(8 * ANNEAL * rho / rounds)
    measured = [measurer.noisy((name,), sd) for name in names]
    spent = len(names) / (2 * sd * sd)
    model = Rounds(measurer.domain, estimation.minimum_variance_unbiased_total(measured))
    model.fit(measured, ROUND_ITERATIONS)
    for at in itertools.count():
        cost = 1 / (2 * sd * sd) + epsilon * epsilon / 8
        last = rho - spent < 2 * cost
        if last:
            epsilon = math.sqrt(8 * ANNEAL * (rho - spent))
            sd = math.sqrt(1 / (2 * (1 - ANNEAL) * (rho - spent)))
        spent += 1 / (2 * sd * sd) + epsilon * epsilon / 8
        cliques = [tuple(m.clique) for m in measured]
        limit = MODEL_MB * min(1.0, spent / rho)
        allowed = []
        for where in rng.permutation(len(candidates)):
            clique = list(candidates)[where]
            if junction_tree.hypothetical_model_size(measurer.domain, [*cliques, clique]) <= limit:
                allowed.append(clique)
            if len(allowed) == CANDIDATES:
                break
        allowed = allowed or [(name,) for name in names]
        guess = {clique: model.vector(clique) for clique in allowed}
        bias = math.sqrt(2 / math.pi) * sd
        scores = {
            clique: candidates[clique]
            * (float(np.abs(measurer.exact(clique) - guess[clique]).sum()) - bias * len(guess[clique]))
            for clique in allowed
        }
        pick = chosen(scores, epsilon, max(candidates[clique] for clique in allowed), rng)
        measured.append(measurer.noisy(pick, sd))
        if not last:
            model.fit(measured, ROUND_ITERATIONS)
        print(f"round {at}: {pick}, {spent / rho:.3f} of the budget", file=sys.stderr, flush=True)
        if last:
            break
        if np.abs(model.vector(pick) - guess[pick]).sum() <= bias * len(guess[pick]):
            sd, epsilon = sd / 2, epsilon * 2
    drawn = measurer.estimate(measured, ITERATIONS).synthetic_data(rows).to_dict()
    return np.stack([np.asarray(drawn[name], dtype=np.int64) for name in names], 1)


def main() -> None:
    method, folder = sys.argv[1], Path(sys.argv[2])
    rho = rho_of(float(sys.argv[3]), float(sys.argv[4]))
    rows, seed = int(sys.argv[5]), int(sys.argv[6])
    codes, sizes = np.load(folder / "codes.npy"), np.load(folder / "sizes.npy")
    rng = np.random.default_rng(seed)
    np.random.seed(seed)  # what mbi draws rows by
    drawn = {"MST": mst, "AIM": aim}[method](codes, sizes, rho, rows, rng)
    np.save(folder / "drawn.npy", drawn)
    print(time.process_time())


if __name__ == "__main__":
    main()
