"""`kvstitch migrate`: a service goes on from PostgreSQL as it was."""

from __future__ import annotations

import argparse

from kvstitch.service.plugins import Verb, hookimpl


@hookimpl
def command_line_verbs() -> list[Verb]:
    return [Verb("migrate", "copy a data folder to PostgreSQL", _add_arguments)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy catalog, jobs, deletions, receipts and keys of a data folder to PostgreSQL, all of "
        "them or nothing. No service may run from the folder, which stays as it is."
    )
    parser.add_argument("--from", dest="from_", metavar="DIR", help="the service's data folder")
    parser.add_argument("--to", metavar="URL", required=True, help="an empty database, "
                        "postgresql://user:password@host/name")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    parser.set_defaults(command=_copy)


def _copy(args: argparse.Namespace) -> int:
    """Copy, and print how much."""
    from kvstitch.service.cli.output import emit
    from kvstitch.service.settings import load
    from kvstitch_migrate.migration import migrate

    settings = load(database=args.to, data_dir=args.from_)
    counts = migrate(settings)
    if args.json:
        emit(counts)
        return 0
    print(", ".join(f"{number} {name}" for name, number in counts.items()) + " copied")
    print(f"Serve with KVSTITCH_DATABASE set; {settings.data_dir} stays as it is, and its KV is "
          "kept if a gateway starts from it within ten minutes.")  # fmt: skip
    return 0
