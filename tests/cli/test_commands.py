"""The command line, from data to report: figures on standard output, mistakes in one sentence."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from tests.cli.commands import figures, refused, run, runner, typed
from tests.cli.commands import place as place
from tests.declared import column

import adlm.cli
from adlm import Ledger, Model, Release, TrainingConfig, UserError, __version__, fit
from adlm.cli.app import BENCHMARKS, COMMANDS, app
from adlm.paper import networks
from adlm.privacy.accounting import Charge
from adlm.privacy.certificate import SEEDED, WEAK_DELTA, WEAK_EPSILON

STABLE = {"epsilon_claimed", "epsilon_proved", "delta", "neighbours"}
SMALL = ("release", "--data", "digits", "--limit", "150", "--k", "8")
RECORDS = ("release-records", "--data", "digits", "--limit", "60", "--network", "mlp", "--batch-size", "20")


@pytest.fixture(scope="module")
def release(place: Path) -> Path:
    """A signed release of digits, with its key."""
    run("key", "new", "k")
    made = figures("release", "--data", "digits", "--epsilon", "4", "--sign", "k", "--out", "R")
    assert made["epsilon_proved"] == 4.0
    assert made["signed_by"] == figures("key", "show", "k.pub")["fingerprint"]
    assert set(made) >= STABLE
    return place / "R"


@pytest.fixture(scope="module")
def model(release: Path) -> Path:
    assert figures("train", release, "--sign", "k", "--out", "M")["epsilon_proved"] == 4.0
    run("export", "M", "--sign", "k", "--out", "m.onnx")
    return release.parent / "M"


@pytest.fixture(scope="module")
def table(place: Path) -> Path:
    """A release of the small table, whose noise is from a seed, and its model."""
    told = run("release", "t.csv", "--domain", "t.toml", "--epsilon", "9", "--seed", "2", "--out", "TR")
    assert re.search(r"epsilon 8\.9\d+, .*\(asked 9, used 8\.9\d+\)", told)
    run("train", "TR", "--out", "TM")
    return place / "TM"


# ---- Help and mistakes


def test_help_lists_every_command_in_the_order_of_use_with_an_example() -> None:
    listed = re.findall(r"^│ ([a-z-]+)", run("--help").partition(" Commands ")[2], re.MULTILINE)
    assert listed[-len(BENCHMARKS) :] == list(BENCHMARKS)
    assert listed[: -len(BENCHMARKS)] == list(dict.fromkeys(name.split()[0] for name, *_ in COMMANDS))
    for name, _, example in COMMANDS:
        shown = run(*name.split(), "--help")
        assert f"Example: {example}" in " ".join(shown.split())
        assert not re.search(r"<(bool|str|path|int|list)", shown)
        assert "With --json" not in shown
    assert run("--version").strip() == f"adlm {__version__}"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("adlm rel", {"release", "release-records"}),
        ("adlm evaluate --sp", {"--split"}),
        ("adlm ledger s", {"show"}),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, offered: set[str]) -> None:
    env = {"_ADLM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": f"{len(words.split()) - 1}"}
    assert set(runner.invoke(app, [], env=env, prog_name="adlm").stdout.split()) == offered


DIGITS, TABLE = ("release", "--data", "digits"), ("release", "t.csv", "--domain", "t.toml")
MISTAKES: list[tuple[tuple[str, ...], str]] = [
    ((*DIGITS, "--epsilon", "0"), "must be positive"),
    ((*DIGITS, "--epsilon", "nan"), "positive number"),
    ((*DIGITS, "--epsilon", "1e-12"), "epsilon must be at least 1e-09"),
    ((*DIGITS, "--delta", "2"), "below 1"),
    (("release", "--data", "nothing"), "no data set 'nothing'"),
    (("release",), "either a file"),
    ((*DIGITS, "--kind", "images"), "--kind must be model or synthetic"),
    ((*DIGITS, "--kind", "records"), "by adlm release-records"),
    ((*DIGITS, "--neighbours", "add-remove"), "is private"),
    (("release", "missing.csv"), "needs --domain"),
    ((*DIGITS, "--allocation", "foo"), "one of identical, linear"),
    ((*DIGITS, "--fourier", "3"), "--fourier is for tables from a file"),
    ((*DIGITS, "--domain", "t.toml"), "--domain is for a file or a folder"),
    ((*DIGITS, "--sign", "missing.key"), "cannot be read"),
    ((*TABLE, "--limit", "3"), "--limit is for --data"),
    ((*TABLE, "--cache"), "--cache is for --data"),
    ((*TABLE, "--fourier", "-1"), "an integer from 0"),
    ((*RECORDS, "--epsilon", "1e-12"), "epsilon must be at least 1e-09"),
    ((*RECORDS, "--allocation", "identical", "--relevance-network", "N"), "needs no relevances"),
    ((*RECORDS, "--trust", "k.pub"), "are for a --relevance-network"),
    ((*RECORDS, "--delta-h0", "many"), "counted, per-patch or a positive number"),
    ((*RECORDS, "--delta-h0", "-3"), "counted, per-patch or a positive number"),
    (("plan", "--data", "digits", "--fourier", "2"), "is for tables"),
    (("plan", "--data", "digits", "--epsilon", "x"), "positive number"),
    (("plan",), "either --data"),
    (("verify", "nowhere"), "is not a release"),
    (("train", "nowhere"), "is not a release"),
    (("evaluate", "nowhere", "--data", "digits"), "is not a model"),
    (("ledger", "show", "none"), "there is no ledger"),
    (("ledger", "show", "t.csv"), "is not an adlm ledger"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_is_one_sentence_and_nothing_is_charged_or_written(
    words: tuple[str, ...], message: str
) -> None:
    refused(message, *words)


@pytest.mark.parametrize(
    "words",
    [
        "release --data digits --limit -5",
        "plan --data digits --size 0",
        "experiment foo",
        "audit --runs 5",
        "train R --seed 99999999999999999999",
        "release --data digits --split 1,2,3",
        "release-records --data digits --fourier 3",
        "foo",
    ],
)
def test_what_the_command_line_does_not_take_is_one_sentence_too(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*words.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("adlm: ")
    assert len(said.err.strip().splitlines()) == 1


def test_a_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("experiment") == 2
    said = capsys.readouterr()
    assert "frontier-mnist" in said.out + said.err


LEFT_OPEN = """
import io, sys, time
import pyarrow as pa, pyarrow.csv as arrow
from adlm.cli import program

class Slow(io.RawIOBase):
    reads = 0
    def readable(self): return True
    def read(self, n=-1):
        self.reads += 1
        time.sleep(0.3 * (self.reads > 1))
        return b"1,2\\n" * 20000

stream = pa.PythonFile(Slow(), mode="r")
reader = arrow.open_csv(stream, read_options=arrow.ReadOptions(use_threads=False, block_size=1 << 16))
sys.argv = ["adlm", "verify", "nowhere"]
program()
"""


def test_a_process_ends_with_code_2_and_a_sentence_though_a_thread_still_reads(place: Path) -> None:
    """Arrow's reader goes on in a thread of its own; ending the interpreter under it aborts with 134."""
    command = [sys.executable, "-c", LEFT_OPEN]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("adlm: nowhere is not a release")
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_in_the_middle_of_an_import_ends_the_process_at_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An exception raised there can abort the process."""
    half = ModuleType("half_imported")
    half.__spec__ = SimpleNamespace(_initializing=True)  # type: ignore[assignment]

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(KeyboardInterrupt):
        adlm.cli._interrupted(signal.SIGINT, None)
    monkeypatch.setitem(sys.modules, "half_imported", half)
    with pytest.raises(SystemExit) as ended:
        adlm.cli._interrupted(signal.SIGINT, None)
    assert ended.value.code == 130
    assert capfd.readouterr().err == "adlm: stopped; nothing half-written is left behind\n"


# ---- From a release to a report


def test_a_model_is_measured_reported_and_verified(release: Path, model: Path) -> None:
    found = figures("evaluate", model, "--data", "digits", "--save", "M/evaluation.json")
    assert set(found) >= STABLE | {"accuracy", "balanced_accuracy", "auc", "calibration_error", "confusion"}
    assert 0.6 < found["accuracy"] < 1
    assert found["n"] == 360
    run("report", model, "--out", "report.html")
    assert "<html" in (model.parent / "report.html").read_text()
    assert "epsilon 4, neighbours replace-one" in run("verify", release)
    assert len(run("verify", release, "--quiet").splitlines()) == 1
    text = run("report", model, "--statement")
    assert "epsilon = 4." in text
    assert "at most 54.6" in text  # e^4
    entry = json.loads(run("card", model, "--registry"))
    assert entry["privacy_loss"]["epsilon"] == 4.0
    assert entry["dp_flavor"]["name"] == "pure DP"
    assert entry["dp_flavor"]["unprotected_quantities"] == ["the number of records"]
    assert repr(Release.load(release)) == "Release('moments', epsilon 4, neighbours replace-one, per record)"
    assert "\n" not in repr(Model.load(model))


@pytest.mark.parametrize("name", ["R", "M", "m.onnx"])
def test_a_signed_artefact_is_verified_by_its_key(name: str, model: Path) -> None:
    found = figures("verify", name, "--trust", "k.pub")
    assert found["whole"]
    assert found["trusted"]
    assert found["signed_by"] == found["release_signed_by"]
    said = run("verify", name)
    for words in (
        "origin unverified",
        "a key that was not given as trusted",
        "not proved: that noise was drawn",
        "anyone who can edit the files can recompute the digests",
    ):
        assert words in said
    run("key", "new", f"other-{name}")
    with pytest.raises(UserError, match="none of the keys that were given"):
        run("verify", name, "--trust", f"other-{name}.pub")


def test_a_model_is_not_a_release_and_a_release_not_a_model(release: Path, model: Path) -> None:
    refused("is a model, not a release", "train", model)
    refused("is a release, not a model", "evaluate", release, "--data", "digits")
    with pytest.raises(UserError, match="exists already"):
        run("train", release, "--network", "mlp", "--out", model)
    assert not model.with_name("M.checkpoint").exists()


def test_a_network_is_trained_on_the_release_alone(release: Path) -> None:
    words = ("train", release, "--network", "mlp", "--draws", "300", "--batch-size", "300")
    told = figures(*words, "--epochs", "2", "--out", "N")
    assert told["epochs"] == 2
    assert figures(*words, "--steps", "3", "--out", "F")["epsilon_proved"] == told["epsilon_proved"]
    certificates = [(folder / "certificate.json").read_bytes() for folder in (release, Path("N"))]
    assert certificates[0] == certificates[1]
    for rate, said in (("1e30", "the loss "), ("3e37", "not finite")):
        for epochs in ("1", "3"):
            failed = run(*words, "--epochs", epochs, "--schedule", "constant", "--learning-rate", rate,
                         "--quiet", "--out", f"rate-{rate}-{epochs}")  # fmt: skip
            assert "TRAINING FAILED" in failed
            assert said in failed
    for option in ("--epochs=5", "--learning-rate=0.1", "--resume"):
        refused(f"{option.split('=')[0]} is for networks", "train", release, option)


def test_a_network_of_another_shape_is_refused_before_it_is_trained(release: Path) -> None:
    from torch import nn

    made = Release.load(release)
    width = made.features().width
    takes = rf"must map \(n, {width}\) to \(n, 10\)"
    with pytest.raises(UserError, match=takes):
        fit(made, nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)), draws=100)
    with pytest.raises(UserError, match=rf"{takes}, and yours gives \(2, 3\)"):
        fit(made, nn.Linear(width, 3), draws=100)


def test_stamps_and_what_is_not_private_are_repeated_by_every_command(table: Path) -> None:
    for words in (["evaluate", "TM", "t.csv"], ["verify", "TM"], ["export", "TM", "--out", "s.onnx"],
                  ["predict", "TM", "t.csv", "--out", "stamped.csv"]):  # fmt: skip
        assert f"stamped: {SEEDED}" in run(*words, "--quiet")
    assert "figures measured on private records are not private" in run("evaluate", "TM", "t.csv")
    found = figures("evaluate", "TM", "t.csv")
    assert found["stamps"] == [SEEDED]
    assert "not private" in found["warning"]


def test_columns_are_kept_beside_the_predictions(table: Path) -> None:
    run("predict", "TM", "t.csv", "--keep", "id", "--out", "kept.csv")
    rows = Path("kept.csv").read_text().splitlines()
    assert rows[0] == "id,prediction,probability of no,probability of yes"
    assert [row.split(",")[0] for row in rows[1:]] == [f"p{age}" for age in range(100)]
    refused("has no column 'name'", "predict", "TM", "t.csv", "--keep", "name")


def test_a_plan_spends_nothing_and_is_the_one_that_the_release_follows(place: Path) -> None:
    from adlm.data import datasets
    from adlm.mechanism.privatise import privatise

    before = sorted(place.rglob("*.jsonl"))
    train = datasets.load("digits", "train")
    found = figures("plan", "--data", "digits", "--epsilon", "0.5,1")["plans"]
    assert [p["epsilon"] for p in found] == [0.5, 1.0]
    assert all(p["reasons"] and 0 <= p["accuracy"] <= 1 for p in found)
    made = privatise(train.x, train.y, domain=train.domain, epsilon=1).certificate.settings["plan"]
    assert {name: found[1][name] for name in made} == made
    planned = figures("plan", "--domain", "t.toml", "--size", "100", "--epsilon", "1", "--fourier", "3")
    assert planned["plans"][0]["fourier"] == 3
    assert planned["plans"][0]["noise_records"] > 0
    assert sorted(place.rglob("*.jsonl")) == before


def test_a_report_tells_how_to_make_such_a_release_again(place: Path) -> None:
    asked = ("--epsilon", "3", "--delta", "1e-5", "--k", "12", "--allocation", "linear")
    run("release", "--data", "digits", "--limit", "150", "--out", "asked", *asked)
    run("report", "asked", "--out", "asked.html")
    assert "--epsilon 3 --delta 1e-5 --allocation linear --k 12" in (place / "asked.html").read_text()


# ---- The paper's record release


def test_a_record_release_says_what_is_claimed_and_what_is_proved(place: Path) -> None:
    run("pretrain", "--data", "digits", "--epochs", "1", "--sign", "k", "--out", "P")
    words = (*RECORDS, "--relevance-network", "P")
    refused("none of the keys", *words)
    made = figures(*words, "--epsilon", "2", "--trust", "k.pub", "--delta-h0", "per-patch", "--sign", "k",
                   "--out", "RR")  # fmt: skip
    assert made["epsilon_claimed"] == pytest.approx(2.0)
    assert made["epsilon_proved"] != pytest.approx(2.0)
    assert figures("verify", "RR", "--trust", "k.pub")["trusted"]
    private = figures(*words, "--relevance-provenance", "private", "--out", "RP")
    assert private["epsilon_proved"] is None
    trained = figures("train", "RR", "--epochs", "1", "--batch-size", "20", "--out", "MR")
    assert trained["network"] == "mlp"  # the one that the release was made for
    assert figures("evaluate", "MR", "--data", "digits")["n"] == 360


@pytest.mark.parametrize(
    ("network", "batch_size"), [(None, 1800), ("paper-cifar10", 7200), ("mlp", 1800)], ids=str
)
def test_a_network_brings_its_own_batch_size(network: str | None, batch_size: int, place: Path) -> None:
    """The paper's, and at most the number of records."""
    assert networks.batch_size(network) == batch_size
    asked = [] if network is None else ["--network", network]
    run("release-records", "--allocation", "identical", "--data", "digits", "--limit", "30",
        "--delta-h0", "1e5", "--epsilon", "50", "--out", f"BS-{network}", *asked)  # fmt: skip
    settings = json.loads((place / f"BS-{network}" / "certificate.json").read_text())["settings"]
    assert settings["network"] == (network or "paper-mnist")
    assert settings["batch_size"] == 30
    assert (settings["delta_h0"], settings["delta_h0_rule"]) == ("100000", "given")


def test_a_relevance_network_for_other_records_is_refused(place: Path) -> None:
    from adlm.paper.relevance import make_public

    make_public((12,), name="mlp", classes=2, per_class=5, epochs=1).save(place / "other-shape")
    refused(r"is for records of shape \(12,\), and these have shape \(8, 8\)", *RECORDS,
            "--relevance-network", "other-shape", "--relevance-provenance", "public")  # fmt: skip


def test_a_table_can_be_released_record_by_record(place: Path) -> None:
    words = ("release-records", "t.csv", "--domain", "t.toml", "--batch-size", "20", "--epsilon", "4")
    assert figures(*words, "--allocation", "identical", "--out", "IR")["n"] == 100
    run("train", "IR", "--epochs", "1", "--batch-size", "20", "--out", "IM")
    assert figures("evaluate", "IM", "t.csv")["n"] == 100
    run("predict", "IM", "t.csv", "--out", "i.csv")
    assert len((place / "i.csv").read_text().splitlines()) == 101
    run("export", "IM", "--out", "i.onnx")
    run(*words, "--out", "IA")
    run("report", "IA", "--out", "ia.html")
    assert "Relevance of columns" in (place / "ia.html").read_text()  # added up over a column's numbers


@pytest.mark.parametrize(("relation", "most"), [("replace-one", 2), ("add-remove", 1)])
def test_several_records_of_a_person_cannot_be_released_record_by_record(
    place: Path, relation: str, most: int
) -> None:
    """Nor can one, where the number of records is private: a list of them shows it."""
    declared = f'neighbours = "{relation}"\n' + column("id", "person", records=most)
    (place / "p.toml").write_text(declared + (place / "t.toml").read_text())
    refused("2 of them|shows how many records", "release-records", "t.csv", "--domain", "p.toml",
            "--allocation", "identical", "--batch-size", "2")  # fmt: skip


# ---- Ledgers, budgets and what fails


def test_a_ledger_keeps_a_budget_across_commands_and_is_shown(place: Path) -> None:
    with pytest.raises(UserError):  # a command that failed does not fix a budget
        run("release", "t.csv", "--domain", "none.toml", "--budget", "5", "--ledger", "L", "--out", "X")
    words = (*SMALL, "--ledger", "L", "--epsilon", "0.3", "--delta", "1e-5")
    assert "in total" not in run(*words, "--budget", "1,1e-5", "--out", "L1", "--quiet")
    assert "charged in total: epsilon 0." in run(*words, "--out", "L2", "--quiet")
    text = run("ledger", "show", "L", "--delta", "1e-5")
    assert "class sums" in text
    assert "of a budget of epsilon 1, delta 1e-05, epsilon 0.8" in text
    found = figures("ledger", "show", "L", "--delta", "1e-5", "--neighbours", "replace-one")
    assert len(found["charges"]) >= 2
    assert found["budget"] == {"epsilon": 1.0, "delta": 1e-5}
    assert 0.8 < found["left"] < 0.9
    assert figures("ledger", "show", "L")["left"] < 0.6  # pure epsilon adds
    assert figures("ledger", "show", "L", "--neighbours", "add-remove")["left"] == 0
    with pytest.raises(UserError, match=r"under replace-one per record is epsilon 0\."):
        run(*SMALL, "--epsilon", "1", "--ledger", "L", "--out", "L3")
    assert not (place / "L3").exists()
    assert repr(Ledger(place / "L")).startswith("Ledger('")


def test_a_key_that_others_can_read_is_refused_before_anything_is_charged(place: Path) -> None:
    (place / "open.key").write_text("not a key")
    refused("can be read by others", *SMALL, "--sign", "open.key")


def test_nothing_is_charged_where_nothing_can_be_written(place: Path) -> None:
    (place / "file").write_text("not a folder")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(UserError, match="cannot be written"):
        run(*SMALL, "--out", "file/R", "--ledger", "room.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(UserError, match="nothing is left behind"):
            run(*SMALL, "--out", "full", "--ledger", "room.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (place / "full").exists()
    assert not (place / "room.jsonl").exists()


def test_a_charge_that_came_to_nothing_is_told_of(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is taken while the records are read: the release cannot be written, its charge stays."""
    save = Release.save

    def too_late(release: Release, folder: Path | str) -> None:
        Path(folder).mkdir()
        save(release, folder)

    monkeypatch.setattr(Release, "save", too_late)
    with pytest.raises(UserError, match=r"exists already.*the charge stays in taken\.jsonl"):
        run(*SMALL, "--out", "taken", "--ledger", "taken.jsonl")


def test_who_loses_a_race_for_the_last_of_a_budget_is_not_told_of_a_charge(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = Ledger.charge
    other = Charge("theirs", "laplace", "replace-one", Fraction(1), Fraction(1), "a theorem")

    def late(self: Ledger, *charges: Charge) -> None:
        if not self.charges:
            charge(Ledger(self.path, self.budget), other)
        charge(self, *charges)

    monkeypatch.setattr(Ledger, "charge", late)
    with pytest.raises(UserError, match="overspent") as caught:
        run(*SMALL, "--budget", "1", "--ledger", "race", "--out", "X")
    assert "the charge stays" not in str(caught.value)
    assert Ledger(place / "race").charges == (other,)


@pytest.mark.parametrize("after", [True, False])
def test_a_stopped_release_says_what_it_has_cost(
    after: bool, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from adlm.engine.passes import Records
    from adlm.privacy.noise import Source

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for kind, name in [(Source, "draw")] if after else [(Records, "total"), (Records, "keep")]:
        monkeypatch.setattr(kind, name, stop)
    ledger = f"stopped-{after}"
    assert typed(*SMALL, "--ledger", ledger, "--out", "stopped") == 130
    said = capsys.readouterr().err
    cost = f"epsilon 1, neighbours replace-one, per record stays in {ledger}"
    assert (cost if after else "nothing was charged") in said
    assert "stopped was not made" in said
    assert bool(Ledger(place / ledger).charges) == after
    monkeypatch.setattr(Release, "load", stop)
    assert typed("train", "R", "--out", "never") == 130
    assert capsys.readouterr().err.startswith("adlm: stopped")


@pytest.mark.parametrize(
    ("options", "words", "stamp"),
    [
        ("--epsilon 20", "epsilon 20 is large: the odds can change e^20 times", None),
        ("--epsilon 11 --delta 1e-5", "right up to 86.0% of the time", None),
        ("--epsilon 1000000000000", "stamped NOT PRIVATE", WEAK_EPSILON),
        ("--delta 0.5", "publishing a random record", WEAK_DELTA),
        ("--delta 0.007", "", WEAK_DELTA),  # one in 150 is 0.0067
        ("--delta 1e-5", "", None),
    ],
)
def test_a_budget_that_protects_nobody_is_warned_of_and_stamped(
    options: str, words: str, stamp: str | None
) -> None:
    done = runner.invoke(app, [*SMALL, *options.split(), "--json", "--out", f"W{options}"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["stamps"] == ([stamp] if stamp else [])
    assert words in done.stderr
    said = [line for line in done.stderr.splitlines() if "class" not in line]  # 15 records a class
    assert any("warning" in line for line in said) == bool(words)


def test_under_add_remove_a_limit_does_not_let_one_record_bring_in_another() -> None:
    made = figures(*SMALL, "--neighbours", "add-remove", "--size", "150", "--out", "AR")
    assert made["n"] is None
    assert figures(*SMALL, "--out", "RO")["n"] == 150


# ---- adlm demo and adlm doctor


def test_the_demo_shows_the_paper_beside_the_release(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a few records and steps: claimed and proved epsilon are the same ones."""
    from dataclasses import replace

    from adlm.data import datasets
    from adlm.model import training

    load = datasets.load

    def few(name: str, split: str) -> datasets.Records:
        found = load(name, split)
        return replace(found, x=found.x[:300], y=found.y[:300])

    monkeypatch.setattr(datasets, "load", few)
    monkeypatch.setattr(training.TrainingConfig, "total", lambda plan, examples: 3)
    found = figures("demo", "--out", "demo")
    assert [row["method"] for row in found["methods"]] == [
        "closed form", "network, 1 epoch", "network, 100 epochs", "AdLM, Algorithm 1", "ILM, identical noise",
    ]  # fmt: skip
    assert [row["epsilon_claimed"] for row in found["methods"]] == [2.0] * 5
    assert [row["epsilon_proved"] == 2.0 for row in found["methods"]] == [True, True, True, False, False]
    assert found["certificate_unchanged"]
    assert found["audit_violations"] == 0
    page = (place / "demo" / "report.html").read_text()
    assert "accuracy, network-100-epochs" in page


def test_the_doctor_says_what_is_there_and_what_is_missing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = figures("doctor")
    assert found["well"]
    assert found["adlm"] == __version__
    assert {p["name"] for p in found["packages"]} >= {"torch", "numpy", "typer", "cryptography"}
    assert set(found["extras"]) >= {"export", "baseline", "dev", "docs"}
    assert found["devices"][0] == "cpu"
    assert found["threads"]["processors"] >= 1
    assert {p["path"] for p in found["folders"]} >= {str(place / "ledgers"), str(place)}
    monkeypatch.setenv("ADLM_LEDGERS", str(place / "t.csv" / "ledgers"))
    assert "t.csv/ledgers (ledgers): Not a directory" in run("doctor", "--quiet", code=1)
    monkeypatch.undo()
    lines = ["numpy>=1", 'no-such-package>=2; extra == "export"', 'torch>=999; extra == "dev"']
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    extras = figures("doctor")["extras"]
    assert extras["export"]["missing"] == ["no-such-package"]
    assert extras["dev"]["missing"] == ["torch"]
    lines.append("numpy>=999")
    assert "numpy >=999 is needed" in run("doctor", "--quiet", code=1)


# ---- A numeric target, from the command line to a served file


def test_a_numeric_target_goes_all_the_way(place: Path) -> None:
    import onnxruntime

    rng = np.random.default_rng(0)
    declared = column("age", "numeric", lower=0, upper=120) + column("ward", "categorical", values=("a", "b"))
    target = column("days", "target", lower=0, upper=20)
    (place / "n.toml").write_text(f'decimal = ","\ndelimiter = ";"\n{declared}{target}')
    for name, n in (("n", 3000), ("test", 500), ("new", 25)):
        lines = ["age;ward;days"]
        for age, ward, noise in zip(rng.integers(18, 95, n), rng.integers(0, 2, n), rng.normal(0, 1, n),
                                    strict=True):  # fmt: skip
            days = f"{max(0.0, 1 + 0.08 * (age - 18) + 3 * ward + noise):.2f}".replace(".", ",")
            lines.append(f"{age};{'ab'[ward]};{days}")
        (place / f"{name}.csv").write_text("\n".join(lines) + "\n")
    assert figures("domain", "check", "n.toml", "n.csv")["fits"]
    plan = figures("plan", "--domain", "n.toml", "--size", "3000", "--epsilon", "2", "--delta", "1e-5")
    assert 0 < plan["plans"][0]["noise_records"] < 3000
    made = figures("release", "n.csv", "--domain", "n.toml", "--epsilon", "2", "--delta", "1e-5", "--out",
                   "NR")  # fmt: skip
    assert 1.99 < made["epsilon_proved"] <= 2
    assert made["charges"] == 4
    trained = figures("train", "NR", "--out", "NM")
    assert trained["estimated_r2"] > 0.6
    assert "warning" not in trained
    found = figures("evaluate", "NM", "test.csv", "--save", "NM/evaluation.json")
    assert found["r2"] > 0.7
    assert 0 < found["mae"] < found["rmse"] < 1.8
    assert figures("predict", "NM", "new.csv", "--out", "new-p.csv")["records"] == 25
    values = [float(line) for line in (place / "new-p.csv").read_text().splitlines()[1:]]
    assert all(0 <= value <= 20 for value in values)
    run("card", "NM", "--out", "card.md")
    card = (place / "card.md").read_text()
    assert "tabular-regression" in card
    assert "Predicts a number between 0 and 20" in card
    run("report", "NR", "--out", "nr.html")
    report = (place / "nr.html").read_text()
    for words in ("with a number between 0 and 20 to predict", "Noisy counts of the target",
                  "Relevance of columns"):  # fmt: skip
        assert words in report
    run("export", "NM", "--out", "n.onnx")
    assert figures("verify", "n.onnx")["epsilon_proved"] == made["epsilon_proved"]
    inputs = {"age": np.array([[30.0], [200.0], [np.nan]]), "ward": np.array([["a"], ["b"], ["b"]], object)}
    (served,) = onnxruntime.InferenceSession("n.onnx").run(None, inputs)
    model, x = Model.load("NM"), np.array([[30 / 120, 1, 0], [1.0, 0, 1]], dtype=np.float32)
    assert np.allclose(served[:2], model.values(x), atol=1e-3)
    assert np.isnan(served[2])  # the domain refuses a missing age
    for wrong in (model.probabilities, model.predict):
        with pytest.raises(UserError, match=r"values\(\)"):
            wrong(x)
    network = fit(Release.load("NR"), "mlp", TrainingConfig(epochs=10, batch_size=100), draws=2000)
    others = rng.random((500, 3)).astype(np.float32)
    one, other = model.values(others), network.values(others)
    assert np.corrcoef(one, other)[0, 1] > 0.9
    (place / "n.csv").write_text("age;ward;days\n30;a;long\n")
    refused("'long'", "release", "n.csv", "--domain", "n.toml")


# ---- What is refused before torch is imported

REFUSED_AT_ONCE = [
    "release --data digits --epsilon 0",
    "release --data digits --delta 2",
    "release --data nothing",
    "release-records --data digits --epsilon 0",
    "release-records missing.csv --domain missing.toml",
    "plan --data nothing",
    "plan --data digits --epsilon 0",
    "plan --data digits --neighbours none",
    "verify nowhere",
    "verify t.csv",
    "train nowhere",
    "evaluate nowhere --data digits",
    "predict nowhere t.csv",
    "export nowhere",
    "ledger show nowhere",
    "ui nowhere",
    "pretrain --data nothing",
    "audit --release nowhere",
    "demo --epsilon 0",
]
AT_ONCE = """
import contextlib, io, sys
from adlm.cli import main
for words in sys.stdin.read().splitlines():
    sys.argv, said = ["adlm", *words.split()], io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as ended:
            print(ended.code, said.getvalue().count("\\n"), "torch" in sys.modules, words, sep="|")
"""


def test_a_mistake_in_the_arguments_is_refused_before_torch_is_imported(place: Path) -> None:
    """In one process, so that the first command that imports torch shows in all that follow."""
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE], input="\n".join(REFUSED_AT_ONCE), capture_output=True, text=True,
        check=True, cwd=place,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"2|1|False|{words}" for words in REFUSED_AT_ONCE]
