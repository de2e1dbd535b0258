"""Progress is a bar on a terminal, an element in a notebook, a few plain lines in a log, and else nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from adlm.runtime import progress

WORK = """
import time
from adlm.runtime import progress
{setting}
with progress.bar({total}, "features", "records") as advance:
    for _ in range({total}):
        time.sleep({pause})
        advance(1)
progress.say("all done")
"""


def script(setting: str = "progress.enable()", total: int = 4, pause: float = 0.0) -> list[str]:
    return [sys.executable, "-c", WORK.format(setting=setting, total=total, pause=pause)]


def test_on_a_terminal_a_bar_is_drawn_in_place() -> None:
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(script(pause=0.1), stderr=theirs, stdout=theirs, env=env)
    os.close(theirs)
    seen = b""
    while True:
        try:
            got = os.read(ours, 1 << 16)
        except OSError:  # the other side has gone
            break
        if not got:
            break
        seen += got
    assert process.wait() == 0
    os.close(ours)
    assert b"records/s" in seen
    assert b"features" in seen
    assert b"\x1b[" in seen
    assert "━".encode() in seen


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_log_file_gets_plain_lines_and_few(tmp_path: Path, term: str) -> None:
    log = tmp_path / "log.txt"
    setting = "progress.enable(); progress.FIRST_LINE, progress.RAREST_LINE = 0.05, 0.4"
    with log.open("wb") as file:
        subprocess.run(
            script(setting, total=100, pause=0.01), stderr=file, check=True, env=os.environ | {"TERM": term}
        )
    lines = log.read_text().splitlines()
    assert lines[-1] == "all done"
    assert 2 <= len(lines) <= 12  # doubling pauses, however many steps
    assert all(line.startswith("features: ") for line in lines[:-1])
    assert "100 of 100" in lines[-2]
    assert not [c for c in log.read_text() if c in "\r\x1b"]


def test_short_work_leaves_no_line_and_a_script_is_silent_by_itself(tmp_path: Path) -> None:
    done = subprocess.run(script(), capture_output=True, text=True, check=True)
    assert done.stderr == "all done\n"
    silent = subprocess.run(script(setting=""), capture_output=True, text=True, check=True)
    assert (silent.stdout, silent.stderr) == ("", "")
    off = subprocess.run(script(setting="progress.enable(False)"), capture_output=True, text=True, check=True)
    assert (off.stdout, off.stderr) == ("", "")


def test_time_left_is_told_in_words() -> None:
    assert progress._words(50, 100, "x", "records", 10) == "x: 50 of 100, 5 records/s, about 10 s left"
    assert progress._words(1, 100, "x", "", 10) == "x: 1 of 100, about 16 min left"
    assert progress._words(1, 1000, "x", "", 100) == "x: 1 of 1000, about 28 h left"
    assert progress._words(100, 100, "x", "", 10) == "x: 100 of 100"


class Shell:
    """What `get_ipython` gives in a kernel; on a terminal it has no `kernel`."""

    def __init__(self, kernel: object) -> None:
        self.kernel = kernel


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A kernel as IPython shows one to its users; what is displayed is kept, the latest of each element."""
    kept: list[str] = []

    class Handle:
        def __init__(self, value: str) -> None:
            self.place = len(kept)
            kept.append(value)

        def update(self, value: str) -> None:
            kept[self.place] = value

    display: Any = types.ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda value, display_id: Handle(value)
    kernel: Any = types.ModuleType("IPython")
    kernel.get_ipython = lambda: Shell(object())
    kernel.display = display
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress._state, "on", None)
    return kept


def test_in_a_notebook_one_element_is_updated_and_nothing_goes_to_standard_error(
    shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "REDRAW", 0.0)
    with progress.bar(3, "<training>", "records") as advance:
        advance(1)
        assert 'value="1"' in shown[0]
        advance(2)
    assert len(shown) == 1
    assert 'max="3" value="3"' in shown[0]
    assert "&lt;training&gt;: 3 of 3" in shown[0]
    assert "<training>" not in shown[0]
    assert "http" not in shown[0]
    progress.say("a step")
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == "a step\n"


def test_ipython_on_a_terminal_is_no_notebook(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: Shell(None))
    assert not progress.enabled()
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert not progress.enabled()
    with progress.bar(3, "x"):
        pass
    assert shown == []


def test_a_notebook_can_be_silenced(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress._state, "on", False)
    with progress.bar(3, "x") as advance:
        advance(3)
    assert shown == []


def test_a_real_kernel_shows_a_bar() -> None:
    """With ipykernel and jupyter_client installed: a kernel is started and its messages are read."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    client_of = pytest.importorskip("jupyter_client.manager", reason="jupyter_client is not installed")
    seen: list[dict[str, Any]] = []
    manager, client = client_of.start_new_kernel(kernel_name="python3")
    try:
        replied = client.execute_interactive(
            WORK.format(setting="", total=3, pause=0.3), timeout=60, output_hook=seen.append
        )
        assert replied["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    kinds = [message["msg_type"] for message in seen]
    assert kinds.count("display_data") == 1
    assert kinds.count("update_display_data") >= 1
    final = [m for m in seen if m["msg_type"] == "update_display_data"][-1]["content"]["data"]["text/html"]
    assert 'max="3" value="3"' in final
    assert not [m for m in seen if m["msg_type"] == "stream" and m["content"]["name"] == "stderr"]
