"""The rule for gradient rounds: how many, how long a step, from public quantities alone.

What noise does to a score is the same whatever the number of rounds: it grows with the *path*, the sum of all
steps, over signal = n mu / s, where s is the sensitivity in clip norms (1 under add-remove, 2 under replace-one,
times the records of a person). So the path follows the signal, and the number of rounds only has to be
large enough for the steps to be stable. The constants were settled on held-out training records of MNIST,
Fashion-MNIST and CIFAR-10 and of six tables (docs/reproduction.md).
"""

from __future__ import annotations

from adlm.estimation.gradient_head import GradientRounds

CLIP_NORM = 0.25
PATH = 0.2  # step x clip norm x rounds, over the signal
ROUNDS = (100, 200)  # usual and most
LONGEST_STEP = 32.0
MOMENTUM = (0.9, 0.97)  # usual and most


def signal(n: int, mu: float, neighbours: str, contributions: int = 1) -> float:
    """Return n mu over the sensitivity, in clip norms."""
    return n * mu / ((1.0 if neighbours == "add-remove" else 2.0) * contributions)


def plan_rounds(n: int, strength: float, *, longest_step: float = LONGEST_STEP) -> GradientRounds:
    """Choose gradient rounds for n records and a signal.

    The path grows with the signal: first by longer steps, then by more rounds, then by more momentum.
    """
    path = PATH * strength
    rounds, momentum = ROUNDS[0], MOMENTUM[0]
    step = path / (CLIP_NORM * rounds)
    if step > longest_step:
        rounds = min(ROUNDS[1], round(path / (CLIP_NORM * longest_step)))
        step = path / (CLIP_NORM * rounds)
    if step > longest_step:
        momentum = min(MOMENTUM[1], 1 - (1 - momentum) * longest_step / step)
        step = longest_step
    return GradientRounds(rounds, CLIP_NORM, float(f"{step:.6g}"), n, momentum=float(f"{momentum:.6g}"))
