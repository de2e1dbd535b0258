"""The one place that writes artefacts, atomically."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from adlm.errors import UserError


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a value: sorted keys, two spaces, a final newline, no NaN."""
    return (json.dumps(value, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_folder(target: Path, *, what: str) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` by one rename when the block succeeds.

    After an error or a full disk the temporary folder is removed. A killed process leaves a hidden folder
    that nothing reads, which the next write of the same target removes.
    """
    target = Path(target)
    with _temporary_folder(target, what) as temporary:
        yield temporary
        for path in sorted(temporary.rglob("*")):
            sync(path)
        sync(temporary)
        temporary.chmod(0o755)
        temporary.rename(target)
        sync(target.parent)


def require_space(target: Path, *, what: str) -> None:
    """Refuse a place without 4 MB of space, before any budget is spent."""
    with _temporary_folder(Path(target), what) as temporary, (temporary / "space").open("wb") as file:
        file.write(bytes(1 << 22))
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _temporary_folder(target: Path, what: str) -> Iterator[Path]:
    """Yield a temporary folder next to a target that does not exist yet, and remove it at the end."""
    if target.exists():
        raise UserError(f"{target} exists already; choose another place for the {what} or remove it first")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.{os.getpid()}.", dir=target.parent))
    except OSError as error:
        raise UserError(f"the {what} cannot be written to {target}: {error.strerror or error}") from None
    try:
        yield temporary
    except OSError as error:
        if target.exists() and not temporary.exists():
            raise
        raise UserError(
            f"the {what} was not written to {target}: {error.strerror or error}; nothing is left behind"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Remove temporary folders of dead processes that were writing the same target."""
    for stale in target.parent.glob(f".{target.name}.*"):
        owner = stale.name.removeprefix(f".{target.name}.").split(".")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and not is_alive(int(owner)):
            shutil.rmtree(stale, ignore_errors=True)


def is_alive(pid: int) -> bool:
    """Whether a process runs, also one of another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def new_file(target: Path, *, what: str, private: bool = False) -> Iterator[IO[bytes]]:
    """Yield a stream whose bytes become `target` by one rename when the block succeeds.

    An earlier file is replaced then; after an error it is unchanged.

    Parameters
    ----------
    target : the file.
    what : the artefact, for the sentence if it fails.
    private : whether only its owner may read it.
    """
    target = Path(target)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o600 if private else 0o644)
        temporary.replace(target)
        sync(target.parent)
    except OSError as error:
        raise UserError(f"the {what} was not written to {target}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_file(target: Path, data: bytes, *, what: str, private: bool = False) -> None:
    """Write one file atomically, replacing an earlier one.

    Parameters
    ----------
    target : the file.
    data : its bytes.
    what : the artefact, for the sentence if it fails.
    private : whether only its owner may read it.
    """
    with new_file(target, what=what, private=private) as file:
        file.write(data)


def read_json(path: Path, *, what: str) -> Any:
    """Read a canonical JSON file; any byte that is not canonical is an alteration."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"the {what} {path} cannot be read: {error.strerror or error}") from None
    try:
        value = json.loads(raw)
        same = canonical(value) == raw
    except (ValueError, RecursionError):
        raise UserError(f"the {what} {path} is not whole JSON; it was truncated or altered") from None
    if not same:
        raise UserError(f"the {what} {path} was altered after it was written")
    return value
