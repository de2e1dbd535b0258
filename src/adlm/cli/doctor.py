"""`adlm doctor`: what this machine has for adlm, and what is missing for which part of it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from packaging.requirements import Requirement

from adlm.cli.console import AsJson, Output, Quiet
from adlm.version import __version__

EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
USES = {
    "ray": "passes on a cluster: adlm release --engine ray",
    "export": "ONNX files: adlm export, adlm verify of one",
    "baseline": "DP-SGD by Opacus, to compare with, and its audit",
    "ui": "the page of the privacy-accuracy trade-off: adlm ui",
    "docs": "the documentation",
    "dev": "the tests",
}


@dataclass(frozen=True)
class Package:
    """A required package: the accepted versions, and the installed one (None: missing)."""

    name: str
    needed: str
    found: str | None
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"name": self.name, "needed": self.needed, "found": self.found, "fits": self.fits}


def doctor(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Print versions, threads, devices and folders, and what is missing for which extra.

    Nothing is changed and nothing is fetched. Exit code 1 when something that adlm cannot do without is
    missing: a package of the wrong version, or a folder that cannot be written. With --json: {"adlm",
    "python", "platform", "packages": [{"name", "needed", "found", "fits"}], "extras": {NAME: {"for",
    "missing"}}, "threads": {"processors", "torch", "OMP_NUM_THREADS"}, "devices", "folders": [{"name",
    "path", "writable", "trouble"}], "problems", "well"}.
    """
    output = Output(as_json, quiet)
    required, extras = packages()
    places, device = folders(), devices()
    counted = threads()
    problems = [
        f"{p.name} {p.needed} is needed, {p.found or 'none'} is there" for p in required if not p.fits
    ]
    problems += [f"{p['path']} ({p['name']}): {p['trouble']}" for p in places if not p["writable"]]
    if not required:
        problems.append("adlm is on the path but not installed, so what it needs is not known: pip install .")
    output.say(f"adlm {__version__}, Python {platform.python_version()}, {platform.platform()}")
    output.table(
        ["package", "needed", "found"], [[p.name, p.needed or "any", p.found or "none"] for p in required]
    )
    missing = {name: [p.name for p in found if not p.fits] for name, found in extras.items()}
    rows = [[name, USES.get(name, ""), ", ".join(missing[name]) or "nothing"] for name in sorted(missing)]
    output.table(["extra", "for", "missing"], rows)
    output.say(
        f"threads: torch uses {counted['torch']} of {counted['processors']} processors "
        f"(OMP_NUM_THREADS {counted['OMP_NUM_THREADS'] or 'not set'})"
    )
    output.say(f"devices: {', '.join(device)}")
    output.table(
        ["folder", "path", "writable"],
        [[p["name"], p["path"], "yes" if p["writable"] else f"no: {p['trouble']}"] for p in places],
    )
    output.result(
        {
            "adlm": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": [p.to_dict() for p in required],
            "extras": {n: {"for": USES.get(n, ""), "missing": names} for n, names in missing.items()},
            "threads": counted,
            "devices": device,
            "folders": places,
            "problems": problems,
            "well": not problems,
        },
        "; ".join(problems) or "nothing that adlm needs is missing",
    )
    if problems:
        raise typer.Exit(1)


def packages() -> tuple[list[Package], dict[str, list[Package]]]:
    """Return the requirements of adlm and of each extra; empty when adlm is not installed."""
    try:
        lines = importlib.metadata.requires("adlm") or []
        named = importlib.metadata.metadata("adlm").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        return [], {}
    required: list[Package] = []
    extras: dict[str, list[Package]] = {name: [] for name in named}  # an extra may have no requirements
    for line in lines:
        wanted = Requirement(line)
        of = EXTRA.search(str(wanted.marker or ""))
        if wanted.marker is None or wanted.marker.evaluate({"extra": of[1] if of else ""}):
            (extras.setdefault(of[1], []) if of else required).append(package(wanted))
    return required, extras


def package(wanted: Requirement) -> Package:
    """Look for an installed package that meets a requirement."""
    try:
        found = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return Package(wanted.name, str(wanted.specifier), None, False)
    fits = wanted.specifier.contains(found, prereleases=True)
    return Package(wanted.name, str(wanted.specifier), found, fits)


def threads() -> dict[str, Any]:
    """Return the numbers of available processors and of torch's threads."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processors": usable,
        "torch": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


def devices() -> list[str]:
    """Return the names of torch's devices."""
    import torch

    cards = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return ["cpu", *(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in cards)]


def folders() -> list[dict[str, Any]]:
    """Return the folders that adlm writes to, and whether they are writable; none is created."""
    from adlm.data import datasets as catalogue
    from adlm.data import datasets as places
    from adlm.engine.records import cache_folder
    from adlm.privacy.ledger import default_path

    any_set = next(iter(catalogue.CATALOGUE.values()))
    known = {
        "data sets": places.cache_folder(any_set).parent,
        "features of private records": cache_folder(),
        "ledgers": default_path("x").parent,
        "temporary files": Path(tempfile.gettempdir()),
        "this folder": Path.cwd(),
    }
    return [
        {"name": name, "path": str(path), "writable": not (trouble := _trouble(path)), "trouble": trouble}
        for name, path in known.items()
    ]


def _trouble(path: Path) -> str:
    """Return why a folder is not writable; empty if it is."""
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return f"{error.strerror or error}: {there}"
