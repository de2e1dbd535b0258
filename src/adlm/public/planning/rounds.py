"""The rule for gradient rounds: how many, how long a step, from public quantities alone.

The noise on a score does not depend on the number of rounds. It grows with the *path*, the sum of all
steps, over signal = n mu / s, where s is the sensitivity in clip norms (1 under add-remove, 2 under
replace-one, times the records of a person). So the path follows the signal, and the number of rounds only
has to be large enough for the steps to be stable. The constants were fixed on held-out training records
of MNIST, Fashion-MNIST and CIFAR-10 and of six tables (docs/reproduction.md).
"""

from __future__ import annotations

from dataclasses import replace

from adlm.estimation.gradient_head import GradientRounds

CLIP_NORM = 0.25
# Small clip norms bias the class shares of imbalanced data, so a strong signal gets a larger one.
WIDER_CLIPS = ((8_000.0, 0.5), (16_000.0, 1.0))
TABLE_PATH = 0.15  # step x clip norm x rounds, over the signal; images have their own
ROUNDS = (100, 200)  # default and most
IMAGE_ROUNDS = (200, 400)  # of images and vectors: for the same path, short steps do better than long ones
LEAST_ROUNDS, MANY_RECORDS = 50, 100_000  # least rounds; a table with more records than this gets fewer
# The more columns, the less of a record's length lies in one direction, so steps can be longer and fewer.
WIDE_COLUMNS, WIDE_LEAST_ROUNDS, WIDE_STEP = 20, 36, 256.0
REACH = 3.0  # momentum keeps at most e^-REACH of the first of all rounds
IMAGE_STEP, TABLE_STEP = 128.0, 32.0  # the longest stable steps, for a clip norm of CLIP_NORM
SHORT_IMAGE_STEP = 40.0  # of images, for any clip norm, while there are fewer than the most rounds
MOMENTUM = (0.9, 0.97)  # default and most


def signal_of(n: int, mu: float, neighbours: str, contributions: int = 1) -> float:
    """Return n mu over the sensitivity, in clip norms.

    Parameters
    ----------
    n : number of records.
    mu : of the gradients' share of the budget.
    neighbours : the relation.
    contributions : records that one person may have.
    """
    return n * mu / ((1.0 if neighbours == "add-remove" else 2.0) * contributions)


def plan_rounds(
    n: int, signal: float, *, path: float, longest_step: float, clip_norm: float = CLIP_NORM
) -> GradientRounds:
    """Choose gradient rounds for n records and a signal.

    The path grows with the signal: first by longer steps, then by more rounds, then by more momentum.

    Parameters
    ----------
    n : public number of records.
    signal : what `signal_of` returns.
    path : step x clip norm x rounds, over the signal.
    longest_step : the longest stable step on the mean gradient, for a clip norm of CLIP_NORM.
    clip_norm : L2 bound on one record's gradient.
    """
    longest = longest_step * CLIP_NORM / clip_norm
    return _with_steps(n, path * signal / clip_norm, (longest, longest), ROUNDS, clip_norm)


def plan_image_rounds(n: int, signal: float, path: float, clip_norm: float = CLIP_NORM) -> GradientRounds:
    """Choose gradient rounds for the features of n images, taken around their mean.

    More rounds come before longer steps, up to the most of IMAGE_ROUNDS.

    Parameters
    ----------
    n : public number of records.
    signal : what `signal_of` returns.
    path : step x clip norm x rounds, over the signal.
    clip_norm : L2 bound on one record's gradient.
    """
    steps = (SHORT_IMAGE_STEP, IMAGE_STEP * CLIP_NORM / clip_norm)
    return replace(_with_steps(n, path * signal / clip_norm, steps, IMAGE_ROUNDS, clip_norm), centred=True)


def _with_steps(
    n: int, length: float, steps: tuple[float, float], rounds_range: tuple[int, int], clip_norm: float
) -> GradientRounds:
    """Divide a length into rounds: steps up to the first length, more rounds, longer steps, more momentum."""
    usual, longest = steps
    fewest, most = rounds_range
    rounds, momentum = max(fewest, min(most, round(length / usual))), MOMENTUM[0]
    step = length / rounds
    if step > longest:
        momentum = min(MOMENTUM[1], 1 - (1 - momentum) * longest / step)
        step = longest
    return GradientRounds(rounds, clip_norm, float(f"{step:.6g}"), n, momentum=float(f"{momentum:.6g}"))


def fewer_rounds(plan: GradientRounds, columns: int = 0) -> GradientRounds:
    """Take fewer and longer steps over a table of many records, where a round takes long.

    The path is the same, so the noise on a score is. Momentum must not reach back over too many of the
    remaining rounds. Over a table of WIDE_COLUMNS and more than twice MANY_RECORDS, rounds are fewer
    still, and steps make up for less momentum as well, up to WIDE_STEP for a clip norm of CLIP_NORM.

    Parameters
    ----------
    plan : the rounds of a table of fewer records.
    columns : of the table.
    """
    wide = columns >= WIDE_COLUMNS
    share = MANY_RECORDS / plan.size
    most = max(LEAST_ROUNDS, round(ROUNDS[1] * share))
    if wide and share < 1 / 2:
        most = max(WIDE_LEAST_ROUNDS, round(ROUNDS[1] * 2 * share * share))
    if plan.rounds <= most:
        return plan
    step = plan.step * plan.rounds / most
    momentum = min(plan.momentum, 1 - REACH / most)
    if wide:
        longest = max(step, WIDE_STEP * CLIP_NORM / plan.clip_norm)
        step = min(step * (1 - momentum) / (1 - plan.momentum), longest)
    return replace(plan, rounds=most, step=float(f"{step:.6g}"), momentum=float(f"{momentum:.6g}"))


def table_clip_norm(signal: float) -> float:
    """Return the clip norm of a table's gradients."""
    return max((norm for least, norm in WIDER_CLIPS if signal >= least), default=CLIP_NORM)
