"""What the keys in a file of records stand for, so that a table needs neither model nor methods.

Beside `samples-….jsonl` lies `samples-….about.json`: names and parameters of the configurations by
key, and what they were measured on. A run that is continued adds to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fidelity.compared.configuration import Configuration


def about_path(records: Path) -> Path:
    return records.with_suffix(".about.json")


def note(
    records: Path, configurations: Sequence[Configuration], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Adds these configurations, each with the facts of the run that asked for it first."""
    path = about_path(records)
    known = read(records) if path.exists() else {}
    for each in configurations:
        known.setdefault(
            each.key,
            {
                "name": each.name,
                "method": f"{type(each.method).__module__}: {each.method!r}",
                "prefix_mode": each.prefix_mode,
                "codec": each.codec,
                **facts,
            },
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return known


def read(records: Path) -> dict[str, Any]:
    """By key of the configuration, in the order in which they were first asked for.

    Raises:
        OSError: there is no such file.
    """
    known: dict[str, Any] = json.loads(about_path(records).read_text(encoding="utf-8"))
    return known
