"""A single-user server on the loopback address, behind a random path, that can spend nothing.

Every response is computed from public numbers or read from certificates before the server starts. No request
names a file, writes one, or reaches a ledger.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from adlm.errors import UserError
from adlm.ui import choices as forecasts
from adlm.ui.choices import Choice, declared
from adlm.ui.figures import reference_curves
from adlm.ui.page import Shown, policy, render

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
MOST_BODY = 1 << 20
MOST_DOMAINS = 16
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Server(ThreadingHTTPServer):
    """Serve the page at a random path of the loopback address."""

    daemon_threads = True

    def __init__(self, shown: Shown, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self.choices: dict[str, Choice] = {c.key: c for c in shown.choices}
        self.page = render(shown, live=True).encode()
        self.simulating = threading.Lock()  # one at a time: a simulation saturates the CPU
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(
                f"port {port} of {HOST} cannot be used: {why}; leave --port out to take any that is free"
            ) from None

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def hosts(self) -> set[str]:
        """Return the allowed Host headers; any other name would be DNS rebinding."""
        return {f"{name}:{self.server_port}" for name in NAMES}

    def choice(self, key: str) -> Choice:
        """Find a data set or domain of this page."""
        if key not in self.choices:
            raise UserError("this page has no such data set; reload it")
        return self.choices[key]

    def add(self, choice: Choice) -> None:
        """Store a domain that was sent by the page, in memory, the latest few."""
        self.choices[choice.key] = choice
        domains = [key for key in self.choices if key.startswith("domain-")]
        for key in domains[:-MOST_DOMAINS]:
            del self.choices[key]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "adlm", ""
    timeout = 60

    def do_GET(self) -> None:
        """Send the page, or figures."""
        self._answered({"": None, "api/curve": self._curve, "api/point": self._point})

    def do_POST(self) -> None:
        """Send the description of a user's domain."""
        self._answered({"api/domain": self._domain})

    def _answered(self, routes: dict[str, Callable[[], Any] | None]) -> None:
        where = self._allowed()
        if where is None:
            return
        if where not in routes:
            self._refused(HTTPStatus.NOT_FOUND, "there is nothing here")
            return
        make = routes[where]
        if make is None:
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
            return
        try:
            answer = make()
        except UserError as error:
            self._refused(HTTPStatus.BAD_REQUEST, " ".join(str(error).split()))
            return
        self._send(HTTPStatus.OK, json.dumps(answer, allow_nan=False).encode(), "application/json")

    def _allowed(self) -> str | None:
        """Return the path after the token, or None when the request was refused."""
        self.close_connection = True  # a refused body must not be read as the next request
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts() or origin not in (None, f"http://{host}"):
            self._refused(HTTPStatus.FORBIDDEN, "this page is for this machine alone")
            return None
        _, token, *rest = [*urlsplit(self.path).path.split("/", 2), ""]
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refused(HTTPStatus.NOT_FOUND, "there is nothing here")
            return None
        return rest[0]

    def _asked(self, *names: str) -> list[str]:
        query = parse_qs(urlsplit(self.path).query)
        for name in names:
            if len(query.get(name, [])) != 1:
                raise UserError(f"the request needs one {name}")
        return [query[name][0] for name in names]

    def _curve(self) -> dict[str, Any]:
        key, n, delta, neighbours = self._asked("choice", "n", "delta", "neighbours")
        return {"points": forecasts.curve(self.server.choice(key), _integer(n), delta, neighbours)}

    def _point(self) -> dict[str, Any]:
        key, n, epsilon, delta, neighbours = self._asked("choice", "n", "epsilon", "delta", "neighbours")
        budget = forecasts.Budget(epsilon, delta, neighbours)
        with self.server.simulating:
            return forecasts.point(self.server.choice(key), _integer(n), budget)

    def _domain(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BODY:
            raise UserError(f"a domain file must have at most {MOST_BODY:,} bytes")
        try:
            raw = json.loads(self.rfile.read(int(length)))
            text, name, n = str(raw["text"]), str(raw["name"]), int(raw["n"])
        except (ValueError, KeyError, TypeError):
            raise UserError("a domain comes with its text, its name and a number of records") from None
        choice = declared(text, name, n)
        self.server.add(choice)
        return choice.to_dict() | reference_curves(choice.key) | {"curves": {}}

    def _refused(self, status: HTTPStatus, words: str) -> None:
        self._send(status, json.dumps({"error": words}).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the URL contains the token."""


def _integer(text: str) -> int:
    if not text.isdecimal() or len(text) > 12:
        raise UserError(f"the number of records must be an integer, got {text[:20]!r}")
    return int(text)
