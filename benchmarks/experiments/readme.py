"""Write the tables of README.md from the results, so that no figure there is typed by hand.

A table stands between `<!-- results: results/frontier-mnist/summary.json -->` and `<!-- /results -->`; the
path is relative to the README. `bench.json` files give the table of the bench. A list of methods after the
path keeps those rows: `<!-- results: results/frontier-mnist/summary.json moments psgd-tanh -->`. A word in
place of a path selects all experiments whose names begin with it: `<!-- results: frontier -->`.
The word `tests` after the path gives the t-tests in place of the table, `calibration` the calibration
error, `published` the published figures and ours. Results on tables are quoted by data
set and measure: `<!-- results: results/tables.jsonl adult accuracy -->`. `<!-- results: results overview -->`
is one small table of all data sets.

    python -m benchmarks.experiments.readme            # rewrite README.md
    python -m benchmarks.experiments.readme --check    # exit 1 if it would change
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from adlm.errors import UserError
from adlm.runtime.artefact import write_file
from benchmarks.bench.run import HEADINGS, table_rows
from benchmarks.experiments import frontier_page, kinds, regression
from benchmarks.experiments.catalogue import EXPERIMENTS
from benchmarks.experiments.overview import overview
from benchmarks.experiments.run import SUMMARY
from benchmarks.experiments.tables import quoted
from benchmarks.experiments.tabulate import calibration, grid, table, tests, trials

INSTEAD = {"tests": tests, "calibration": calibration, "published": frontier_page.table}  # of the main table
_BLOCK = re.compile(r"<!-- results: (?P<path>\S+)(?P<methods>[^>]*?) -->\n.*?<!-- /results -->", re.DOTALL)


def rewritten(text: str, folder: Path) -> str:
    """Return the text with every marked table rewritten from its result file."""

    def block(match: re.Match[str]) -> str:
        path, methods = match["path"], match["methods"].split()
        head = " ".join([path, *methods])
        if methods == ["overview"]:
            made = overview(folder / path)
        elif path.endswith("kinds.jsonl"):
            made = kinds.table(folder / path)
        elif path.endswith("regression.jsonl"):
            made = regression.quoted(folder / path, methods)
        elif path.endswith("trials.jsonl"):
            made = trials(folder / path)
        elif path.endswith(".jsonl"):
            made = quoted(folder / path, methods)
        elif path.endswith(".json"):
            made = _table(folder / path, methods)
        else:
            made = _several(folder, path, methods)
        return f"<!-- results: {head} -->\n{made}\n<!-- /results -->"

    if text.count("<!-- results:") != len(_BLOCK.findall(text)):
        raise UserError("every <!-- results: PATH --> line needs a <!-- /results --> line after it")
    return _BLOCK.sub(block, text)


def _several(folder: Path, word: str, methods: list[str]) -> str:
    """Tables of all experiments whose names begin with a word, in the order of the catalogue."""
    paths = [folder / "results" / name / SUMMARY for name in EXPERIMENTS if name.startswith(word)]
    there = [path for path in paths if path.exists()]
    if not there:
        raise UserError(f"there are no results whose names begin with {word!r}; run the experiment first")
    titled = [(json.loads(path.read_text(encoding="utf-8"))["title"], path) for path in there]
    return "\n\n".join(f"{title}:\n\n{_table(path, methods)}" for title, path in titled)


def _table(path: Path, methods: list[str]) -> str:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"the results {path} cannot be read ({error}); run the experiment first") from None
    if "ratios" in found:
        return grid(HEADINGS, [table_rows(entry) for entry in found["ratios"]])
    if len(methods) == 1 and methods[0] in INSTEAD:
        return INSTEAD[methods[0]](found)
    if methods:
        known = {row["method"] for row in found["rows"]}
        for method in methods:
            if method not in known:
                raise UserError(f"{path} has no method {method!r}; it has {', '.join(sorted(known))}")
        found["rows"] = [row for name in methods for row in found["rows"] if row["method"] == name]
    return table(found)


def main(words: list[str]) -> int:
    """Rewrite a README, or check that nothing in it would change."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.readme", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("README.md"))
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something would")
    options = parser.parse_args(words)
    try:
        text = options.file.read_text(encoding="utf-8")
        new = rewritten(text, options.file.parent)
        if options.check:
            return int(new != text)
        if new != text:
            write_file(options.file, new.encode(), what="README")
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
