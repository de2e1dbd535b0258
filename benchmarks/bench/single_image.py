"""Time of one prediction, from an image file to a class, against VGG-11 on images of the same size."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import nn

from adlm.data.images import pixels_of
from adlm.domain import Domain
from adlm.mechanism.privatise import privatise
from adlm.model.fit import fit
from adlm.model.model import Model
from benchmarks.bench.ratio import Ratio, interleave, ratio

MOST_MILLISECONDS = 50.0
VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)  # channels of convolutions; 0 is a pooling
IMAGES = {
    "32 x 32 colour": Domain((3, 32, 32), 0, 255, ("a", "b"), family="natural"),
    "28 x 28 grey": Domain((28, 28), 0, 255, ("a", "b"), family="drawn"),
    "64 x 64 colour": Domain((3, 64, 64), 0, 255, ("a", "b"), family="natural"),
}


def vgg11(channels: int, size: int) -> nn.Module:
    """The convolutions of VGG-11 with a linear classifier, for images of any size from 28 pixels on."""
    layers: list[nn.Module] = []
    for width in VGG11:
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        elif size > 1:
            layers.append(nn.MaxPool2d(2))
            size //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size * size, 10)).eval()


def model_of(domain: Domain) -> Model:
    """A model of the domain, from a release of random records; its head does not affect the time."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (16, *domain.shape), dtype=np.uint8)
    return fit(privatise(x, np.arange(16) % 2, domain=domain, epsilon=5, seed=0))


def single_image(repeats: int, asked: int) -> list[Ratio]:
    """Predict on one JPEG file against a forward pass of VGG-11: CPU time, with one thread each.

    Parameters
    ----------
    repeats : times that both are measured.
    asked : predictions of each measurement, of which the median counts.
    """
    ratios = []
    for name, domain in IMAGES.items():
        channels, size = 3 if len(domain.shape) == 3 else 1, domain.shape[-1]
        rng = np.random.default_rng(1)
        drawn = Image.fromarray(rng.integers(0, 256, (120, 160, 3), dtype=np.uint8))
        stream = io.BytesIO()
        drawn.save(stream, "JPEG")
        data, model, network = stream.getvalue(), model_of(domain), vgg11(channels, size)
        x = torch.rand(1, channels, size, size)

        def plain(network: nn.Module = network, x: torch.Tensor = x) -> None:
            with torch.inference_mode():
                network(x)

        def ours(data: bytes = data, model: Model = model, domain: Domain = domain) -> None:
            model.predict(pixels_of(data, domain.shape)[None])

        times = interleave(
            {"ours": lambda: _median(ours, asked), "plain": lambda: _median(plain, asked)}, repeats
        )
        milliseconds = 1000 * float(np.median(times["ours"]))
        detail = {"milliseconds": round(milliseconds, 2)}
        limit = [MOST_MILLISECONDS / 1000] * len(times["ours"])
        for other, below in (("a VGG-11 forward pass", times["plain"]), ("50 ms", limit)):
            title = f"one image: from a JPEG file to a class over {other}, {name}"
            ratios.append(ratio(title, times["ours"], below, detail=detail))
    return ratios


def _median(action: Callable[[], None], asked: int) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        action()  # warm-up: what is computed once, such as filters, belongs to loading
        taken = []
        for _ in range(asked):
            start = time.process_time()
            action()
            taken.append(time.process_time() - start)
        return float(np.median(taken))
    finally:
        torch.set_num_threads(before)
