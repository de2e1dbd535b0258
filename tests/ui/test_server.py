"""The server is for this machine alone: loopback, a secret path, no other host's pages, nothing to spend."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ui import made

from adlm.errors import UserError
from adlm.ui import choices as forecasts
from adlm.ui.page import gather
from adlm.ui.server import MOST_BODY, MOST_DOMAINS, Server

DIGITS = {"choice": "digits", "n": "1437", "delta": "0", "neighbours": "replace-one"}


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with made.quick_forecasts():
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shown")


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    folders, ledger = made.everything(place)
    with Server(gather(folders, [ledger])) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(
    server: Server,
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    length: int | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    """Send a request as it stands; `Host` is what a browser would send, unless given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    sent = {"Host": f"127.0.0.1:{server.server_port}"} | headers
    sent |= {} if length is None else {"Content-Length": str(length)}
    connection.request(method, path, body=body, headers=sent)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def api(server: Server, name: str, **parameters: str) -> tuple[int, Any]:
    query = "&".join(f"{key}={value}" for key, value in parameters.items())
    status, _, body = ask(server, f"/{server.token}/api/{name}?{query}")
    return status, json.loads(body)


def test_it_listens_on_the_loopback_address_and_its_path_is_long_and_new(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32
    with Server(gather([], [])) as other:
        assert other.token != server.token
    with urllib.request.urlopen(server.address, timeout=600) as page:
        assert b"Which epsilon" in page.read()


@pytest.mark.parametrize("path", ["/", "/x/", "/api/curve", "/{wrong}/", "/{wrong}/api/point?epsilon=1"])
def test_without_the_token_there_is_nothing(server: Server, path: str) -> None:
    wrong = server.token[:-1] + ("a" if server.token[-1] != "a" else "b")
    status, _, body = ask(server, path.replace("{wrong}", wrong))
    assert status == 404
    assert server.token.encode() not in body


@pytest.mark.parametrize("host", ["evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "evil.example", ""])
def test_another_name_for_this_machine_is_refused(server: Server, host: str) -> None:
    """DNS rebinding: a page of evil.example, which now points here, would send its own name as Host."""
    status, _, body = ask(server, f"/{server.token}/", Host=host.format(port=server.server_port))
    assert status == 403
    assert b"epsilon" not in body
    status, _, _ = ask(server, f"/{server.token}/", Host=f"localhost:{server.server_port}")
    assert status == 200


def test_a_request_from_another_page_is_refused(server: Server) -> None:
    path, own = f"/{server.token}/api/curve?choice=digits", f"http://127.0.0.1:{server.server_port}"
    assert ask(server, path, Origin="https://evil.example")[0] == 403
    assert ask(server, path, Origin="null")[0] == 403
    status, headers, _ = ask(server, path, Origin=own)
    assert status == 400  # understood, and it lacks a number of records
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_answers_are_kept_nowhere_and_shown_in_no_frame(server: Server) -> None:
    _, headers, body = ask(server, f"/{server.token}/")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in body


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_there_is_no_other_way_to_ask(server: Server, method: str) -> None:
    assert ask(server, f"/{server.token}/", method=method)[0] == 501


def test_a_point_is_the_forecast_and_the_plan_of_the_command_line(server: Server) -> None:
    from adlm.data import datasets
    from adlm.features import for_domain
    from adlm.mechanism.planner import plan_arrays

    status, found = api(server, "point", **DIGITS, epsilon="1.25")
    assert status == 200
    assert 0.1 < found["low"] < found["accuracy"] < found["high"] < 1
    plan = plan_arrays(for_domain(datasets.domain("digits")), 1437, 10, 1.25, 0.0, "replace-one")
    assert found["words"][1].startswith(f"{plan.k} features")


def test_the_plan_of_a_pure_budget_is_the_one_that_the_release_follows(server: Server) -> None:
    from adlm.data import datasets
    from adlm.features import for_domain
    from adlm.mechanism.planner import plan_features

    status, found = api(server, "point", **DIGITS | {"n": "20000"}, epsilon="2")
    assert status == 200
    plan = plan_features(20_000, 10, 2.0, "replace-one", for_domain(datasets.domain("digits")))
    shown = [plan.summary, *plan.reasons]
    assert [word.lower() for word in found["words"]] == [f"{word.lower().rstrip('.')}." for word in shown]
    assert 0.5 < found["accuracy"] <= 1


def test_a_kept_simulation_of_other_features_or_another_plan_is_not_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice, budget = server.choice("digits"), forecasts.Budget("1", "0", "replace-one")
    settings = forecasts.settings_of(forecasts.plan_of(choice, choice.n, budget, rounds=False))
    curves = {"0 replace-one": {"1": [0.5, 0.01, *settings]}}
    kept = {"digits": {"n": choice.n, "features": choice.features.fingerprint(), "curves": curves}}
    monkeypatch.setattr(forecasts, "_precomputed", lambda: kept)
    curve = {"choice": "digits", "delta": "0", "neighbours": "replace-one"}
    (point,) = api(server, "curve", **curve, n=str(choice.n))[1]["points"]
    assert (point["epsilon"], point["accuracy"]) == (1.0, 0.5)
    assert api(server, "curve", **curve, n=str(choice.n + 1))[1]["points"] == []
    curves["0 replace-one"]["1"][2] += 1  # another k
    assert api(server, "curve", **curve, n=str(choice.n))[1]["points"] == []
    curves["0 replace-one"]["1"][2] -= 1
    kept["digits"]["features"] = "0" * 64
    assert api(server, "curve", **curve, n=str(choice.n))[1]["points"] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"choice": "nobody"}, "no such data set"),
        ({"n": "0"}, "must lie between 1 and"),
        ({"n": "-5"}, "must be an integer"),
        ({"n": "9" * 30}, "must be an integer"),
        ({"epsilon": "0"}, "epsilon"),
        ({"epsilon": "nan"}, "epsilon"),
        ({"epsilon": "1e9"}, "at most 100"),
        ({"delta": "2"}, "delta"),
        ({"neighbours": "friends"}, "must be one of replace-one, add-remove"),
    ],
)
def test_nonsense_is_one_sentence(server: Server, change: dict[str, str], words: str) -> None:
    status, found = api(server, "point", **(DIGITS | {"epsilon": "1"} | change))
    assert status == 400
    assert words in found["error"]
    assert "\n" not in found["error"]


def domain(server: Server, **sent: object) -> tuple[int, Any]:
    raw = json.dumps({"name": "patients.toml", "text": made.DOMAIN, "n": 1000} | sent).encode()
    status, _, body = ask(server, f"/{server.token}/api/domain", method="POST", body=raw)
    return status, json.loads(body)


def test_a_domain_file_can_be_given_and_is_planned_for(server: Server) -> None:
    status, found = domain(server)
    assert status == 200
    assert (found["kind"], found["classes"], found["file"]) == ("table", 2, "patients.toml")
    status, point = api(server, "point", **(DIGITS | {"choice": found["key"], "n": "1000"}), epsilon="3")
    assert status == 200
    assert point["accuracy"] is None
    assert point["noise"] > 0


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"text": "not = [toml"}, "valid TOML"),
        ({"text": made.DOMAIN.replace("100", "-1")}, "upper must exceed"),
        ({"n": 0}, "must lie between"),
        ({"n": "many"}, "its text, its name and a number"),
    ],
)
def test_a_bad_domain_is_one_sentence(server: Server, sent: dict[str, object], words: str) -> None:
    status, found = domain(server, **sent)
    assert status == 400
    assert words in found["error"]


def test_a_flood_of_domains_or_a_huge_one_is_not_kept(server: Server) -> None:
    for i in range(MOST_DOMAINS + 5):
        assert domain(server, text=made.DOMAIN.replace("100", str(100 + i)))[0] == 200
    assert sum(key.startswith("domain-") for key in server.choices) == MOST_DOMAINS
    status, _, body = ask(server, f"/{server.token}/api/domain", method="POST", length=MOST_BODY + 1)
    assert status == 400
    assert b"at most" in body


def test_nothing_that_it_was_asked_for_touched_a_file(server: Server, place: Path) -> None:
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in place.rglob("*") if p.is_file()}
    ask(server, f"/{server.token}/")
    api(server, "curve", **DIGITS)
    api(server, "point", **DIGITS, epsilon="2")
    domain(server)
    after = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in place.rglob("*") if p.is_file()}
    assert after == before
    assert any(p.name == "ledger.jsonl" for p in before)


def test_a_port_that_is_taken_is_one_sentence(server: Server) -> None:
    with pytest.raises(UserError, match="leave --port out"):
        Server(gather([], []), server.server_port)
