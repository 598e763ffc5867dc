"""Licences of what serving installs: from the packages' own metadata, as SPDX expressions."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from scripts.release import lock

PAGE = Path("docs/dependencies.md")
_BEGIN, _END = "<!-- licences -->\n", "<!-- end of licences -->"
# May be used by, and shipped beside, software under Apache-2.0. The weak copyleft ones are
# libraries that are installed as they are, and can be replaced.
ALLOWED = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python",
        "ISC",
        "LGPL-2.1-or-later", "LGPL-3.0-only", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0",
        "Zlib",
    }
)  # fmt: skip
# What packages without an expression say, in their own words.
_SPDX = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0 license": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache2": "Apache-2.0",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mit, bsd": "MIT AND BSD-3-Clause",
    "bsd-3-clause, apache-2.0, dependency licenses": "BSD-3-Clause AND Apache-2.0",
}
# They say "BSD", or several of which one can be chosen; looked up in their licence files.
_LOOKED_UP = {
    "docutils": "BSD-2-Clause",  # parts are in the public domain; the GPL is a tool's, not imported
    "jinja2": "BSD-3-Clause",
    "mpmath": "BSD-3-Clause",
    "pyphen": "LGPL-2.1-or-later",  # or GPL-2.0-or-later, or MPL-1.1
    "scipy": "BSD-3-Clause",
    "sympy": "BSD-3-Clause",
    "webencodings": "BSD-3-Clause",
}


def write(root: Path) -> None:
    """Write the table of the page from what is installed beside this program.

    Raises:
        SystemExit: A package of the lock is not installed, or its licence is not clear.
    """
    packages: dict[str, list[str]] = {}
    for name, found in sorted(gathered(root).items()):
        packages.setdefault(found, []).append(name)
    rows = [f"| {found} | {', '.join(names)} |\n" for found, names in sorted(packages.items())]
    table = "".join(["| licence | packages |\n", "|---|---|\n", *rows])
    before, after = _around_table(root)
    (root / PAGE).write_text(f"{before}{_BEGIN}{table}{_END}{after}", encoding="utf-8")


def _around_table(root: Path) -> tuple[str, str]:
    before, _, rest = (root / PAGE).read_text(encoding="utf-8").partition(_BEGIN)
    return before, rest.partition(_END)[2]


def gathered(root: Path) -> dict[str, str]:
    """Return the licences of the lock's packages and of torch, as those installed say."""
    names = lock.pinned((root / lock.FILE).read_text(encoding="utf-8"))
    return {name: expression(name) for name in ["torch", *names]}


def listed(source: Path) -> dict[str, str]:
    """Return what the page says, by package."""
    _, _, rest = (source / PAGE).read_text(encoding="utf-8").partition(_BEGIN)
    rows = re.findall(r"(?m)^\| (.+) \| (.+) \|$", rest.partition(_END)[0])[1:]
    return {name: licence for licence, names in rows for name in names.split(", ")}


def refused(expression: str) -> bool:
    """Return whether a licence is not allowed: of those joined by OR one has to be."""
    choices = re.split(r" OR ", expression.replace("(", "").replace(")", ""))
    return not any(
        all(part.split(" WITH ")[0] in ALLOWED for part in choice.split(" AND "))
        for choice in choices
    )


def expression(name: str) -> str:
    """Return the licence of an installed package as an SPDX expression.

    Raises:
        SystemExit: It is not installed, or its licence is not clear.
    """
    try:
        about = metadata.metadata(name).json
    except metadata.PackageNotFoundError:
        raise SystemExit(f"release: {name} is not installed: run make setup") from None
    if name in _LOOKED_UP:
        return _LOOKED_UP[name]
    if stated := about.get("license_expression"):
        return str(stated)
    said = str(about.get("license") or "").strip()
    classifiers = [
        line.split(" :: ")[-1]
        for line in about.get("classifier") or ()
        if line.startswith("License :: OSI Approved :: ")
    ]
    for text in (said, *(classifiers if len(classifiers) == 1 else ())):
        found = _SPDX.get(text.lower(), text)
        if found and not refused(found):
            return str(found)
    raise SystemExit(f"release: the licence of {name} is not clear: {said[:80]!r}, {classifiers}")
