"""The sections of a report: guarantee, accuracy, noise, attacks, and how to cite and repeat a release."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.domain import Domain
from adlm.features import TABLES
from adlm.model.closed_form import SmallClass, has_columns, relevance, sentences
from adlm.model.estimates import Moments
from adlm.privacy.accounting import Totals, TradeOff, show
from adlm.privacy.certificate import (
    MOST_EPSILON,
    NOT_PUBLIC,
    PEEKED,
    SEEDED,
    WEAK_DELTA,
    WEAK_EPSILON,
    Certificate,
    charge_table,
)
from adlm.privacy.release import Release
from adlm.privacy.signature import Signature
from adlm.report import html as drawing
from adlm.report.html import Markup, Section, figure, join, paragraph, stamp, table, tag, tile
from adlm.report.subject import Subject, Trained

# ---- The guarantee: stamps, claimed against proved, and what an attacker can learn, in odds.
#
# The attacker knows every record but one, the code and the release. Every test of theirs is bounded by the
# trade-off of what was released (`adlm.privacy.accounting.TradeOff`): exactly for Gaussian noise, and by
# true positives <= e^epsilon * false positives, and the same without a detection, for pure epsilon.

ALARM = 0.01  # false-alarm rate in the text, unless epsilon is pure
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
        suspected = f"suspects that {'they are' if person else 'it is'} among the records"
        values = " Telling two values apart is removing one and adding the other, and may cost twice as much."
    else:
        suspected = f"has two hypotheses about {'their records' if person else 'it'}"
    return (
        f"Suppose that somebody knows {known}, and {suspected}. Whatever they compute from the release, "
        f"their odds can grow at most {_times(bound.odds_factor(ALARM))}{_when(bound)}. If both hypotheses "
        f"are equally likely before, their guess is right at most {bound.best_guess():.1%} of the time; a "
        f"coin is right 50%.{values}"
    )


def explanation(totals: Totals) -> Markup:
    """Explain the numbers, with plots."""
    bound = totals.trade_off
    assert bound is not None
    factor = bound.odds_factor(ALARM)
    beliefs = [(_percent(p), _percent(posterior(p, factor))) for p in PRIORS]
    steps = [i / 100 for i in range(101)]
    high = [posterior(p, factor) if 0 < p < 1 else p for p in steps]
    low = [posterior(p, 1 / factor) if 0 < p < 1 and factor < math.inf else p for p in steps]
    what = "presence" if totals.neighbours == "add-remove" else "values"
    of = "person" if totals.unit != "record" else "record"
    parts = [
        paragraph(meaning(totals)),
        table(("belief before", "belief after, at most"), beliefs),
        _region(
            ("belief before, %", "after, %"),
            steps,
            low,
            high,
            f"Belief after seeing the release over belief before it: odds grow at most {_times(factor)}",
            f"The shaded band is all that an attacker can come to believe{_when(bound)}; on the dashed line "
            "nothing was learnt. The narrower the band, the stronger the protection.",
        ),
        _region(
            ("false positives, %", "true positives, %"),
            steps,
            steps,
            [bound.detection(r) for r in steps],
            "Largest true positive rate over the false positive rate",
            f"Every test for the {what} of one {of} falls into the shaded region, whatever it computes. The "
            "dashed line is guessing.",
        ),
        *([paragraph(totals.about_mu())] if totals.mu else []),
    ]
    return join(parts)


def _region(
    names: tuple[str, str],
    steps: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    label: str,
    caption: str,
) -> Markup:
    """Draw what lies between two curves of probabilities, with the diagonal dashed."""
    x, y = drawing.horizontal(0, 100, names[0]), drawing.vertical(0, 100, names[1])
    percent, low, high = ([100 * p for p in values] for values in (steps, low, high))
    marks = drawing.area(x, y, percent, low, high, "a"), drawing.curve(x, y, percent, percent, "quiet")
    return figure(drawing.plot(x, y, *marks, label=label), caption)


def _when(bound: TradeOff) -> str:
    return "" if bound.is_pure else f", from a test with a {ALARM:.0%} false-alarm rate"


def _times(factor: float) -> str:
    if factor == math.inf or factor > 1e6:
        return "more than a millionfold"
    return f"{factor:.3g}-fold" if factor >= 1.005 else f"{factor:.4f}-fold"


def _percent(probability: float) -> str:
    shown = 100 * probability
    if 99.99 < shown < 100:
        return "more than 99.99%"
    return f"{shown:.3g}%" if shown < 99.5 else f"{shown:.2f}%"


MEANINGS = {
    SEEDED: "The noise was drawn from a fixed seed, so whoever knows the seed can take it off again. "
    "Use this release for tests alone.",
    PEEKED: "Bounds of the domain, or a scaling before them, were computed from the records, and no noise "
    "protects them.",
    NOT_PUBLIC: "Private records had a part in the features, so what they reveal of a record is not bounded.",
    WEAK_EPSILON: f"So large an epsilon bounds nothing: the odds may change e^{MOST_EPSILON} times.",
    WEAK_DELTA: "So large a delta is met by a mechanism that publishes a random record as it is.",
}
MOST_TILES = 4


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
        *epsilon_tiles(totals),
        tile(f"{float(totals.delta):g}", "delta"),
        *([tile(totals.mu, "mu")] if totals.mu else []),
        tile(totals.neighbours, "neighbours"),
        tile(totals.unit, "unit of privacy"),
    ]
    for key, name, form in (("accuracy", "accuracy", "{:.1%}"), ("r2", "R2", "{:.3f}")):
        values = {m.name: (m.evaluation or {}).get(key) for m in subject.models}
        measured = {m: float(v) for m, v in values.items() if isinstance(v, int | float)}
        for model, value in measured.items() if len(measured) <= MOST_TILES else ():
            tiles.append(tile(form.format(value), name if len(measured) == 1 else f"{name}, {model}"))
    return tag("div", *tiles, class_="tiles")


def epsilon_tiles(totals: Totals) -> list[Markup]:
    """Show one epsilon, or both where the proved one is not the claimed one."""
    proved, claimed = show(totals.epsilon_proved), show(totals.epsilon_claimed)
    if proved == claimed:
        return [tile(proved, "epsilon")]
    return [tile(proved, "epsilon proved"), tile(claimed, "epsilon claimed")]


def plain_words(certificate: Certificate) -> Section:
    """Explain what the certificate guarantees."""
    totals = certificate.totals
    domain, n = certificate.domain, certificate.settings.get("n")
    many = f"{n:,} records" if isinstance(n, int) else "records whose number is protected"
    noisy = " of noisy records" if certificate.kind == "records" else ""
    intro = paragraph(
        f"This release{noisy} was made from {many} of {domain.size} values each, {_answers(domain)}. The "
        "records were read to make it; models are trained on the release alone, for any number of epochs, at "
        "no further privacy cost."
    )
    relation = paragraph(
        f"The guarantee is for one {totals.unit} ({totals.neighbours}): {relation_words(totals)}. ",
        _people(totals),
    )
    if SEEDED in certificate.stamps:
        seeded = "None of this holds for noise from a known seed. Below is what it would promise without one."
        relation = join([relation, tag("p", seeded, class_="bad")])
    elif not certificate.private:
        relation = join([relation, tag("p", "This release is not private.", class_="bad")])
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


def charges(certificate: Certificate) -> Section:
    """Show the epsilon of each step; the claimed one too where it is not the proved one."""
    totals = certificate.totals
    headings, rows = charge_table(certificate.charges)
    both = [show(totals.epsilon_claimed), show(totals.epsilon_proved)]
    epsilons = both if "claimed" in headings else both[1:]
    mu = [totals.mu] if "mu" in headings else []
    rows.append(("together", "", *epsilons, f"{float(totals.delta):g}", *mu, "composition of the above"))
    parts = [
        paragraph(
            "Each epsilon follows from the sensitivity and the noise scale in the certificate, by the proof "
            "named; ",
            tag("code", "adlm verify"),
            " computes it again. Proofs are pages of the documentation, in the folder docs of the source of "
            f"adlm {certificate.software.get('adlm', '')}.",
        ),
        table(headings, rows),
    ]
    if "claimed" in headings:
        pair = [totals.epsilon_claimed, totals.epsilon_proved]
        known = [float(v) for v in pair if not math.isinf(v)]
        picture = drawing.bars(
            ["epsilon claimed", "epsilon proved"],
            [float(v) if not math.isinf(v) else 1.3 * max(known, default=1.0) for v in pair],
            label="Claimed and proved epsilon of the whole release",
            styles=["b", "bad" if math.isinf(totals.epsilon_proved) else "a"],
            shown=both,
        )
        caption = "The claimed epsilon is that of the method's authors. Where proved is larger, rely on it."
        parts.append(figure(picture, caption))
    title = "Claimed against proved" if "claimed" in headings else "What was charged"
    return Section("charges", title, join(parts))


# ---- Measured accuracy of models: figures and confusion.

MOST_CLASSES = 40


MEASURES = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "auc": "AUC", "log_loss": "log loss",
            "rmse": "RMSE", "mae": "MAE", "r2": "R2"}  # fmt: skip


def accuracy(models: Sequence[Trained], classes: Sequence[str]) -> Section | None:
    """Show how each model was trained and its accuracy."""
    if not models:
        return None
    names = list(MEASURES)[:4] if classes else list(MEASURES)[4:]
    rows = []
    for model in models:
        figures = model.evaluation or {}
        numbers = [f"{figures[k]:.4g}" if isinstance(figures.get(k), int | float) else "" for k in names]
        split = f", {figures['split']}" if figures.get("split") else ""
        of = (
            f"{figures.get('of', '')}{split} ({figures.get('n', '?')} records)" if figures else "not measured"
        )
        training = model.training
        rows.append((model.name, training.get("network", "?"), training.get("epochs", ""), *numbers, of))
    headings = ("model", "network", "epochs", *(MEASURES[k] for k in names), "measured on")
    parts = [
        table(headings, rows),
        paragraph(
            "All models carry the same certificate: epochs cost nothing. Figures measured on private records "
            "are not themselves private, and a model must not be chosen by them."
        ),
    ]
    for model in models:
        parts += _warnings(model)
        parts += _weights(model)
        parts += _recalls(model, classes)
        parts += _confusion(model, classes)
    return Section("accuracy", "Accuracy", join(parts))


def _warnings(model: Trained) -> list[Markup]:
    """Warn of a model dominated by noise, and of classes smaller than the noise on their counts."""
    words = model.training.get("warning")
    warning = [tag("p", f"{model.name}: {words}.", class_="bad")] if isinstance(words, str) and words else []
    if "estimated_r2" in model.training:
        training = model.training
        estimate = (
            f"Estimated training R2 of {model.name}: {training['estimated_r2']:.3f} ± "
            f"{2 * training['estimated_r2_sd']:.3f} (its privacy cost is included), squared errors clipped "
            f"at {training['errors_clipped_at']:.3g} times the target's variance."
        )
        warning.insert(0, paragraph(estimate))
    found = model.training.get("small_classes", [])
    small = [SmallClass(str(s["class"]), float(s["count"]), float(s["sd"])) for s in found]
    return [*warning, *(tag("p", f"{words}.", class_="bad") for words in sentences(small))]


def _weights(model: Trained) -> list[Markup]:
    """Show the class weights that a model was trained with."""
    weights = model.training.get("class_weights")
    if not isinstance(weights, dict) or len(weights) > MOST_CLASSES:
        return []
    how = "from released counts" if model.training.get("class_weight") == "balanced" else "as declared"
    rows = [(name, f"{float(weight):.4g}") for name, weight in weights.items()]
    words = f"{model.name} weighs mistakes by class, {how}, which costs nothing:"
    return [paragraph(words), table(("class", "weight"), rows)]


def _recalls(model: Trained, classes: Sequence[str]) -> list[Markup]:
    """Show the recall of each class: accuracy alone hides small ones."""
    recalls = (model.evaluation or {}).get("recalls")
    if not isinstance(recalls, list) or len(recalls) != len(classes) or len(classes) > MOST_CLASSES:
        return []
    rows = [
        (name, "no records" if recall is None else f"{float(recall):.1%}")
        for name, recall in zip(classes, recalls, strict=True)
    ]
    return [paragraph(f"Recall by class: {model.name}"), table(("class", "recall"), rows)]


def _confusion(model: Trained, classes: Sequence[str]) -> list[Markup]:
    raw = (model.evaluation or {}).get("confusion")
    if raw is None or len(classes) > MOST_CLASSES:
        return []
    matrix = np.asarray(raw, dtype=np.float64)
    if matrix.shape != (len(classes), len(classes)):
        return []
    right = np.diag(matrix) / np.maximum(matrix.sum(1), 1)
    worst = int(right.argmin())
    picture = drawing.heatmap(
        matrix, label=f"Confusion of {model.name}", rows=classes, columns=classes, counts=True
    )
    words = f"Confusion of {model.name}: rows are true classes, columns predictions. Hardest class: "
    return [figure(picture, f"{words}{classes[worst]}, {right[worst]:.1%} right.")]


# ---- The noise of a release: relevance maps, allocation over features, signal against noise.


MAPS = {
    "relevance": (
        "Private average relevance of each feature (the paper's Fig. 3)",
        "Darker: the feature matters more to the output. The values are noisy.",
    ),
    "budget_ratios": (
        "Budget ratio of each feature (beta, Eq. 16)",
        "Darker: the feature has a larger share of the budget, and so less noise.",
    ),
}


def relevance_maps(subject: Subject) -> Section | None:
    """Show the private relevance of each feature, and the budget ratios that follow from it."""
    if subject.release is None:
        return None
    if has_columns(subject.release):
        caption = "Share of each column in what moves the model's predictions, from the release alone."
        shares = dict(sorted(relevance(subject.release).items(), key=lambda item: -item[1]))
        bars = drawing.bars(
            list(shares), [100 * v for v in shares.values()], label="Relevance of each column", unit="%"
        )
        return Section("relevance", "Relevance of columns", figure(bars, caption))
    maps = {name: subject.release.tensors[name].numpy() for name in MAPS if name in subject.release.tensors}
    shape = subject.certificate.domain.shape
    parts = [_map(name, values, shape) for name, values in maps.items() if len(shape) <= 3]
    return Section("relevance", "Relevance maps", join(parts)) if parts else None


def as_picture(values: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Relevances of one record as rows and columns: channels are averaged, a vector is one row."""
    array = np.asarray(values, dtype=np.float64).reshape(shape)
    return array[None] if array.ndim == 1 else array if array.ndim == 2 else array.mean(axis=0)


def _map(name: str, values: Any, shape: tuple[int, ...]) -> Markup:
    label, caption = MAPS[name]
    return figure(drawing.heatmap(as_picture(values, shape), label=label), f"{label}. {caption}")


def synthetic(subject: Subject) -> Section | None:
    """Say that drawn records are synthetic; beside real ones, if they were given, say how near they are."""
    facts, found = subject.certificate.settings.get("synthetic"), subject.comparison
    if facts is None:
        return None
    words = [
        paragraph(
            "Records drawn from this release are synthetic: they have its noisy counts of single columns and "
            f"of {len(facts['pairs'])} pairs of columns, and a label that its model predicts. They say "
            "nothing of small groups, and significance tests on them are wrong."
        )
    ]
    if found is not None:
        rows = [(name, f"{gap:.3f}") for name, gap in (*found.columns.items(), *found.pairs.items())]
        words.append(
            paragraph(
                f"{found.drawn:,} drawn records beside {found.real:,} real ones. This comparison is a "
                "statistic of the real records and is not private."
            )
        )
        if found.accuracy:
            words.append(
                paragraph(
                    f"Gradient boosting that was trained on drawn records is right for "
                    f"{found.accuracy['drawn']:.1%} of the real ones; trained on real ones, for "
                    f"{found.accuracy['real']:.1%}."
                )
            )
        words.append(table(("column or pair", "total variation, drawn to real"), rows))
    return Section("synthetic", "Synthetic records", join(words))


def allocation(subject: Subject) -> Section | None:
    """Show the amount of noise, and where it is, against the signal."""
    if subject.release is None:
        return None
    if subject.certificate.kind == "regression":
        return _regression_noise(subject.release)
    if subject.certificate.kind == "moments":
        return _moment_noise(subject.release.moments(), subject.certificate)
    ratios = subject.release.tensors.get("budget_ratios")
    return None if ratios is None else _record_noise(np.sort(ratios.numpy())[::-1], subject.certificate)


def _regression_noise(release: Release) -> Section:
    """Show the released distribution of a numeric target, with the scale of its noise."""
    settings, domain = release.certificate.settings, release.certificate.domain
    assert domain.target is not None
    counts = release.tensors["target"].double().numpy() / float(settings["target_unit"])
    low, high = domain.target
    names = [f"{low + (high - low) * i / (len(counts) - 1):.4g}" for i in range(len(counts))]
    sd = float(settings["sd_target"]) / float(settings["target_unit"])
    picture = drawing.bars(
        names,
        np.maximum(counts, 0.0).tolist(),
        spread=[2 * sd] * len(counts),
        label="Noisy counts of the target",
    )
    caption = (
        f"Released counts of the target's piecewise-linear bins, with two standard deviations of their noise "
        f"({sd:.3g} each). They give the mean and the spread that the target is scaled by."
    )
    return Section("allocation", "Where the noise is", figure(picture, caption))


def _moment_noise(moments: Moments, certificate: Certificate) -> Section:
    sums, sd = moments.sums.numpy(), moments.sd_sums.numpy()
    places = list(range(1, len(sd) + 1))
    spread = sums.var(axis=0, ddof=1) if len(sums) > 1 else np.zeros_like(sd)
    signal = np.sqrt(np.maximum(spread - sd**2, 0.0))
    top = float(max(signal.max(), sd.max()) * 1.05)
    x, y = (
        drawing.horizontal(1, max(2, len(sd)), "coordinate"),
        drawing.vertical(0, top, "size in a class sum"),
    )
    marks = drawing.curve(x, y, places, signal.tolist(), "a"), drawing.curve(x, y, places, sd.tolist(), "b")
    clear = int((signal > sd).sum())
    first = figure(
        join(
            [
                drawing.plot(x, y, *marks, label="Signal and noise of each released coordinate"),
                drawing.legend(("a", "what differs between classes"), ("b", "sd of the noise")),
            ]
        ),
        f"Class sums of {len(sd)} features: differences between classes (debiased) against the noise. In "
        f"{clear} of them the differences are larger than the noise; a classifier shrinks the others.",
    )
    same = np.ptp(sd) <= 1e-9 * sd.max()
    parts = [
        first,
        paragraph(f"Noise over the features: {'identical' if same else 'adaptive'}."),
    ]
    if len(certificate.domain.classes) <= MOST_CLASSES:
        parts.append(_counts(moments, certificate))
    return Section("allocation", "Where the noise is", join(parts))


def _counts(moments: Moments, certificate: Certificate) -> Markup:
    spread = [2 * moments.sd_counts] * len(certificate.domain.classes)
    picture = drawing.bars(
        certificate.domain.classes, moments.counts.tolist(), spread=spread, label="Noisy class counts"
    )
    return figure(
        picture,
        f"Released class counts with two standard deviations of their noise "
        f"({moments.sd_counts:.3g} each). The true counts are not known here.",
    )


def _record_noise(ratios: Any, certificate: Certificate) -> Section:
    s = certificate.settings
    x = drawing.horizontal(1, max(2, len(ratios)), "feature, by its share of the budget")
    y = drawing.vertical(0, float(ratios.max()) * 1.1, "budget ratio")
    places = list(range(1, len(ratios) + 1))
    marks = (
        drawing.curve(x, y, places, [1.0] * len(ratios), "quiet"),
        drawing.curve(x, y, places, ratios.tolist(), "a"),
    )
    withheld = int((ratios == 0).sum())
    caption = (
        f"Allocation over {len(ratios)} features: {s.get('allocation')}; {withheld} are withheld. On the "
        f"dashed line all would be alike (ILM). Noise on a feature has scale Delta_h0 / (|L| beta eps2), "
        f"with Delta_h0 = {s.get('delta_h0')} ({s.get('delta_h0_rule')}), |L| = {s.get('batch_size')}, "
        f"eps2 = {s.get('epsilon2')}."
    )
    picture = drawing.plot(x, y, *marks, label="Budget ratios of the features, largest first")
    return Section("allocation", "Where the noise is", figure(picture, caption))


# ---- Results of attacks: lower bounds next to proved bounds, and ROC curves.

MOST_ROWS = 12  # a longer table is collapsed
MOST_BARS = 12
MOST_CURVES = 4
STYLES = {"VIOLATED": "bad", "NOT CAUGHT": "bad", "above claim": "warn"}

Finding = Mapping[str, Any]


def audit(found: Mapping[str, Any] | None) -> Section | None:
    """Show lower bounds by attack next to proved upper bounds."""
    findings = [f for f in (found or {}).get("findings", []) if isinstance(f, Mapping)]
    if not findings:
        return None
    words = paragraph(
        "An attack gives a lower bound on epsilon with stated confidence. It must never lie above what is "
        "proved. Above the claim means that the attack found more than the method's authors claim, but no "
        "more than is proved. Controls are broken on purpose and must be caught."
    )
    parts = [words, _summary(findings), _rows(findings), *_bounds(findings), *_curves(findings)]
    return Section("audit", "Audit", join(parts))


def _summary(findings: Sequence[Finding]) -> Markup:
    """Count the verdicts, of the product and of the controls."""
    parts: list[object] = []
    for control, name in ((False, "attack{} on the product"), (True, "control{}")):
        verdicts = Counter(str(f.get("verdict", "")) for f in findings if bool(f.get("control")) is control)
        for verdict, count in verdicts.most_common():
            label = tag(
                "span", "caught" if control and verdict == "violated" else verdict, class_=_style(verdict)
            )
            parts += [f"{count} {name.format('s' * (count != 1))}: ", label, ". "]
    return paragraph(*parts)


def _rows(findings: Sequence[Finding]) -> Markup:
    rows = [
        (
            f.get("mechanism", "?"),
            f.get("neighbours", ""),
            f.get("attack", ""),
            _epsilon(f.get("epsilon_proved")) + (f" (mu {f['mu']:.4g})" if _number(f.get("mu")) else ""),
            _epsilon(f.get("epsilon_lower"), "unbounded"),
            f.get("runs", ""),
            tag("span", f.get("verdict", ""), class_=_style(str(f.get("verdict", "")))),
        )
        for f in findings
    ]
    heading = ("mechanism", "relation", "attack", "proved", "lower bound found", "runs", "verdict")
    shown = table(heading, rows)
    if len(rows) <= MOST_ROWS:
        return shown
    return tag("details", tag("summary", f"All {len(rows)} findings"), shown)


def _style(verdict: str) -> str:
    return STYLES.get(verdict, "good")


def _tightness(finding: Finding) -> float:
    """Return the share of the proved epsilon that the attack reached; below zero where there is none."""
    proved, lower = finding.get("epsilon_proved"), finding.get("epsilon_lower")
    if not (_number(proved) and _number(lower)):
        return -1.0
    return float(lower or 0) / max(float(proved or 0), 1e-12)


def _bounds(findings: Sequence[Finding]) -> list[Markup]:
    """Show one pair of bars a mechanism: the proved epsilon and its tightest empirical lower bound."""
    tried = [f for f in findings if f.get("attack") == "distinguishing" and not f.get("control")] or list(
        findings
    )
    best: dict[str, Finding] = {}
    for f in sorted(tried, key=_tightness):
        best[str(f.get("mechanism", "?"))] = f
    tightest = [f for f in reversed(best.values()) if _tightness(f) >= 0][:MOST_BARS]
    if not tightest:
        return []
    names = [str(f.get("mechanism", "?")) if part == 0 else "" for f in tightest for part in range(2)]
    values = [float(f[key]) for f in tightest for key in ("epsilon_lower", "epsilon_proved")]
    styles = ["b", "a"] * len(tightest)
    picture = drawing.bars(names, values, label="Lower bounds by attack and proved epsilons", styles=styles)
    named = drawing.legend(("b", "proved by attack, from below"), ("a", "proved by theorem, from above"))
    return [figure(join([picture, named]), "The truth lies between each pair.")]


def _curves(findings: Sequence[Finding]) -> list[Markup]:
    parts: list[Markup] = []
    for f in sorted(findings, key=_tightness, reverse=True):
        points = sorted((float(p[0]), float(p[1])) for p in f.get("curve", []) if len(p) == 2)
        if not points or len(parts) == MOST_CURVES:
            continue
        x, y = drawing.horizontal(0, 1, "false alarms"), drawing.vertical(0, 1, "true alarms")
        marks = [drawing.curve(x, y, [0, 1], [0, 1], "quiet")]
        if _number(f.get("epsilon_proved")):
            rates = [i / 200 for i in range(201)]
            bound = TradeOff(epsilon=float(f["epsilon_proved"]), delta=float(f.get("delta", 0)))
            if _number(f.get("mu")):
                bound = TradeOff(mu=float(f["mu"]))
            most = [bound.detection(r) for r in rates]
            marks.insert(0, drawing.area(x, y, rates, rates, most, "a"))
        marks.append(drawing.curve(x, y, [p[0] for p in points], [p[1] for p in points], "b"))
        label = f"Attack on {f.get('mechanism', '?')} ({f.get('attack', '')})"
        caption = f"{label}: but for sampling error, it must stay inside what the proof allows, shaded."
        parts.append(figure(drawing.plot(x, y, *marks, label=label), caption))
    return parts


def _epsilon(value: object, otherwise: str = "none proved") -> str:
    return f"{float(value):.4g}" if isinstance(value, int | float) else otherwise


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


# ---- How to cite, verify and repeat a release.

BIBTEX = """@inproceedings{phan2017adaptive,
  title     = {Adaptive {L}aplace Mechanism: Differential Privacy Preservation in Deep Learning},
  author    = {Phan, NhatHai and Wu, Xintao and Hu, Han and Dou, Dejing},
  booktitle = {IEEE International Conference on Data Mining (ICDM)},
  year      = {2017},
  note      = {arXiv:1709.05750}
}"""


def rerun(certificate: Certificate, folder: str, signature: Signature | None = None) -> Section:
    """Show the commands, the versions, the digest and the signer."""
    commands = f"adlm verify {shlex.quote(folder)}\n{rerun_command(certificate)}"
    facts = [
        ("certificate digest", tag("code", certificate.digest)),
        *_signed(signature),
        ("features", _features(certificate)),
        *_encoder(certificate),
        *((f"{name} version", version) for name, version in sorted(certificate.software.items())),
        *((name, _value(value)) for name, value in sorted(certificate.settings.items()) if value is not None),
    ]
    body = join(
        [
            paragraph(
                "Check this release, or make another one with the same settings. A new release draws new "
                "noise and spends again: its tensors will differ, its certificate only in their hashes."
            ),
            tag("pre", commands),
            paragraph(
                "Quote the digest when you cite this release; it covers the charges and every tensor. "
                "Digests show that nothing was altered since they were made, a signature shows who made "
                "them, and neither shows that noise was drawn."
            ),
            table(("fact", "value"), facts),
            tag("h3", "The paper of Algorithm 1, which adlm.paper runs"),
            tag("pre", BIBTEX),
        ]
    )
    return Section("cite", "Cite, check and rerun", body)


def rerun_command(certificate: Certificate) -> str:
    """Return the command that makes another release with the same settings."""
    command = "release-records" if certificate.kind == "records" else "release"
    guess = " --size GUESS" if certificate.settings.get("n") is None else ""  # n is private
    return (
        f"adlm {command} {_records(certificate)} {_requested_options(certificate)} "
        f"--neighbours {certificate.totals.neighbours}{guess} --out again"
    )


def _signed(signature: Signature | None) -> list[tuple[str, object]]:
    if signature is None:
        return [("signed by", "nobody")]
    value = tag("code", signature.value)
    return [("signed by", tag("code", signature.signer)), ("signature (Ed25519)", value)]


def _records(certificate: Certificate) -> str:
    """The command-line options of the records: a table's file, or a name."""
    spec = certificate.features.get("spec")
    of_table = isinstance(spec, Mapping) and spec.get("name") in TABLES
    if not of_table and certificate.settings.get("input") is not None:
        return "FILES --domain DOMAIN.toml"
    return "TABLE.csv --domain DOMAIN.toml" if of_table else "--data NAME"


def _requested_options(certificate: Certificate) -> str:
    """The options of the release, or its budget where they were not recorded."""
    totals, settings = certificate.totals, certificate.settings
    spent = totals.epsilon_proved if certificate.kind != "records" else totals.epsilon_claimed
    options = {"epsilon": show(spent)}
    if certificate.kind != "records":
        options["delta"] = f"{float(totals.delta):g}"
    requested = settings.get("asked")
    if isinstance(requested, Mapping):
        options |= {name: str(value) for name, value in requested.items() if value is not None}
    plan = settings.get("plan")
    if isinstance(plan, Mapping) and plan.get("fourier"):
        options["fourier"] = str(plan["fourier"])
    return " ".join(f"--{name} {shlex.quote(value)}" for name, value in options.items())


def _features(certificate: Certificate) -> object:
    spec = certificate.features.get("spec")
    if not isinstance(spec, dict):
        return "the records themselves"
    fingerprint = str(certificate.features.get("fingerprint", ""))
    return join([f"{spec.get('name', '?')}, fingerprint ", tag("code", fingerprint[:16])])


def _encoder(certificate: Certificate) -> list[tuple[str, object]]:
    """Show the declared origin of user-supplied features, which cannot be verified."""
    entry = certificate.features
    if "provenance" not in entry:
        return []
    spec = entry["spec"]
    while "of" in spec:
        spec = spec["of"]
    name = str(spec.get("file") or spec.get("encoder") or spec.get("module") or spec.get("name"))
    hashed = f", SHA-256 {spec['sha256']}" if "sha256" in spec else ""
    trained = entry.get("trained_on") or "not said"
    declared = (
        f"{name}{hashed}; declared {entry['provenance']}; declared to have been trained on: {trained}. "
        "Nothing in a file shows what it was trained on: this rests on the word of whoever made the release."
    )
    return [("encoder", declared)]


def _value(value: object) -> str:
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 300 else written[:300] + "…"
