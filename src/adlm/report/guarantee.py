"""The guarantee in a report: stamps, claimed against proved, and what an attacker can learn, in odds."""

from __future__ import annotations

import math

from adlm.domain import Domain
from adlm.privacy.accounting import Totals, TradeOff, show
from adlm.privacy.certificate import (
    MOST_EPSILON,
    NOT_PUBLIC,
    PEEKED,
    SEEDED,
    WEAK_DELTA,
    WEAK_EPSILON,
    Certificate,
    charge_rows,
)
from adlm.report import html as drawing
from adlm.report.html import Markup, Section, figure, join, paragraph, stamp, table, tag, tile
from adlm.report.subject import Subject

# ---- What an attacker can learn from a release, in odds: the words and the pictures.
#
# The attacker knows every record but one, the code and the release. Every test of theirs is bounded by the
# trade-off of what was released (`adlm.privacy.accounting.TradeOff`): exactly for Gaussian noise, and by
# true alarms <= e^epsilon * false alarms, and the same without an alarm, for pure epsilon.

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


# ---- The guarantee in a report: stamps, figures, an explanation, claimed against proved.

MEANINGS = {
    SEEDED: "The noise was drawn from a fixed seed, so whoever knows the seed can take it off again. "
    "Use this release for tests alone.",
    PEEKED: "Bounds of the domain, or a scaling before them, were computed from the records, and no noise "
    "protects them.",
    NOT_PUBLIC: "Private records had a part in the features, so what they reveal of a record is not bounded.",
    WEAK_EPSILON: f"So large an epsilon bounds nothing: the odds may change e^{MOST_EPSILON} times.",
    WEAK_DELTA: "So large a delta is met by a mechanism that publishes a random record as it is.",
}
KINDS = {"moments": "moment", "records": "record"}


def relation_words(totals: Totals) -> str:
    """Say which data sets are neighbours, and whether the number of records is public."""
    person = totals.unit != "record"
    if totals.neighbours == "add-remove":
        difference, number = (
            f"one has {'the records of one person' if person else 'a record'} more",
            "protected",
        )
    elif person:
        difference = "the records of one person are replaced by those of another"
        number = "protected" if totals.contributions > 1 else "public"
    else:
        difference, number = "one record is replaced by another", "public"
    return f"two data sets are neighbours when {difference}; how many records there are is {number}"


def stamps(subject: Subject) -> Markup:
    """Show all stamps of the release and its models."""
    other = "This warning was put on the release, or on a model of it, when it was made."
    shown = [stamp(words, MEANINGS.get(words, other)) for words in subject.stamps]
    totals = subject.certificate.totals
    if math.isinf(totals.epsilon_proved):
        shown.append(stamp("No epsilon is proved", f"{'; '.join(totals.unproved)}."))
    return join(shown)


def summary(subject: Subject) -> Markup:
    """Show the main figures."""
    totals = subject.certificate.totals
    tiles = [
        tile(show(totals.epsilon_proved), "epsilon proved"),
        tile(show(totals.epsilon_claimed), "epsilon claimed"),
        tile(f"{float(totals.delta):g}", "delta"),
        *([tile(totals.mu, "mu")] if totals.mu else []),
        tile(totals.neighbours, "neighbours"),
        tile(totals.unit, "unit of privacy"),
    ]
    measured = [m for m in subject.models if m.evaluation and _share(m.evaluation.get("accuracy"))]
    for model in measured[:2]:
        assert model.evaluation is not None
        name = "accuracy" if len(measured) == 1 else f"accuracy, {model.name}"
        tiles.append(tile(f"{float(model.evaluation['accuracy']):.1%}", name))
    fitted = [m for m in subject.models if m.evaluation and isinstance(m.evaluation.get("r2"), int | float)]
    for model in fitted[:2]:
        assert model.evaluation is not None
        name = "R2" if len(fitted) == 1 else f"R2, {model.name}"
        tiles.append(tile(f"{float(model.evaluation['r2']):.3f}", name))
    return tag("div", *tiles, class_="tiles")


def plain_words(certificate: Certificate) -> Section:
    """Explain what the certificate guarantees."""
    totals = certificate.totals
    domain, n = certificate.domain, certificate.settings.get("n")
    many = f"{n:,} records" if isinstance(n, int) else "records whose number is protected"
    intro = paragraph(
        f"This {KINDS.get(certificate.kind, certificate.kind)} release was made from {many} of {domain.size} "
        f"values each, {_answers(domain)}. The records were read to make it; everything "
        f"trained on it since, for however long, has read the release alone, and costs no further privacy."
    )
    relation = paragraph(
        f"The guarantee is for one {totals.unit} ({totals.neighbours}): {relation_words(totals)}. ",
        _people(totals),
    )
    if SEEDED in certificate.stamps:
        seeded = "None of this holds for noise from a known seed. Below is what it would promise without one."
        relation = join([relation, tag("p", seeded, class_="bad")])
    elif not certificate.private:
        relation = join([relation, tag("p", "Nobody would call this private.", class_="bad")])
    if math.isinf(totals.epsilon_proved):
        verdict = tag(
            "p",
            f"No epsilon is proved for this release: {'; '.join(totals.unproved)}. Nothing ",
            "below should be read as protection.",
            class_="bad",
        )
    else:
        verdict = explanation(totals)
    return Section("plain-words", "What this certificate promises", join([intro, relation, verdict]))


def _answers(domain: Domain) -> str:
    if domain.target is not None:
        return f"with a number between {domain.target[0]:g} and {domain.target[1]:g} to predict"
    return f"in {len(domain.classes)} classes"


def _people(totals: Totals) -> str:
    if totals.unit != "record":
        return "How many records a person may have was declared, and is charged."
    return (
        "A person with several records is protected less: epsilon grows with the number of records they have."
    )


def claimed_and_proved(certificate: Certificate) -> Section:
    """Show the claimed and the proved epsilon of each step."""
    rows = charge_rows(certificate.charges)
    totals = certificate.totals
    rows.append(
        (
            "together",
            "",
            show(totals.epsilon_claimed),
            show(totals.epsilon_proved),
            f"{float(totals.delta):g}",
            f"composition of the above{f', mu {totals.mu}' if totals.mu else ''}",
        )
    )
    heading = (
        "what was released",
        "noise",
        "claimed epsilon",
        "proved epsilon",
        "delta",
        "where it is proved",
    )
    pair = {"claimed": totals.epsilon_claimed, "proved": totals.epsilon_proved}
    known = [float(v) for v in pair.values() if not math.isinf(v)]
    picture = drawing.bars(
        [f"epsilon {name}" for name in pair],
        [float(v) if not math.isinf(v) else 1.3 * max(known, default=1.0) for v in pair.values()],
        label="Claimed and proved epsilon of the whole release",
        styles=["b", "bad" if math.isinf(totals.epsilon_proved) else "a"],
        shown=[show(v) for v in pair.values()],
    )
    words = paragraph(
        "A claimed epsilon is stated by a method's authors. A proved one follows from the sensitivity and "
        "the noise scale in the certificate, by the proof named; ",
        tag("code", "adlm verify"),
        " computes it again.",
    )
    caption = "Smaller is more private. Where proved is larger than claimed, believe proved."
    return Section(
        "claimed-and-proved",
        "Claimed against proved",
        join([words, table(heading, rows), figure(picture, caption)]),
    )


def _share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1
