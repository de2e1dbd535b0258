"""Drive a real Chromium over its DevTools pipe: NUL-separated JSON on two descriptors, no package needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--disable-extensions", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip
PATIENCE = 60.0


def found() -> str | None:
    """Where Chromium is, if anywhere."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def needed() -> list[pytest.MarkDecorator]:
    """Marks of tests in a browser, which are skipped where there is none."""
    reason = "Chromium is not installed (Debian: apt-get install chromium)"
    return [pytest.mark.browser, pytest.mark.skipif(found() is None, reason=reason)]


class Page:
    """One page in one browser: commands go out, events are kept."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command and wait for its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser did not answer in time"
            got = os.read(self._receive, 1 << 20)
            assert got, "the browser has gone"
            self._buffer += got
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, place: Path | str, *, width: int, dark: bool = False) -> None:
        """Load a file or an address at a width, in light or dark, and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=place if isinstance(place, str) else place.as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self._next()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector: str, *, across: float = 0.5, down: float = 0.5) -> None:
        """Click with the mouse on a place of an element, given as shares of its width and height."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = f"document.querySelector({selector!r}).getBoundingClientRect()"
        left, top, wide, high = self.evaluate(f"(b => [b.left, b.top, b.width, b.height])({box})")
        at = {"x": left + across * wide, "y": top + down * high, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", buttons=1, **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def press(self, key: str, code: int) -> None:
        """Press a key where the focus is."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Type text where the focus is."""
        self.call("Input.insertText", text=text)

    def wait(self, expression: str) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"{expression} did not come true"
            time.sleep(0.05)
        return value

    def requests(self) -> list[str]:
        """Every address that was asked for since the page was opened."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [str(e["params"]["request"]["url"]) for e in sent]

    def complaints(self) -> list[str]:
        """Every error, warning and exception of the console."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(e["params"]) for e in self.events if e["method"] in kinds]

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def printed(self) -> bytes:
        """The whole page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])


@contextmanager
def browser(executable: str, profile: Path) -> Iterator[Page]:
    """Start a browser with a fresh profile and no way out to any host; gives a page."""
    read_commands, send = os.pipe()
    receive, write_answers = os.pipe()
    command = [executable, *FLAGS, f"--user-data-dir={profile}",
               "--remote-debugging-pipe"]  # fmt: skip
    redirect = ["bash", "-c", f'exec "$@" 3<&{read_commands} 4>&{write_answers}', "bash", *command]
    process = subprocess.Popen(
        redirect,
        pass_fds=(read_commands, write_answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        yield Page(send, receive)
        os.write(send, json.dumps({"id": 10**9, "method": "Browser.close"}).encode() + b"\0")
        process.wait(PATIENCE)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(send)
        os.close(receive)
