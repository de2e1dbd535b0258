"""Settings that a release does not have are refused in a sentence, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from adlm import Model, UserError, privatise
from adlm.data import datasets
from adlm.model.fit import search_on_release


def test_a_setting_that_a_release_does_not_have_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n'
        '[columns.ill]\nkind = "label"\nclasses = ["no", "yes"]\n'
    )
    lines = [f"{age},{'yes' if age > 50 else 'no'}" for age in range(100)]
    (tmp_path / "t.csv").write_text("\n".join(["age,ill", *lines]) + "\n")
    table = privatise(tmp_path / "t.csv", domain=tmp_path / "t.toml", epsilon=2)
    digits = datasets.load("digits", "train")
    images = privatise(digits.x[:200], digits.y[:200], domain=digits.domain, epsilon=2, k=8)
    scored: list[Model] = []

    def score(model: Model) -> float:
        scored.append(model)
        return 0.0

    for release in (table, images):
        with pytest.raises(UserError, match="no setting 'stages' for this release; it has network, plan"):
            search_on_release(release, [{}, {"stages": 1}], score)
        assert not scored
        found = search_on_release(release, [{}, {"network": "mlp", "draws": 200}], score)
        assert len(found.models) == len(scored) == 2
        scored.clear()
