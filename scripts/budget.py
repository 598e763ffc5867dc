"""Counts the tree and holds it against `[tool.budget]` of pyproject.toml.

`make check` runs `python -m scripts.budget`, which fails where a number is exceeded. To raise one,
change it in pyproject.toml and say why in CHANGELOG.md. Stops and returns of a request are measured
by `python -m scripts.walk`.

- **core**: Python outside the folders that `[tool.budget] beside` names.
- **twins**: pairs of classes of the core with at least two fields each, of which both have 70 % in
  common (twice the common fields over the sum of both).
- **long docstrings**: functions of the core whose docstring has more lines than what follows it.
"""

import argparse
import ast
import itertools
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def counted(root: Path, beside: Iterable[str]) -> dict[str, int]:
    """Return every figure of the tree by the name that it has in the budget."""
    tracked = subprocess.check_output(["git", "-C", str(root), "ls-files"], text=True).splitlines()
    files = [Path(name) for name in tracked if (root / name).is_file()]
    lines = {f: len((root / f).read_text().splitlines()) for f in files if f.suffix == ".py"}
    core = {f: n for f, n in lines.items() if f.parts[0] not in beside}
    trees = [ast.parse((root / f).read_text()) for f in core]
    pages = [f for f in files if f.suffix in (".md", ".rst", ".ipynb") and f.parts[0] == "docs"]
    words = {page: len((root / page).read_text().split()) for page in pages}
    figures = {
        "core lines": sum(core.values()),
        "core files": len(core),
        "longest core file": max(core.values()),
        "twins": twins(trees),
        "long docstrings": sum(map(long_docstrings, trees)),
        "docs pages": len(pages),
        "docs words": sum(words.values()),
        "README words": len((root / "README.md").read_text().split()),
    }
    for folder in ("plugins", "tests", "benchmarks"):
        inside = {f: n for f, n in lines.items() if f.parts[0] == folder}
        if folder == "plugins":
            inside = {f: n for f, n in inside.items() if not f.parts[2].startswith("tests")}
            figures["core and plugins files"] = len(core) + len(inside)
        figures[f"{folder} lines"] = sum(inside.values())
    return figures


def room_lines(root: Path, room: str) -> int:
    """Return the lines of Python below a folder, or of one file."""
    names = subprocess.check_output(["git", "-C", str(root), "ls-files", room], text=True)
    paths = [root / name for name in names.splitlines() if name.endswith(".py")]
    return sum(len(path.read_text().splitlines()) for path in paths if path.is_file())


def twins(trees: Iterable[ast.Module]) -> int:
    classes = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    records = [names for names in map(field_names, classes) if len(names) >= 2]
    return sum(
        2 * len(a & b) >= 0.7 * (len(a) + len(b)) for a, b in itertools.combinations(records, 2)
    )


def field_names(cls: ast.ClassDef) -> set[str]:
    return {
        statement.target.id
        for statement in cls.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and "ClassVar" not in ast.unparse(statement.annotation)
    }


def long_docstrings(tree: ast.Module) -> int:
    return sum(docstring > body for docstring, body in functions(tree))


def functions(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the lines of the docstring and of the rest, for every function that has both."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            docstring, last = node.body[0], node.body[-1]
            if len(node.body) > 1:
                end = docstring.end_lineno or 0
                yield end - docstring.lineno + 1, (last.end_lineno or 0) - end


def budget(root: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["budget"]
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="hold the tree against its budget")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout that is counted")
    root = parser.parse_args().root.resolve()
    limits = budget(ROOT)
    rows = [(name, n, limits.get(name)) for name, n in counted(root, limits["beside"]).items()]
    rows += [(room, room_lines(root, room), limit) for room, limit in limits["rooms"].items()]
    over = 0
    for name, now, limit in rows:
        mark = "  OVER" if limit is not None and now > limit else ""
        over += bool(mark)
        print(f"{name:<32} {now:>8,} {'' if limit is None else f'{limit:>8,}'}{mark}")
    return over > 0


if __name__ == "__main__":
    sys.exit(main())
