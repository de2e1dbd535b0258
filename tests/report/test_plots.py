"""A plot file is a whole SVG, and its marks are where their values are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from adlm.errors import UserError
from adlm.report.html import accuracy_over_epsilon, logarithmic

SVG = "{http://www.w3.org/2000/svg}"


def test_accuracy_rises_over_epsilons_that_stand_at_equal_factors(tmp_path: Path) -> None:
    accuracy_over_epsilon(tmp_path / "a.svg", [(4, 0.9, 0.01), (1, 0.5, 0.02), (2, 0.8, 0.01)], "forecast")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    assert [x for x, _ in dots] == sorted(x for x, _ in dots)
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.1)
    assert dots[0][1] > dots[1][1] > dots[2][1]
    assert any("accuracy, % (forecast)" in (t.text or "") for t in root.iter(f"{SVG}text"))
    assert root.find(f"{SVG}style") is not None


def test_one_epsilon_can_be_drawn_and_none_cannot(tmp_path: Path) -> None:
    accuracy_over_epsilon(tmp_path / "a.svg", [(1, 0.5, 0.0)], "measured")
    ElementTree.parse(tmp_path / "a.svg")
    with pytest.raises(UserError, match="nothing to draw"):
        accuracy_over_epsilon(tmp_path / "b.svg", [], "measured")
    with pytest.raises(UserError, match=r"an \.svg file, got 'b\.png'"):
        accuracy_over_epsilon(tmp_path / "b.png", [(1, 0.5, 0.0)], "measured")


def test_a_logarithmic_axis_has_its_geometric_mean_in_the_middle() -> None:
    axis = logarithmic(0.1, 10, "", ())
    assert axis.at(1) == pytest.approx((axis.start + axis.stop) / 2, abs=0.01)
