"""Features of images: the compiled form against PyTorch's form of the same maps, and another version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from adlm.features import Features, build
from adlm.runtime import progress
from benchmarks.bench.image_rate import MAPS
from benchmarks.bench.ratio import Ratio, interleave, ratio
from benchmarks.bench.versions import HERE, checkout

if TYPE_CHECKING:
    from benchmarks.bench.comparisons import Scale

SCRIPT = Path(__file__).with_name("image_rate.py")


def photographs(scale: Scale) -> list[Ratio]:
    """Images a processor second, on one thread: over PyTorch's form in batches of 100, over another version.

    Another version is compared if a checkout is given by --against, in turn, each time in a new process.
    """
    images = 250 if scale.quick else 2000
    return _over_pytorch(scale, images) + _over_version(scale, images)


def _over_pytorch(scale: Scale, images: int) -> list[Ratio]:
    def clock(features: Features, x: torch.Tensor, *, compiled: bool) -> float:
        before, rows = torch.get_num_threads(), 500 if compiled else 100
        torch.set_num_threads(1)
        try:
            with torch.inference_mode(compiled):
                start = time.process_time()
                for part in torch.split(x, rows):
                    features(part if compiled else part.clone().requires_grad_())
                return len(x) / (time.process_time() - start)
        finally:
            torch.set_num_threads(before)

    ratios = []
    for name, (spec, shape) in MAPS.items():
        features, x = build(spec).eval(), torch.rand(images, *shape)
        clock(features, x[:8], compiled=True)
        actions: dict[str, Callable[[], float]] = {
            "own": partial(clock, features, x, compiled=True),
            "pytorch": partial(clock, features, x[:100], compiled=False),
        }
        rates = interleave(actions, scale.repeats)
        detail = {"images": images, "a second": round(float(np.median(rates["own"])))}
        title = f"features: {name}' rate over PyTorch's form, one thread"
        ratios.append(ratio(title, rates["own"], rates["pytorch"], detail=detail))
    return ratios


def _over_version(scale: Scale, images: int) -> list[Ratio]:
    if scale.against is None:
        progress.say("bench: photographs: no other version; it needs another checkout, by --against PATH")
        return []
    trees = {"this": HERE, "other": checkout(scale.against)}
    rates: dict[str, dict[str, list[float]]] = {name: {key: [] for key in MAPS} for name in trees}
    for _ in range(scale.repeats):
        for name, tree in trees.items():
            environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
            words = [sys.executable, str(SCRIPT), str(images)]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
            for key, rate in json.loads(done.stdout.strip().splitlines()[-1]).items():
                rates[name][key].append(rate)
    ratios = []
    for key in MAPS:
        detail = {name: [round(rate) for rate in found[key]] for name, found in rates.items()}
        title = f"features: {key}' rate over the other version's, one thread"
        ratios.append(ratio(title, rates["this"][key], rates["other"][key], detail=detail))
    return ratios
