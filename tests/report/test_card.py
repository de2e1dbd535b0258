"""The model card and what a file says of its privacy by itself: epsilon can be read off each of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import onnx
import pyarrow as pa
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pyarrow import parquet
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from tests.cli.commands import figures, run, runner
from tests.declared import AGE, column
from tests.report.artefacts import CLASSES, EVALUATION, model, moments, noisy_records

from adlm import Ledger, Model, Release, UserError, fit
from adlm.cli.app import app
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.export.onnx import export_onnx
from adlm.export.verification import verify
from adlm.mechanism.privatise import privatise
from adlm.privacy.certificate import SEEDED, privacy_header, unit_of
from adlm.report import write_report
from adlm.report.card import model_card
from adlm.report.subject import find
from adlm.runtime.artefact import canonical


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed model of a signed release that was seeded."""
    key, place = Ed25519PrivateKey.generate(), tmp_path_factory.mktemp("card")
    release = moments(seeded=True, delta=Fraction(1, 10**5)).signed(key)
    made = model(release)
    signed = Model(
        made.certificate, made.head, made.architecture, made.features, made.training, release.signature
    )
    release.save(place / "R")
    signed.save(place / "M", key=key)
    export_onnx(signed, place / "m.onnx", key=key)
    return place


def head_of(text: str) -> dict[str, Any]:
    _, head, _ = text.split("---\n", 2)
    found = yaml.safe_load(head)
    assert isinstance(found, dict)
    return found


def test_the_tag_of_the_paper_is_for_adaptive_laplace_noise_alone(folder: Path) -> None:
    subject = find(folder / "M")
    adaptive = {"asked": {"allocation": "linear"}}
    for certificate, settings, expected in (
        (moments().certificate, {}, False),
        (moments().certificate, adaptive, True),
        (subject.certificate, adaptive, False),  # Gaussian
    ):
        changed = replace(certificate, settings={**certificate.settings, **settings})
        tags = head_of(model_card(replace(subject, certificate=changed)))["tags"]
        assert ("adaptive-laplace-mechanism" in tags) is expected


def test_the_head_is_yaml_that_a_hub_reads(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "M", tmp_path / "M")
    (tmp_path / "M" / "evaluation.json").write_bytes(canonical(EVALUATION))
    head = head_of(model_card(find(tmp_path / "M"), licence="mit"))
    assert head["library_name"] == "adlm"
    assert head["pipeline_tag"] == "image-classification"
    assert head["license"] == "mit"
    totals = Release.load(folder / "R").certificate.totals
    assert head["privacy"]["epsilon_proved"] == float(totals.epsilon_proved)
    assert head["privacy"]["delta"] == 1e-5
    assert head["privacy"]["relation"] == "replace-one"
    assert head["privacy"]["unit"] == "record"
    assert head["privacy"]["stamps"] == [SEEDED]
    (result,) = head["model-index"][0]["results"]
    assert {m["type"]: m["value"] for m in result["metrics"]} == {
        "accuracy": 0.875,
        "balanced_accuracy": 0.86,
    }


def test_the_card_says_claimed_and_proved_stamps_and_who_signed(folder: Path) -> None:
    subject = find(folder / "M")
    text = model_card(subject)
    assert subject.signature is not None
    for words in ("## Intended use", "## Data domain", "## Guarantee", "## Limits", "Not measured.", SEEDED,
                  subject.certificate.digest, subject.signature.signer, "no pickle",
                  "| epsilon | delta |"):  # fmt: skip
        assert words in text
    assert "<script>" not in text
    assert len(CLASSES) == 3


def test_a_card_without_a_proof_says_so(tmp_path: Path) -> None:
    model(noisy_records()).save(tmp_path / "M")
    text = model_card(find(tmp_path / "M"))
    assert "**No epsilon is proved**" in text
    assert "nothing here should be read as protection" in text
    assert head_of(text)["privacy"]["epsilon_proved"] is None
    assert "The release is not signed" in text


def test_the_command_writes_a_card_and_leaves_other_files_alone(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "M", tmp_path / "M")
    assert figures("card", tmp_path / "M")["measured"] is False
    card = tmp_path / "M" / "README.md"
    assert card.read_text().startswith("---\nlibrary_name: adlm\n")
    assert verify(tmp_path / "M").kind == "model"  # a card in the folder is no alteration of the model
    kept = tmp_path / "notes.md"
    kept.write_text("mine")
    with pytest.raises(UserError, match="is no card of adlm's"):
        run("card", tmp_path / "M", "--out", kept)
    assert kept.read_text() == "mine"
    of_a_file = {key: value for key, value in EVALUATION.items() if key != "split"} | {"of": "/home/x/h.csv"}
    (tmp_path / "M" / "evaluation.json").write_text(json.dumps(of_a_file))
    assert "no epsilon covers them" in runner.invoke(app, ["card", str(tmp_path / "M")]).stderr
    assert "h.csv" in card.read_text()
    assert "/home/x" not in card.read_text()
    with pytest.raises(UserError, match="holds 0"):
        run("card", folder / "R")


@pytest.mark.parametrize(
    ("records", "unit"), [(1, "person, of at most 1 record"), (2, "person, of at most 2 records")]
)
def test_vectors_of_persons_have_a_person_as_their_unit(records: int, unit: str, tmp_path: Path) -> None:
    rows = {"v": [[0.1, 0.2]] * 40, "label": ["a", "b"] * 20, "who": [f"p{i}" for i in range(40)]}
    parquet.write_table(pa.table(rows), tmp_path / "a.parquet")
    label, person = Column("label", "label", classes=("a", "b")), Column("who", "person", records=records)
    declared = TableDomain((Column("v", "vector", size=2, norm=1.0), label, person))
    made = privatise(tmp_path / "a.parquet", domain=declared, epsilon=1, size=40)
    assert unit_of(made.certificate) == unit


@pytest.mark.parametrize(
    ("neighbours", "records"), [("replace-one", 1), ("replace-one", 8), ("add-remove", 8)]
)
def test_every_summary_of_a_release_of_persons_speaks_of_persons(
    records: int, neighbours: str, tmp_path: Path
) -> None:
    rows = [f"{i % 90},p{i},{'yes' if i % 3 else 'no'}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["age,id,ill", *rows]) + "\n")
    declared = AGE + column("id", "person", records=records)
    table = TableDomain.from_toml(f'neighbours = "{neighbours}"\n' + declared)
    ledger = Ledger(tmp_path / "ledger")
    made = privatise(tmp_path / "t.csv", domain=table, epsilon=1, size=60, ledger=ledger)
    made.save(tmp_path / "R")
    fit(made).save(tmp_path / "M")
    most = f"at most {records} record{'s' * (records > 1)}"
    assert unit_of(made.certificate) == f"person, of {most}"
    assert header(tmp_path / "R" / "release.safetensors")["unit"] == f"person, of {most}"
    unit = f"person ({most})"
    report = write_report(tmp_path / "R", tmp_path / "report.html").read_text()
    card, shown = model_card(find(tmp_path / "M")), run("verify", tmp_path / "R")
    for text in (report, card, shown, made._repr_html_(), made.certificate._repr_html_()):
        assert unit in text
        assert "for one record" not in text
    for text in (report, card):
        assert "all records but those of one person" in text
        public = neighbours == "replace-one" and records == 1
        assert ("how many records there are is public" in text) == public
    if records > 1:  # a charge for a person with one record is one for a record
        assert f"per {unit}" in run("ledger", "show", tmp_path / "ledger")
        assert f"per <strong>{unit}" in ledger._repr_html_()


def test_a_card_does_not_promise_for_values_what_holds_for_presence(tmp_path: Path) -> None:
    """Two values of a record are two steps apart under add-remove: epsilon 2 bounds the guess, not 1."""
    release = moments(neighbours="add-remove", delta=Fraction(1, 10**5))
    model(release).save(tmp_path / "M")
    text = model_card(find(tmp_path / "M"))
    assert "suspects that it is among the records" in text
    assert "Telling two values apart is removing one and adding the other" in text
    assert "equally likely values" not in text
    assert f"| {release.certificate.totals.mu} |" in text
    assert head_of(text)["privacy"]["mu"] == pytest.approx(float(release.certificate.totals.mu), abs=1e-4)


def header(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="numpy") as file:
        found = json.loads(file.metadata()["adlm"])
    assert isinstance(found, dict)
    return found


def test_epsilon_can_be_read_off_every_file(folder: Path) -> None:
    certificate = Release.load(folder / "R").certificate
    expected = privacy_header(certificate, certificate.stamps)
    assert {"epsilon", "delta", "relation", "unit", "release_digest", "stamps"} <= set(expected)
    of_release, of_model = (
        header(folder / "R" / "release.safetensors"),
        header(folder / "M" / "model.safetensors"),
    )
    assert expected.items() <= of_release.items()
    assert expected.items() <= of_model.items()
    assert of_release["release_signature"] == of_model["release_signature"]
    assert of_model["signature"]["statement"]["kind"] == "model"
    entries = {e.key: e.value for e in onnx.load(folder / "m.onnx").metadata_props}
    assert expected == {key: json.loads(entries[f"adlm.{key}"]) for key in expected}
    assert {"adlm.signature", "adlm.release_signature"} <= set(entries)


@pytest.mark.parametrize("place", ["R/release.safetensors", "M/model.safetensors"])
@pytest.mark.parametrize("change", [{"epsilon": 0.1}, {"stamps": []}, {"more": 1}, None])
def test_a_header_that_says_something_else_is_refused(
    place: str, change: dict[str, Any] | None, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / place
    told = header(path) | (change or {})
    entries = {"adlm": json.dumps(told, sort_keys=True)} if change else {"other": "x"}
    tensors = load_tensors(path.read_bytes())
    path.write_bytes(save_tensors({name: tensors[name] for name in sorted(tensors)}, entries))
    with pytest.raises(UserError, match=r"the header of .* was altered"):
        verify(path.parent)


def test_an_onnx_file_that_states_another_unit_is_refused(folder: Path) -> None:
    unsigned = Model.load(folder / "M")
    export_onnx(unsigned, folder / "u.onnx")
    assert verify(folder / "u.onnx").kind == "onnx"
    for key, value in (("unit", "nobody"), ("epsilon", 0.001), ("release_digest", "0")):
        graph = onnx.load(folder / "u.onnx")
        for entry in graph.metadata_props:
            if entry.key == f"adlm.{key}":
                entry.value = json.dumps(value)
        onnx.save(graph, folder / "v.onnx")
        with pytest.raises(UserError, match=f"states another {key}"):
            verify(folder / "v.onnx")


def test_files_without_a_header_are_still_read(folder: Path) -> None:
    shutil.copytree(folder / "R", folder / "old")
    path = folder / "old" / "release.safetensors"
    tensors = load_tensors(path.read_bytes())
    path.write_bytes(save_tensors({name: tensors[name] for name in sorted(tensors)}))
    assert verify(folder / "old").kind == "release"
