"""A Ray cluster on this machine: its folder, its size, its network, and clean-up after killed drivers."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from adlm.runtime.artefact import is_alive

STORE_SHARE = 0.3  # of the free memory, for the object store of a local cluster
FOLDER = "adlm-ray-"  # followed by the id of the process that started the cluster
LONGEST = 15  # characters of the temporary folder: a socket's path has at most 107
ANSWER_SECONDS = 10.0
OPEN = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # Ray's own setting: 1 lets other machines reach a cluster, 0 not
_HOST_PORT = re.compile(r"(?:ray://)?([^:/]+):([0-9]+)")


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Let servers that Ray starts inside listen on the loopback interface alone; not if OPEN is set.

    By Ray's default on Linux they listen on all interfaces, and whoever reaches them can run code.
    """
    if OPEN in os.environ:
        yield
        return
    from ray._private import ray_constants  # it has read the variable when Ray was imported

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[OPEN] = False, "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(OPEN, None)


def knock(address: str) -> None:
    """Raise OSError if no server listens at HOST:PORT; Ray would retry for minutes."""
    match = _HOST_PORT.fullmatch(address)
    if match is not None:
        with socket.create_connection((match[1], int(match[2])), timeout=ANSWER_SECONDS):
            pass


def short_folder() -> Path:
    """Return the temporary folder, or a shorter one if paths of sockets in it would be too long."""
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= LONGEST else Path("/tmp")


def remove_left_behind() -> int:
    """Remove the folders of clusters whose driver was killed; return their number."""
    count = 0
    for folder in short_folder().glob(f"{FOLDER}*"):
        number = folder.name.removeprefix(FOLDER).partition("-")[0]
        if number.isdecimal() and not is_alive(int(number)) and folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
            count += 1
    return count


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_for_store() -> int:
    """Return a share of the free memory, at least Ray's minimum."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        free = 1 << 31
    return max(100 << 20, int(STORE_SHARE * free))


def quiet() -> None:
    """Silence Ray's messages."""
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
