"""python -m kvstitch_dashboards [--check]: write the dashboards, or fail if they are not these."""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from kvstitch_dashboards.cache import cache
from kvstitch_dashboards.requests import requests
from kvstitch_dashboards.slo import slo

FOLDER = Path(__file__).parents[1] / "dashboards"


def files() -> dict[str, str]:
    """File name to what belongs into it."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {f"{d.uid}.json": encoder.encode(d) + "\n" for d in (requests(), cache(), slo())}


def main(arguments: list[str]) -> int:
    wanted = files()
    if arguments == ["--check"]:
        found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
        wrong = sorted(n for n in wanted | found if wanted.get(n) != found.get(n))
        if wrong:
            print(
                f"{', '.join(wrong)}: not what the code makes; run make dashboards", file=sys.stderr
            )
        return int(bool(wrong))
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
