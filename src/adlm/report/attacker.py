"""What an attacker can learn at an epsilon, in odds: the arithmetic, the words and the pictures.

The attacker knows every record but one, the code and the release. Differential privacy bounds every test:
true alarms <= e^epsilon * false alarms + delta, and the same without an alarm.
"""

from __future__ import annotations

import math

from adlm.report import drawing
from adlm.report.html import Markup, figure, join, paragraph, table

ALARM = 0.01  # rate of false alarms in the text when delta > 0
PRIORS = (0.001, 0.01, 0.1, 0.5, 0.9)


def odds_factor(epsilon: float, delta: float = 0.0, alarm: float = ALARM) -> float:
    """Return the largest factor of the attacker's odds after an alarm.

    Pure epsilon: e^epsilon, for every output. With delta: true alarms over false alarms is at most
    e^epsilon + delta / alarm, for a test that gives false alarms at the rate `alarm`.
    """
    return min(
        math.exp(min(epsilon, 700.0)) + (delta / alarm if delta else 0.0), (1 / alarm) if delta else math.inf
    )


def posterior(prior: float, factor: float) -> float:
    """Return the largest posterior probability of an attacker, from a prior one."""
    odds = prior / (1 - prior) * factor
    return odds / (1 + odds)


def best_guess(epsilon: float, delta: float = 0.0) -> float:
    """Return the largest share of correct guesses between two neighbours of equal prior probability.

    The total variation distance is at most (e^eps - 1 + 2 delta) / (e^eps + 1).
    """
    if epsilon > 700:
        return 1.0
    return min(1.0, (math.exp(epsilon) + delta) / (math.exp(epsilon) + 1))


def detection(false_alarms: float, epsilon: float, delta: float = 0.0) -> float:
    """Return the largest rate of true alarms for a rate of false ones: the smaller of two bounds."""
    up = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    down = 1 - (1 - false_alarms - delta) * math.exp(-epsilon)
    return max(0.0, min(1.0, up, down))


def explanation(epsilon: float, delta: float, neighbours: str) -> Markup:
    """Explain the numbers, with plots."""
    factor = odds_factor(epsilon, delta)
    what = "that it is one thing and not another"
    if neighbours == "add-remove":
        what = "that it is among the records and not absent"
    words = paragraph(
        f"Suppose that somebody knows every record but one, and suspects of that one {what}. Whatever they "
        f"compute from the release, their odds can grow at most {_times(factor)}{_when(delta)}. If they had "
        f"to guess between two such possibilities, equally likely before, they would be right at most "
        f"{best_guess(epsilon, delta):.1%} of the time; a coin is right 50%."
    )
    rows = [(_percent(p), _percent(posterior(p, factor))) for p in PRIORS]
    beliefs = table(("they thought", "they can come to think, at most"), rows)
    return join([words, beliefs, _picture(factor, delta), _trade_off(epsilon, delta)])


def _when(delta: float) -> str:
    return f", on seeing a sign that would be false in {ALARM:.0%} of cases" if delta else ""


def _picture(factor: float, delta: float) -> Markup:
    x = drawing.horizontal(0, 100, "probability before, %")
    y = drawing.vertical(0, 100, "after, %")
    before = [i / 100 for i in range(101)]
    high = [100 * (posterior(p, factor) if 0 < p < 1 else p) for p in before]
    low = [100 * (posterior(p, 1 / factor) if 0 < p < 1 and factor < math.inf else p) for p in before]
    percent = [100 * p for p in before]
    marks = drawing.area(x, y, percent, low, high, "a"), drawing.curve(x, y, percent, percent, "quiet")
    label = f"Belief after seeing the release over belief before it: odds grow at most {_times(factor)}"
    caption = (
        f"The shaded band is all that an attacker can come to believe{_when(delta)}; on the dashed line "
        "nothing was learnt. The narrower the band, the stronger the protection."
    )
    return figure(drawing.plot(x, y, *marks, label=label), caption)


def _trade_off(epsilon: float, delta: float) -> Markup:
    x = drawing.horizontal(0, 100, "false alarms, %")
    y = drawing.vertical(0, 100, "true alarms, %")
    rates = [i / 200 for i in range(201)]
    most = [100 * detection(r, epsilon, delta) for r in rates]
    percent = [100 * r for r in rates]
    marks = drawing.area(x, y, percent, percent, most, "a"), drawing.curve(x, y, percent, percent, "quiet")
    caption = (
        "Every test for one record's presence or value falls into the shaded region, whatever it computes. "
        "The dashed line is guessing."
    )
    label = "Largest rate of true alarms over the rate of false alarms"
    return figure(drawing.plot(x, y, *marks, label=label), caption)


def _times(factor: float) -> str:
    if factor == math.inf or factor > 1e6:
        return "more than a millionfold"
    return f"{factor:.3g}-fold" if factor >= 1.005 else f"{factor:.4f}-fold"


def _percent(probability: float) -> str:
    shown = 100 * probability
    if 99.99 < shown < 100:
        return "more than 99.99%"
    return f"{shown:.3g}%" if shown < 99.5 else f"{shown:.2f}%"
