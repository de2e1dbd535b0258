"""What commands say of certificates: who signed, what was charged, what is left, what is not private."""

from __future__ import annotations

import json
import pydoc
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from tests.cli.commands import figures, run, runner
from tests.cli.commands import place as place

import adlm
from adlm import Ledger, UserError
from adlm.cli import main
from adlm.cli.app import app
from adlm.privacy.accounting import Charge
from adlm.privacy.certificate import SEEDED, WEAK_DELTA, WEAK_EPSILON

DIGITS = ("release", "--data", "digits", "--limit", "150", "--k", "8")


@pytest.fixture(scope="module")
def signed(place: Path) -> Path:
    """A key, and a release, a model and an ONNX file that it signed."""
    run("key", "new", "k")
    assert figures(*DIGITS, "--epsilon", "2", "--sign", "k", "--out", "R")["signed_by"]
    run("train", "R", "--sign", "k", "--out", "M")
    run("export", "M", "--sign", "k", "--out", "m.onnx")
    return place


@pytest.mark.parametrize("name", ["R", "M", "m.onnx"])
def test_a_signed_artefact_is_verified_by_its_key(name: str, signed: Path) -> None:
    found = figures("verify", name, "--trust", "k.pub")
    assert found["trusted"]
    assert found["signed_by"] == found["release_signed_by"] == figures("key", "show", "k.pub")["fingerprint"]
    said = run("verify", name)
    assert "origin unverified" in said
    assert "a key that was not given as trusted" in said
    assert "not proved: that noise was drawn" in said
    run("key", "new", f"other-{name}")
    with pytest.raises(UserError, match="none of the keys that were given"):
        run("verify", name, "--trust", f"other-{name}.pub")


def test_verify_says_that_it_does_not_prove_origin(place: Path) -> None:
    run(*DIGITS, "--out", "U")
    said = run("verify", "U")
    assert "the release is not signed" in said
    assert "anyone who can edit the files can recompute the digests" in said
    with pytest.raises(UserError, match="U is not signed; adlm release --sign KEY"):
        run("verify", "U", "--trust", _public(place))


def _public(place: Path) -> str:
    if not (place / "p.pub").exists():
        run("key", "new", "p")
    return "p.pub"


def test_a_key_is_read_before_anything_is_charged(place: Path) -> None:
    (place / "open.key").write_text("not a key")
    with pytest.raises(UserError, match="can be read by others"):
        run(*DIGITS, "--sign", "open.key", "--ledger", "unspent", "--out", "X")
    with pytest.raises(UserError, match="cannot be read"):
        run(*DIGITS, "--sign", "missing.key", "--ledger", "unspent", "--out", "X")
    assert not (place / "unspent").exists()


def test_a_record_release_is_signed_too(place: Path) -> None:
    public = _public(place)
    run("release-records", "--allocation", "identical", "--data", "digits", "--limit", "40", "--network",
        "mlp", "--batch-size", "10", "--sign", "p", "--out", "RS")  # fmt: skip
    assert figures("verify", "RS", "--trust", public)["trusted"]


def test_a_relevance_network_is_declared_or_signed_by_a_trusted_key(place: Path) -> None:
    public = _public(place)
    words = ("release-records", "--data", "digits", "--limit", "40", "--network", "mlp",
             "--batch-size", "10", "--relevance-network", "P")  # fmt: skip
    run("pretrain", "--data", "digits", "--epochs", "1", "--sign", "p", "--out", "P")
    with pytest.raises(UserError, match="none of the keys"):
        run(*words, "--out", "X")
    run(*words, "--trust", public, "--out", "RN")
    assert figures(*words, "--relevance-provenance", "private", "--out", "RP")["epsilon_proved"] is None
    with pytest.raises(UserError, match="are for a --relevance-network"):
        run(*words[:-2], "--trust", public, "--out", "X")


def test_stamps_and_what_is_not_private_are_repeated_by_every_command(place: Path) -> None:
    run(*DIGITS, "--seed", "1", "--out", "S")
    for words in (["train", "S", "--out", "SM"], ["evaluate", "SM", "--data", "digits"], ["verify", "SM"],
                  ["export", "SM", "--out", "s.onnx"]):  # fmt: skip
        if words[0] == "evaluate":
            assert "figures measured on private records are not private" in run(*words)
            assert "not private if the records are" in run(*words, "--quiet")
            found = figures(*words)
            assert "not private" in found["warning"]
            assert found["stamps"] == [SEEDED]
        said = run(*words, "--quiet") if words[0] != "train" else run(*words)
        assert f"stamped: {SEEDED}" in said


def test_predictions_of_a_seeded_release_repeat_its_stamp(place: Path) -> None:
    (place / "t.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n'
        '[columns.ill]\nkind = "label"\nclasses = ["no", "yes"]\n'
    )
    lines = [f"{age},{'yes' if age > 50 else 'no'}" for age in range(100)]
    (place / "t.csv").write_text("\n".join(["age,ill", *lines]) + "\n")
    run("release", "t.csv", "--domain", "t.toml", "--seed", "2", "--out", "ST")
    run("train", "ST", "--out", "STM")
    assert f"stamped: {SEEDED}" in run("predict", "STM", "t.csv", "--out", "p.csv", "--quiet")


def test_a_command_that_failed_does_not_fix_a_budget(place: Path) -> None:
    with pytest.raises(UserError):
        run("release", "t.csv", "--domain", "none.toml", "--budget", "5", "--ledger", "LB", "--out", "X")
    run(*DIGITS, "--budget", "1", "--ledger", "LB", "--out", "LBR")
    assert figures("ledger", "show", "LB")["budget"] == {"epsilon": 1.0, "delta": 0.0}


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
        run(*DIGITS, "--budget", "1", "--ledger", "race", "--out", "X")
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

    if after:
        monkeypatch.setattr(Source, "draw", stop)
    else:
        monkeypatch.setattr(Records, "total", stop)
        monkeypatch.setattr(Records, "keep", stop)
    ledger = f"stopped-{after}"
    monkeypatch.setattr(sys, "argv", ["adlm", *DIGITS, "--ledger", ledger, "--out", "stopped-release"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    said = capsys.readouterr().err
    if after:
        assert f"epsilon 1, neighbours replace-one, per record stays in {ledger}" in said
    else:
        assert "nothing was charged" in said
    assert "stopped-release was not made" in said
    assert bool(Ledger(place / ledger).charges) == after


def test_other_commands_say_that_they_were_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from adlm.privacy.release import Release

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Release, "load", stop)
    monkeypatch.setattr(sys, "argv", ["adlm", "train", "R", "--out", "never"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert capsys.readouterr().err.startswith("adlm: stopped")


@pytest.mark.parametrize(
    ("options", "words", "stamp"),
    [
        (["--epsilon", "20"], "epsilon 20 is large: the odds can change e^20 times", None),
        (["--epsilon", "11", "--delta", "1e-5"], "right up to 86.0% of the time", None),
        (["--epsilon", "1000000000000"], "stamped NOT PRIVATE", WEAK_EPSILON),
        (["--delta", "0.5"], "publishing a random record", WEAK_DELTA),
        (["--delta", "0.007"], "", WEAK_DELTA),  # one in 150 is 0.0067
        (["--delta", "1e-5"], "", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_budget_that_protects_nobody_is_warned_of_and_stamped(
    options: list[str], words: str, stamp: str | None
) -> None:
    done = runner.invoke(app, [*DIGITS, *options, "--json", "--out", "W" + "".join(options)])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["stamps"] == ([stamp] if stamp else [])
    assert words in done.stderr
    said = [line for line in done.stderr.splitlines() if "class" not in line]  # 15 records a class
    assert any("warning" in line for line in said) == bool(words)


def test_a_ledger_is_shown_for_people_and_programs(place: Path) -> None:
    words = (*DIGITS, "--ledger", "shown", "--budget", "1,1e-5", "--epsilon", "0.3", "--delta", "1e-5")
    run(*words, "--out", "L1")
    run(*words, "--out", "L2")
    text = run("ledger", "show", "shown", "--delta", "1e-5")
    assert "class sums" in text
    assert "of a budget of epsilon 1, delta 1e-05, epsilon 0.8" in text
    found = figures("ledger", "show", "shown", "--delta", "1e-5", "--neighbours", "replace-one")
    assert len(found["charges"]) >= 2
    assert 0.8 < found["left"] < 0.9
    assert figures("ledger", "show", "shown")["left"] < 0.6  # pure epsilon adds
    assert figures("ledger", "show", "shown", "--neighbours", "add-remove")["left"] == 0
    with pytest.raises(UserError, match="there is no ledger"):
        run("ledger", "show", "none")
    assert not (place / "none").exists()
    (place / "table.csv").write_text("age,ill\n40,no\n")
    with pytest.raises(UserError, match="is not an adlm ledger"):
        run("ledger", "show", "table.csv")


def test_under_add_remove_a_limit_does_not_let_one_record_bring_in_another(place: Path) -> None:
    words = ("release", "--data", "digits", "--limit", "300", "--k", "8")
    made = figures(*words, "--neighbours", "add-remove", "--size", "300", "--out", "AR")
    assert made["n"] is None
    assert figures(*words, "--out", "RO")["n"] == 300


def test_the_public_names_are_shown() -> None:
    assert set(adlm.__all__) <= set(dir(adlm))
    shown = pydoc.plain(pydoc.render_doc(adlm))
    for name in ("AdLMClassifier", "privatise(", "class Release"):
        assert name in shown


LEFT_OPEN = """
import io, sys, time
import pyarrow as pa, pyarrow.csv as arrow
import adlm.cli.app, adlm.export.verification
from adlm.cli import {entry}

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
{entry}()
"""


def test_a_thread_that_still_reads_does_not_spoil_the_exit_code(place: Path) -> None:
    """Arrow's reader goes on in a thread of its own; ending the interpreter under it aborts with 134."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", LEFT_OPEN.format(entry="program")], capture_output=True,
                              text=True, check=False, cwd=place)  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines() == [done.stderr.strip()]
        assert "nowhere is not a release" in done.stderr
