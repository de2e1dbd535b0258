"""Settings that a release does not have are refused in a sentence, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from adlm import UserError, privatise
from adlm.analyst.search import search_on_release
from adlm.public import datasets


def test_a_setting_that_a_release_does_not_have_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n'
        '[columns.ill]\nkind = "label"\nclasses = ["no", "yes"]\n'
    )
    lines = [f"{age},{'yes' if age > 50 else 'no'}" for age in range(100)]
    (tmp_path / "t.csv").write_text("\n".join(["age,ill", *lines]) + "\n")
    table = privatise(tmp_path / "t.csv", domain=tmp_path / "t.toml", epsilon=2)
    with pytest.raises(
        UserError, match=r"no setting 'network' for a table's release; it has stages, noise_penalty"
    ):
        search_on_release(table, [{"stages": 1}, {"network": "mlp"}], lambda _: 0.0)
    digits = datasets.load("digits", "train")
    images = privatise(digits.x[:200], digits.y[:200], domain=digits.domain, epsilon=2, k=8)
    with pytest.raises(UserError, match="no setting 'stages' for this release; it has network, plan"):
        search_on_release(images, [{"stages": 1}], lambda _: 0.0)
    found = search_on_release(images, [{}, {"network": "mlp", "draws": 200}], lambda _: 0.0)
    assert len(found.models) == 2
