"""Features of single images, against reference implementations of the same maps."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from adlm.public.features.natural import NaturalImages
from adlm.public.features.prior import PriorProjection
from adlm.public.features.threads import records_together
from benchmarks.bench.plain_drawings import plain_drawings
from benchmarks.bench.plain_photographs import plain_features
from benchmarks.bench.ratio import Ratio, interleave, ratio

if TYPE_CHECKING:
    from benchmarks.bench.comparisons import Scale

Mapped = Callable[[torch.Tensor], torch.Tensor]


def photographs(scale: Scale) -> list[Ratio]:
    """Features of photographs and of drawn images, each mapped alone, against reference implementations.

    One thread. The reference implementations get images in batches of 500, and then one by one.
    """
    images = 250 if scale.quick else 2000
    natural, drawn = NaturalImages(1000), PriorProjection("drawn")
    maps: dict[str, tuple[torch.Tensor, Mapped, Mapped]] = {
        "photographs": (torch.rand(images, 3, 32, 32), natural, partial(plain_features, natural)),
        "drawn images": (torch.rand(images, 28, 28), drawn, partial(plain_drawings, drawn)),
    }

    def clock(mapped: Mapped, x: torch.Tensor, rows: int = 500) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                mapped(x[:8])
                start = time.process_time()  # of this process alone
                for part in torch.split(x, rows):
                    mapped(part)
                return images / (time.process_time() - start)
        finally:
            torch.set_num_threads(before)

    ratios = []
    for name, (x, own, plain) in maps.items():
        actions = {
            "own": partial(clock, own, x),
            "batches": records_together()(partial(clock, plain, x)),
            "alone": partial(clock, plain, x, 1),
        }
        rates = interleave(actions, scale.repeats)
        detail = {"images": images, "a second": round(float(np.median(rates["own"])))}
        for form, called in (("batches", "in batches"), ("alone", "one by one")):
            title = f"features: {name}' rate over their plain form {called}, one thread"
            asked = 3 if name == "photographs" else None
            ratios.append(ratio(title, rates["own"], rates[form], at_least=asked, detail=detail))
    return ratios
