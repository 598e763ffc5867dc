"""`kvstitch audit`: the audit log of a data folder or database as lines, and if it is whole."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstitch.service.cli.options import WrongArgument
from kvstitch.service.cli.output import emit
from kvstitch.service.settings import load

if TYPE_CHECKING:
    from kvstitch_audit.audit_log import AuditLog
    from kvstitch_audit.chain import Head

# The gateway's databases are imported where they are used (see administration.py).
_HEAD = re.compile(r"(?:(?P<tenant>.*)=)?(?P<number>\d+):(?P<hash>[0-9a-f]{64})")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Works on the data folder itself, also while a service runs from it."
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    out = commands.add_parser("export", help="write the entries as JSON lines, the heads last")
    out.add_argument("--tenant", help="of this tenant alone; '': the unnamed one (default: of all)")
    out.set_defaults(command=export)
    check = commands.add_parser("verify", help="say whether entries were cut, changed or moved")
    check.add_argument("file", nargs="?", metavar="FILE", help="what `export` has written, - for "
                       "stdin (default: what the data folder holds)")  # fmt: skip
    check.add_argument("--head", action="append", default=[], metavar="[TENANT=]NUMBER:HASH",
                       help="an end that was noted earlier: the entry must be there; may be "
                       "repeated")  # fmt: skip
    check.set_defaults(command=verify)
    for command in (out, check):
        command.add_argument("--data-dir", help="the service's data folder")
        command.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")


def export(args: argparse.Namespace) -> int:
    """Write all entries, then one line with the ends of the chains."""
    with _log(args) as log:
        heads = log.heads()
        if args.tenant is not None:
            heads = {name: head for name, head in heads.items() if name == args.tenant}
        for entry in log.all(heads):
            _line(entry)
    _line({"heads": {tenant: asdict(head) for tenant, head in sorted(heads.items())}})
    return 0


def verify(args: argparse.Namespace) -> int:
    """Print what is wrong; 1 if anything is."""
    from kvstitch_audit.chain import verify as verified

    noted = _noted(args.head)
    seen: dict[str, dict[int, str]] = {tenant: {} for tenant in noted}
    count = 0

    def watched(entries: Iterator[Any]) -> Iterator[Any]:
        nonlocal count
        for entry in entries:
            count += 1
            if isinstance(entry, dict) and entry.get("tenant") in seen:
                seen[entry["tenant"]][entry.get("number", 0)] = str(entry.get("hash"))
            yield entry

    if args.file is None:
        with _log(args) as log:
            heads = log.heads()
            faults = verified(watched(log.all(heads)), heads)
    else:
        entries, heads = _read(args.file)
        faults = verified(watched(iter(entries)), heads)
    if not count and args.file is not None:
        faults.append(f"{args.file} holds no entry: there is nothing to check")
    for tenant, marks in noted.items():
        for mark in marks:
            if seen[tenant].get(mark.number) != mark.hash:
                faults.append(
                    f"tenant {tenant!r}: entry {mark.number} has not the hash that was noted, or "
                    "is not there"
                )
    ends = {tenant: asdict(head) for tenant, head in sorted(heads.items())}
    if args.json:
        emit({"whole": not faults, "entries": count, "faults": faults, "heads": ends})
    else:
        for fault in faults:
            print(fault)
        if not faults:
            print(f"{count} entries, whole and in order" if count else "no entries yet")
            for tenant, head in ends.items():
                print(f"head of {tenant or 'the unnamed tenant'}: {head['number']}:{head['hash']}")
    return 1 if faults else 0


@contextmanager
def _log(args: argparse.Namespace) -> Iterator[AuditLog]:
    from kvstitch_audit.audit_log import opened

    settings = load(data_dir=args.data_dir)
    with opened(settings) as log:
        if log is None:
            where = "the database" if settings.database else settings.data_dir
            raise WrongArgument(
                f"{where} holds no audit log: "
                "give the --data-dir of a service that keeps one (KVSTITCH_AUDIT=true)"
            )
        yield log


def _read(file: str) -> tuple[list[Any], dict[str, Head]]:
    """Return the entries and the heads of an export."""
    from kvstitch_audit.chain import Head

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise WrongArgument(f"{file} cannot be read as an export: {error}") from error
    heads: dict[str, Head] = {}
    if lines and isinstance(lines[-1], dict) and isinstance(lines[-1].get("heads"), dict):
        try:
            heads = {name: Head(**head) for name, head in lines.pop()["heads"].items()}
        except TypeError as error:
            raise WrongArgument(f"the heads of {file} are none: {error}") from error
    return lines, heads


def _noted(heads: list[str]) -> dict[str, list[Head]]:
    from kvstitch_audit.chain import Head

    found: dict[str, list[Head]] = {}
    for text in heads:
        if (match := _HEAD.fullmatch(text)) is None:
            raise WrongArgument(f"--head {text!r} must be NUMBER:HASH or TENANT=NUMBER:HASH")
        mark = Head(int(match["number"]), match["hash"])
        found.setdefault(match["tenant"] or "", []).append(mark)
    return found


def _line(content: Any) -> None:
    print(json.dumps(content, sort_keys=True, separators=(",", ":")))
