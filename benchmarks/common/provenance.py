"""How a table was made, as the last lines of its page.

Raw samples are written beside a page as JSON and are not committed; the page must therefore name
the machine, the versions, the commits and the seeds by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HEADING = "## How this was made"
_SETTINGS = {"Seed": ("seed", "seeds"), "Threads": ("threads",), "Dtype": ("dtype",)}


def provenance(record: Mapping[str, Any]) -> str:
    """Return the lines for a record that holds one or more `environment` entries.

    Machines, versions and commits are those of every environment in the record, each once. A
    commit is followed by `with changes` where the checkout had uncommitted ones.
    """
    environments = list(_environments(record))
    machines = _distinct(
        f"{e['cpu']}, {e['cores']} cores" + (f", {e['gpu']}" if e.get("gpu") else "")
        for e in environments
    )
    versions = _distinct(
        ", ".join([f"Python {e['python']}", *(f"{n} {v}" for n, v in e["packages"].items())])
        for e in environments
    )
    commits = _distinct(
        f"{str(e['commit'])[:12]}{' with changes' if e['uncommitted'] else ''}"
        for e in environments
    )
    lines = [
        HEADING,
        "",
        f"- Machine: {'; '.join(machines)}.",
        f"- Versions: {'; '.join(versions)}.",
        f"- Commit: {', '.join(commits)}.",
    ]
    for title, names in _SETTINGS.items():
        if found := _distinct(str(value) for name in names for value in _values(record, name)):
            lines.append(f"- {title}: {', '.join(found)}.")
    return "\n".join(["", *lines, ""])


def _environments(value: object) -> Iterator[dict[str, Any]]:
    for found in _values(value, "environment"):
        if isinstance(found, dict) and "commit" in found:
            yield found


def _values(value: object, name: str) -> Iterator[Any]:
    """Every value under the key `name`, at any depth; None is left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == name and isinstance(inner, list):
                yield from inner
            elif key == name and inner is not None:
                yield inner
            else:
                yield from _values(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, name)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
