"""The deep prior: its loss against a slow twin, and that it learns."""

from __future__ import annotations

import math

import pytest
import torch

from adlm.public.priors.deep import PROCESSES, Embedding, episode_loss, meta_train


def test_the_loss_is_what_a_slow_twin_says() -> None:
    """Record by record: nearest noisy prototype, its own without itself."""
    way, shots, k, length = 3, 4, 5, 0.4
    z = torch.randn(way, shots, k, generator=torch.Generator().manual_seed(0))
    heat = torch.tensor(math.log(7.0))
    found, right = episode_loss(z, length, heat, torch.Generator().manual_seed(1))
    noise = torch.randn(way, k, generator=torch.Generator().manual_seed(1)) * length / math.sqrt(k)
    unit = z / z.norm(dim=2, keepdim=True)
    losses, hits = [], 0
    for c in range(way):
        for i in range(shots):
            logits = []
            for other in range(way):
                members = [unit[other, j] for j in range(shots) if (other, j) != (c, i)]
                prototype = sum(members, torch.zeros(k)) / len(members) + noise[other]
                logits.append(7.0 * (unit[c, i] @ prototype - prototype @ prototype / 2))
            row = torch.stack(logits)
            losses.append(-torch.log_softmax(row, 0)[c])
            hits += int(row.argmax() == c)
    torch.testing.assert_close(found, torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    assert right == pytest.approx(hits / (way * shots))


@pytest.mark.parametrize(("family", "channels", "size"), [("drawn", 1, 28), ("photographs", 3, 32)])
def test_an_embedding_takes_what_its_process_draws_and_mixes_no_records(
    family: str, channels: int, size: int
) -> None:
    images, _ = PROCESSES[family](3, 2, torch.Generator().manual_seed(0))
    network = Embedding(channels, size, deskewed=family == "drawn").eval()
    with torch.inference_mode():
        together = network(images)
        alone = torch.cat([network(image[None]) for image in images])
    assert together.shape == (6, 64)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_meta_training_learns_and_repeats_itself() -> None:
    few, share = meta_train("drawn", steps=40, classes=60)
    assert share > 0.5  # of thirty classes, with noise
    again, same = meta_train("drawn", steps=40, classes=60)
    assert same == share
    for one, other in zip(few.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other)
