"""Writes the table of families in docs/models.md from the families. Importable without torch.

python -m service.worker.model.families_docs            write it
python -m service.worker.model.families_docs --check    fail if the page is out of date
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from service.worker.model.supported import families

MODEL = "service.worker.model"
PAGE = Path(__file__).parents[3] / "docs" / "models.md"
REMEDY = (
    "docs/models.md is not what the families say: run python -m service.worker.model.families_docs"
)
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->"


def table() -> str:
    """A row per family: its model_type, what it is, and how it decodes on a CPU."""
    rows = ["| `model_type` | models, and what is different about them | a decode step on a CPU |"]
    rows.append("|---|---|---|")
    for family in sorted(families()):
        source = _source(family)
        said = " ".join((ast.get_docstring(source) or "").split())
        rows.append(f"| `{family}` | {said} | {_decoding(source)} |")
    return "\n".join(rows) + "\n"


def _decoding(source: ast.Module) -> str:
    return "one kernel call" if _plain(source) else "layer by layer"


def _plain(source: ast.Module) -> bool:
    """Whether `has_plain_layers` is set neither here nor in the decoders that this one extends."""
    classes = (node for node in source.body if isinstance(node, ast.ClassDef))
    if any(ast.unparse(line) == "has_plain_layers = False" for c in classes for line in c.body):
        return False
    extended = {
        _file(file)
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(MODEL + ".")
        for file in (node.module or "", *(f"{node.module}.{name.name}" for name in node.names))
    }
    return all(_plain(ast.parse(file.read_text("utf-8"))) for file in extended if file.is_file())


def _file(module: str) -> Path:
    *rooms, name = module.removeprefix(MODEL + ".").split(".")
    return Path(__file__).parent.joinpath(*rooms, f"{name}.py")


def _source(family: str) -> ast.Module:
    return ast.parse(_file(f"{MODEL}.families.{family}").read_text("utf-8"))


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE} has no place for the table"
    wanted = before + BEGIN + table() + END + after
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif page != wanted:
        print(REMEDY, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
