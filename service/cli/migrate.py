"""`kvstitch migrate`: copies a data folder's databases to PostgreSQL."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.cli.output import emit
from service.gateway.migration import migrate
from service.settings import load


def run(args: argparse.Namespace) -> int:
    """Copy, and print how much."""
    settings = load(database=args.to, data_dir=args.from_)
    counts = migrate(Path(settings.data_dir), settings.database)
    if args.json:
        emit(counts)
        return 0
    print(", ".join(f"{number} {name}" for name, number in counts.items()) + " copied")
    print(f"Serve with KVSTITCH_DATABASE set; {settings.data_dir} stays as it is, and its KV is "
          "kept if a gateway starts from it within ten minutes.")  # fmt: skip
    return 0
