"""What values show in a notebook: guarantee and warnings at once, the rest folded, nothing from outside."""

from __future__ import annotations

import re
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.artefacts import model, moments, noisy_records

from adlm import AdLMClassifier, Domain
from adlm.features.base import Identity
from adlm.mechanism.planner import plan_class_sums
from adlm.privacy.accounting import Budget, show
from adlm.privacy.certificate import SEEDED, Part, box
from adlm.privacy.ledger import Ledger
from sklearn import config_context


class _Balance(HTMLParser):
    """Refuses elements that are not closed in order."""

    VOID = frozenset({"br", "meta", "path", "rect", "line", "circle", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def sound(text: str) -> str:
    """Check that HTML is closed in order and asks for nothing from outside; return it."""
    parser = _Balance()
    parser.feed(text)
    assert parser.open == []
    assert "<script" not in text
    assert not re.search(r"<[^>]*(src|href)\s*=|url\(|@import", text)
    return text


def test_a_release_a_model_and_a_certificate_show_their_guarantee_and_stamps() -> None:
    release = moments(seeded=True, delta=Fraction(1, 10**5))
    for value in (release, model(release), release.certificate):
        text = sound(value._repr_html_())
        assert "epsilon proved <strong>2</strong>" in text
        assert "delta <strong>1e-05</strong>" in text
        assert f'<b class="adlm-warn">{SEEDED}</b>' in text
        assert text.count("<details>") >= 2
        assert text.index(SEEDED) < text.index("<details>")
    assert "&lt;script&gt;x()&lt;/script&gt;" in model(release)._repr_html_()
    assert "none proved" in sound(noisy_records()._repr_html_())


def test_a_plan_shows_its_reasons() -> None:
    plan = plan_class_sums(Identity((36,)), 1000, 3, 1.0, 0.0, "replace-one")
    text = sound(plan._repr_html_())
    assert f"features <strong>{plan.k}</strong>" in text
    assert all(reason.split(":")[0] in text for reason in plan.reasons)


def test_a_ledger_shows_what_is_left(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l", Budget(Fraction(3)))
    assert "left, pure <strong>3</strong>" in sound(book._repr_html_())
    book.charge(*moments().certificate.charges)
    text = sound(book._repr_html_())
    assert "epsilon proved <strong>2</strong>" in text
    assert "left, pure <strong>1</strong>" in text
    assert "no limit" in sound(Ledger()._repr_html_())


def test_a_fitted_estimator_shows_its_certificate_below_the_diagram() -> None:
    x, y = np.random.default_rng(0).random((100, 2)), np.arange(100) % 2
    made = AdLMClassifier(epsilon=3, domain=Domain((2,), 0, 1, ("a", "b")))
    assert "adlm-box" not in made._repr_html_()
    made.fit(x, y)
    proved = show(made.certificate_.totals.epsilon_proved)
    for text in (made._repr_html_(), made._repr_mimebundle_()["text/html"]):
        assert "AdLMClassifier" in text
        assert f"epsilon proved <strong>{proved}</strong>" in text
    with config_context(display="text"):
        assert "text/html" not in made._repr_mimebundle_()
        with pytest.raises(AttributeError):
            made._repr_html_()


def test_a_box_escapes_everything_and_cuts_long_tables() -> None:
    nasty = "<img src=x onerror=alert(1)>"
    text = sound(box(nasty, [(nasty, nasty)], [Part(nasty, (nasty,), [(nasty,)] * 60)], [nasty]))
    assert "<img" not in text
    assert "and 10 more" in text
    assert "<details>" not in box("t", [], [Part("empty", ("a",), [])])
