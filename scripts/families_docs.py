"""Writes the table of model families in docs/models.md from the classes of the families.

python scripts/families_docs.py            write it
python scripts/families_docs.py --check    fail if the page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from service.worker.model.families import family_decoder
from service.worker.model.supported import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
REMEDY = "docs/models.md is not what the families say: run python scripts/families_docs.py"
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->"


def table() -> str:
    """Return a row per family: its model_type, what it is, and how it decodes on a CPU."""
    rows = ["| `model_type` | models, and what is different about them | a decode step on a CPU |"]
    rows.append("|---|---|---|")
    for name in sorted(FAMILIES):
        family = family_decoder(name)
        said = " ".join((family.__doc__ or "").split())
        decodes = "one kernel call" if family.has_plain_layers else "layer by layer"
        rows.append(f"| `{name}` | {said} | {decodes} |")
    return "\n".join(rows) + "\n"


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
