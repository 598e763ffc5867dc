"""Writes the table of families in docs/models.md from the adapters. Importable without torch.

python -m service.worker.model.families_docs            write it
python -m service.worker.model.families_docs --check    fail if the page is out of date
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from service.worker.model.supported import families

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
REMEDY = (
    "docs/models.md is not what the adapters say: run python -m service.worker.model.families_docs"
)
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->"


def table() -> str:
    """A row per family: its model_type, what it is, and how it decodes on a CPU."""
    rows = ["| `model_type` | models, and what is different about them | a decode step on a CPU |"]
    rows.append("|---|---|---|")
    for family in sorted(families()):
        source = ast.parse((Path(__file__).parent / "adapters" / f"{family}.py").read_text("utf-8"))
        said = " ".join((ast.get_docstring(source) or "").split())
        rows.append(f"| `{family}` | {said} | {_decoding(source)} |")
    return "\n".join(rows) + "\n"


def _decoding(source: ast.Module) -> str:
    text = ast.unparse(source)
    plain = "has_plain_layers = False" not in text and "ExpertsAdapter" not in text
    return "one kernel call" if plain else "layer by layer"


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
