"""Which public features are better: the ones that ship, or a network meta-trained on the same random classes?

Both are measured on the last training images, which count as public for this, with the rest as private
records; so the choice between them, which is a choice of features, looks at no test split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.moments import release as release_moments
from adlm.curator.noise import Source
from adlm.errors import UserError
from adlm.estimation import discriminant
from adlm.experiments import benchmark_data
from adlm.privacy.budget import Budget
from adlm.public import datasets
from adlm.public.features import Backbone, Features, Narrowed, narrowed
from adlm.public.planning.moments import plan_moments
from adlm.public.priors.deep import PROCESSES, meta_train
from adlm.public.priors.fisher import prior_statistics
from adlm.runtime.artefact import canonical, write_file
from adlm.workflows.privatise import moment_config

FAMILIES = {
    "drawn": ("mnist", 10_000),
    "garments": ("fashion-mnist", 10_000),
    "photographs": ("cifar10", 5_000),
}
BUDGETS = (("0.1", "0"), ("1", "0"), ("0.1", "1e-5"), ("1", "1e-5"))
STEPS, RELEASES, ROWS = 1500, 3, 8192


@dataclass(frozen=True)
class Row:
    """Mean accuracy of some releases on held-out images, with one kind of features at one budget."""

    family: str
    features: str
    epsilon: str
    delta: str
    accuracy: float
    sd: float
    releases: int
    k: int


def deep_features(family: str, shape: tuple[int, ...], steps: int, seed: int = 0) -> Backbone:
    """Meta-train a network, and describe fresh classes of the same process in its coordinates."""
    network, _ = meta_train(family, steps=steps, seed=seed)
    fresh, _ = PROCESSES[family](200, 16, torch.Generator().manual_seed(seed + 1))
    with torch.inference_mode():
        centre = torch.cat([network(part) for part in fresh.split(512)]).mean(0)  # type: ignore[no-untyped-call]
        deep = Backbone(network, shape, centre.clone(), provenance="public")
        z = torch.cat([deep(part) for part in fresh.split(512)])  # type: ignore[no-untyped-call]
    deep.prior = prior_statistics(z.clone(), 16)
    return deep


def held_out_accuracy(
    z: Tensor,
    codes: npt.NDArray[np.int64],
    features: Features,
    data: str,
    held: int,
    budget: tuple[str, str],
    seed: int,
) -> tuple[float, int]:
    """Release all but the last `held` records by the rule, fit, and measure on those; accuracy and k."""
    epsilon, delta = budget
    kept = len(z) - held
    domain = benchmark_data.domain(data, "replace-one")
    plan = plan_moments(kept, len(domain.classes), float(epsilon), float(delta), domain.neighbours, features)
    public = narrowed(features, plan.k)
    vectors = (public.of(z) if isinstance(public, Narrowed) else z).numpy()

    def batches() -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        return [
            (vectors[i : min(i + ROWS, kept)], codes[i : min(i + ROWS, kept)]) for i in range(0, kept, ROWS)
        ]

    release = release_moments(
        batches,
        domain=domain,
        features=public,
        ledger=Ledger(),
        source=Source.seeded_with(seed),
        config=moment_config(plan, Budget.of(epsilon, delta)),
    )
    head = discriminant.fit(release.moments(), public.prior)
    found = head.logits(torch.from_numpy(vectors[kept:])).argmax(1).numpy()
    return float((found == codes[kept:]).mean()), plan.k


def compare(families: Sequence[str], out: Path, *, steps: int = STEPS, releases: int = RELEASES) -> list[Row]:
    """Measure both kinds of features for every family; write OUT/deep-prior.json and a table."""
    for family in families:
        if family not in FAMILIES:
            raise UserError(f"a family must be one of {', '.join(FAMILIES)}, got {family!r}")
    if steps < 1 or releases < 1:
        raise UserError(f"there must be at least one step and one release, got {steps} and {releases}")
    rows = []
    for family in families:
        data, held = FAMILIES[family]
        split = benchmark_data.split(data, "train")
        shipped = benchmark_data.features(data)
        deep = deep_features(family, datasets.domain(data).shape, steps)
        images = benchmark_data.scaled(data, "train")
        with torch.inference_mode():
            embedded = torch.cat([deep(part) for part in images.split(2048)]).clone()  # type: ignore[no-untyped-call]
        taken = {
            "shipped": (shipped, torch.from_numpy(np.array(benchmark_data.vectors(data, "train")))),
            "convolutional network": (deep, embedded),
        }
        for name, (features, z) in taken.items():
            for budget in BUDGETS:
                found = [
                    held_out_accuracy(z, split.y, features, data, held, budget, seed)
                    for seed in range(releases)
                ]
                shares = [share for share, _ in found]
                rows.append(
                    Row(
                        family,
                        name,
                        *budget,
                        float(np.mean(shares)),
                        float(np.std(shares)),
                        releases,
                        found[0][1],
                    )
                )
    facts = {"command": f"adlm experiment deep-prior --families {','.join(families)} --steps {steps}",
             "rows": [asdict(row) for row in rows]}  # fmt: skip
    write_file(out / "deep-prior.json", canonical(facts), what="comparison")
    write_file(out / "deep-prior.md", table(rows, str(facts["command"])).encode(), what="table")
    return rows


def table(rows: Sequence[Row], command: str) -> str:
    """Return accuracies in per cent as a Markdown table."""
    budgets = list(dict.fromkeys((row.epsilon, row.delta) for row in rows))
    heads = [f"eps {e}, {'pure' if d == '0' else f'delta {d}'}" for e, d in budgets]
    lines = [f"| family | features | {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * len(budgets)]
    for family, name in dict.fromkeys((row.family, row.features) for row in rows):
        own = {(r.epsilon, r.delta): r for r in rows if (r.family, r.features) == (family, name)}
        cells = [f"{100 * own[b].accuracy:.1f} ± {100 * own[b].sd:.1f}" for b in budgets]
        lines.append(f"| {family} | {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Made by `{command}`: held-out training images, replace-one.", ""])
