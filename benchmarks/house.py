"""Print counts of modules, parameters and lines: `python benchmarks/house.py`. Imports nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "adlm"
MANY, DOCUMENTED = 8, 4

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: Function) -> int:
    """Count the parameters of a function, without self and cls."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def functions(path: Path) -> Iterator[tuple[str, Function, bool]]:
    """Yield the dotted name of each function of a file, the function, and whether it is public."""

    def inside(node: ast.AST, name: str, public: bool) -> Iterator[tuple[str, Function, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                full, shown = f"{name}.{child.name}", public and not child.name.startswith("_")
                if isinstance(child, ast.ClassDef):
                    yield from inside(child, full, shown)
                else:
                    yield full, child, shown
                    yield from inside(child, full, False)
            else:
                yield from inside(child, name, public)

    return inside(ast.parse(path.read_text()), str(path.relative_to(PACKAGE)), True)


def main() -> None:
    """Print the counts."""
    paths = sorted(PACKAGE.rglob("*.py"))
    every = [entry for path in paths for entry in functions(path)]
    many = sorted(
        (
            (parameters(f), name)
            for name, f, _ in every
            if parameters(f) > MANY and not name.startswith("cli/")
        ),
        reverse=True,
    )
    commands = [name for name, f, _ in every if parameters(f) > MANY and name.startswith("cli/")]
    public = [
        f for name, f, shown in every if shown and parameters(f) >= DOCUMENTED and not name.startswith("cli/")
    ]
    documented = [f for f in public if "Parameters\n" in (ast.get_docstring(f) or "")]
    lines = {path: path.read_text().splitlines() for path in paths}
    top = sorted(path.stem for path in PACKAGE.glob("*.py"))
    print(f"modules at the top: {len(top)} ({', '.join(top)})")
    print(f"functions with more than {MANY} parameters: {len(many)}, and {len(commands)} commands")
    for count, name in many:
        print(f"  {count:3} {name}")
    print(f"public functions with {DOCUMENTED} or more parameters: {len(public)}")
    print(f"  of them with a Parameters section: {len(documented)}")
    print(f"fmt: skip: {sum('# fmt: skip' in line for text in lines.values() for line in text)}")
    print(f"modules: {len(paths)}, source lines: {sum(len(text) for text in lines.values())}")


if __name__ == "__main__":
    main()
