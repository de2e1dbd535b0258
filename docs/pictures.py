"""MkDocs hook: show the figures under results/ in the pages, without keeping a second copy of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_PICTURE = re.compile(r"\]\(\.\./(results/[\w./-]+\.svg)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add every figure of the results to what is built."""
    root = Path(config["docs_dir"]).parent
    for path in sorted((root / "results").rglob("*.svg")):
        files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead a picture that a reader of the files finds beside docs/ to where the site has it."""
    return _PICTURE.sub(r"](\1)", markdown)
