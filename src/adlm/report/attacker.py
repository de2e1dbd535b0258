"""What an attacker can learn from a release, in odds: the words and the pictures.

The attacker knows every record but one, the code and the release. Every test of theirs is bounded by the
trade-off of what was released (`adlm.privacy.accounting.TradeOff`): exactly for Gaussian noise, and by
true alarms <= e^epsilon * false alarms, and the same without an alarm, for pure epsilon.
"""

from __future__ import annotations

import math

from adlm.privacy.accounting import Totals, TradeOff
from adlm.report import drawing
from adlm.report.html import Markup, figure, join, paragraph, table

ALARM = 0.01  # rate of false alarms in the text, unless epsilon is pure
PRIORS = (0.001, 0.01, 0.1, 0.5, 0.9)


def posterior(prior: float, factor: float) -> float:
    """Return the largest posterior probability of an attacker, from a prior one."""
    odds = prior / (1 - prior) * factor
    return odds / (1 + odds)


def meaning(totals: Totals) -> str:
    """Say what an attacker can do, in a few sentences; something must be proved."""
    bound = totals.trade_off
    assert bound is not None
    person, values = totals.unit != "record", ""
    known = "all records but those of one person" if person else "every record but one"
    if totals.neighbours == "add-remove":
        suspected = "that they are among the records" if person else "that it is among the records"
        values = " Telling two values apart is removing one and adding the other, and may cost twice as much."
    elif person:
        suspected = "that their records are some and not others"
    else:
        suspected = "that it is one thing and not another"
    return (
        f"Suppose that somebody knows {known}, and suspects of that {'person' if person else 'one'} "
        f"{suspected}. Whatever they compute from the release, their odds can grow at most "
        f"{_times(bound.odds_factor(ALARM))}{_when(bound)}. If they had to guess whether it is so, equally "
        f"likely before as not, they would be right at most {bound.best_guess():.1%} of the time; a coin is "
        f"right 50%.{values}"
    )


def explanation(totals: Totals) -> Markup:
    """Explain the numbers, with plots."""
    bound = totals.trade_off
    assert bound is not None
    factor = bound.odds_factor(ALARM)
    rows = [(_percent(p), _percent(posterior(p, factor))) for p in PRIORS]
    beliefs = table(("they thought", "they can come to think, at most"), rows)
    parts = [paragraph(meaning(totals)), beliefs, _picture(bound), _trade_off(totals, bound)]
    return join([*parts, *([paragraph(totals.about_mu())] if totals.mu else [])])


def _when(bound: TradeOff) -> str:
    pure = not bound.mu and not bound.delta
    return "" if pure else f", on seeing a sign that would be false in {ALARM:.0%} of cases"


def _picture(bound: TradeOff) -> Markup:
    factor = bound.odds_factor(ALARM)
    x = drawing.horizontal(0, 100, "probability before, %")
    y = drawing.vertical(0, 100, "after, %")
    before = [i / 100 for i in range(101)]
    high = [100 * (posterior(p, factor) if 0 < p < 1 else p) for p in before]
    low = [100 * (posterior(p, 1 / factor) if 0 < p < 1 and factor < math.inf else p) for p in before]
    percent = [100 * p for p in before]
    marks = drawing.area(x, y, percent, low, high, "a"), drawing.curve(x, y, percent, percent, "quiet")
    label = f"Belief after seeing the release over belief before it: odds grow at most {_times(factor)}"
    caption = (
        f"The shaded band is all that an attacker can come to believe{_when(bound)}; on the dashed line "
        "nothing was learnt. The narrower the band, the stronger the protection."
    )
    return figure(drawing.plot(x, y, *marks, label=label), caption)


def _trade_off(totals: Totals, bound: TradeOff) -> Markup:
    x = drawing.horizontal(0, 100, "false alarms, %")
    y = drawing.vertical(0, 100, "true alarms, %")
    rates = [i / 200 for i in range(201)]
    most = [100 * bound.detection(r) for r in rates]
    percent = [100 * r for r in rates]
    marks = drawing.area(x, y, percent, percent, most, "a"), drawing.curve(x, y, percent, percent, "quiet")
    person = totals.unit != "record"
    what = "the presence" if totals.neighbours == "add-remove" else "the records" if person else "the value"
    caption = (
        f"Every test for {what} of one {'person' if person else 'record'} falls into the shaded region, "
        "whatever it computes. The dashed line is guessing."
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
