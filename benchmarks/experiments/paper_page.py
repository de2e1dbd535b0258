"""Notes below the tables of the paper's experiments: the scale of its noise, and attacks on it."""

from __future__ import annotations

import math

from adlm.data import datasets
from adlm.paper.release import Budgets
from benchmarks.experiments.paper_readings import CIFAR_SPLIT, SPLIT, attack, delta_h0_readings, sizes_of
from benchmarks.experiments.readings import READINGS
from benchmarks.experiments.tabulate import epsilon, grid

NETWORKS = {"mnist": ("authors-mnist", 1800, SPLIT), "cifar10": ("authors-cifar10", 7200, CIFAR_SPLIT)}
CLAIMED = ("0.25", "0.5", "2", "8")
READING_NAMES = {
    "counted": "counted: 2 x neurons x d, Lemma 3 as it stands",
    "neurons x patch": "2 x neurons x patch",
    "maps x d": "2 x feature maps x d",
    "per-patch": "per-patch: 2 x places after pooling x patch, the authors' code",
    "one neuron": "one neuron: 2 x d",
    "one patch": "one patch: 2 x patch",
}


def extras(data: str) -> str:
    """The scale of the noise by each reading of Delta_h0, and an attack on each reading of the noise."""
    return f"{noise(data)}\n\n{attacks()}\n"


def noise(data: str) -> str:
    """The noise on a pixel in [0, 1], and the proved epsilon where each record has its own noise."""
    name, batch, split = NETWORKS[data]
    domain = datasets.domain(data)
    sizes = sizes_of(name, domain.shape, len(domain.classes))
    body = []
    for reading, delta_h0 in delta_h0_readings(sizes).items():
        scales = [delta_h0 / batch / float(Budgets.split(e, split).epsilon2) for e in CLAIMED]
        proved = batch * sizes.features / delta_h0
        body.append(
            [
                READING_NAMES[reading],
                f"{delta_h0:,}",
                *(f"{scale:,.3g}" for scale in scales),
                f"{proved:,.3g}",
            ]
        )
    headings = ["Delta_h0 read as", "value", *(f"claimed {e}" for e in CLAIMED), "proved eps_x / eps2"]
    text = (
        f"Scale of the noise on a pixel in [0, 1], |L| = {batch:,}, {split[1]} of the claimed epsilon for "
        "the features, by each reading of Delta_h0. The last column is what is proved where each record has "
        "noise of its own."
    )
    return f"## How much noise\n\n{text}\n\n{grid(headings, body)}"


def attacks(claimed: str = "0.5", runs: int = 2000) -> str:
    """Lower bounds for each reading, from an attack that subtracts two records of a batch."""
    body = []
    for reading in READINGS:
        if reading == "no-noise":
            continue
        result = attack(reading, claimed, runs=runs)
        proved = "none" if math.isinf(result["proved"]) else epsilon(result["proved"])
        broken = "broken" if result["lower"] > result["claimed"] else "not by this attack"
        body.append([reading, f"{result['claimed']:g}", proved, f"{result['lower']:.2f}", broken])
    headings = ["reading", "epsilon claimed", "epsilon proved", "lower bound found", "the claim is"]
    text = (
        "Two records of a batch are subtracted to tell a white first pixel from a black one: "
        f"{runs:,} runs in each world, a bound that is wrong once in a thousand times. Where noise is "
        "shared, the difference is the pixel itself, and the bound is as large as so many runs can give. "
        "Where each record has its own, one pixel says little; a whole record says more, up to what is "
        "proved (`adlm audit`)."
    )
    return f"## What breaks it\n\n{text}\n\n{grid(headings, body)}"
