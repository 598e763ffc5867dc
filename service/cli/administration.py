"""`kvstitch keys`: works on a data folder or its database itself."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kvstitch.retriever.scope import ALL_GROUPS, View
from kvstitch.service.cli.options import WrongArgument
from kvstitch.service.cli.output import console, emit, table
from kvstitch.service.gateway.auth.quotas import Limits
from kvstitch.service.gateway.schemas.fields import composed
from kvstitch.service.plugins import hooks
from kvstitch.service.settings import default_data_dir, load
from kvstitch.service.settings.fields import SCOPES, SHARE

if TYPE_CHECKING:
    from kvstitch.service.gateway.auth.keys import KeyStore, StoredKey

# The gateway's databases are imported where they are used, because every command imports this
# module: with SQLAlchemy they take half a second of a core.
DAY_S = 86_400


def add_key_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Works on the data folder itself, also while a service runs from it."
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    create_command = commands.add_parser("create", help="make a key; it is shown once")
    add = create_command.add_argument
    add("--tenant", default="", help="whose documents it sees (default: the unnamed tenant's)")
    add("--name", default="", help="a word for people")
    add("--adapter", default="", help="the LoRA adapter that answers its requests (default: any)")
    add("--scope", action="append", choices=SCOPES, help="may be repeated (default: all, but "
        f"{SHARE} only where it reads all groups)")  # fmt: skip
    reads = create_command.add_mutually_exclusive_group()
    reads.add_argument("--group", action="append", metavar="NAME", dest="groups",
                       help="a group that it belongs to; may be repeated: it reads documents of "
                       "these readers, and those without readers")  # fmt: skip
    reads.add_argument("--no-groups", action="store_const", const=[], dest="groups",
                       help="it reads documents without readers only")  # fmt: skip
    reads.add_argument("--all-groups", action="store_const", const=None, dest="groups",
                       help="it reads all documents of its tenant (the default)")  # fmt: skip
    add("--writes", action="append", metavar="NAME", help="a group that it changes documents for; "
        "may be repeated (default: those it belongs to)")  # fmt: skip
    add("--expires-days", type=float, help="default: never")
    add("--max-documents", type=int, help="documents the tenant may have when this key adds some")
    add("--max-bytes", type=int, help="bytes of text, likewise")
    add("--requests-per-minute", type=int)
    add("--tokens-per-minute", type=int, help="of prompts and answers")
    create_command.set_defaults(command=create)
    list_command = commands.add_parser("list", help="show all keys, without their secrets")
    list_command.set_defaults(command=show)
    revoke_command = commands.add_parser("revoke", help="refuse a key from now on")
    revoke_command.add_argument("key_id", metavar="KEY_ID")
    revoke_command.set_defaults(command=revoke)
    for command in (create_command, list_command, revoke_command):
        command.add_argument("--data-dir", help="the service's data folder")
        command.add_argument("--json", action="store_true", help="print JSON")


def create(args: argparse.Namespace) -> int:
    """Make a key; print it on stdout, and what it may do on stderr."""
    limits = Limits(
        args.max_documents, args.max_bytes, args.requests_per_minute, args.tokens_per_minute
    )
    days = args.expires_days
    usual = set() if args.groups is None else {SHARE}  # what a key has only if it is named
    with _store(args) as store:
        text, key = store.create(
            tenant=args.tenant,
            name=args.name,
            adapter=args.adapter,
            view=View(None if args.groups is None else frozenset(map(composed, args.groups))),
            writes=None if args.writes is None else frozenset(map(composed, args.writes)),
            scopes=frozenset(args.scope or SCOPES) - (usual if args.scope is None else set()),
            limits=limits,
            expires=None if days is None else time.time() + days * DAY_S,
        )
        try:
            _record(args, "create_key", key)
        except BaseException:  # nobody has been shown it
            store.revoke(key.key_id)
            raise
    if args.json:
        emit({"key": text, **_fields(key)})
        return 0
    print(text)
    print(
        f"key {key.key_id} of {_tenant(key)}: {', '.join(sorted(key.scopes))}; it reads "
        f"documents of {_groups(key.view)}, and writes for {_groups(View(key.pen.groups))}; it is "
        "not shown again. Clients of the command line read it from KVSTITCH_API_KEY.",
        file=sys.stderr,
    )
    return 0


def show(args: argparse.Namespace) -> int:
    """List all keys."""
    with _store(args) as store:
        keys = store.all()
    if args.json:
        emit([_fields(key) for key in keys])
        return 0
    shown = table(
        "key", "name", "tenant", "scopes", "groups", "state", "created", "expires", "limits"
    )
    for key in keys:
        limits = [f"{name}={value}" for name, value in asdict(key.limits).items() if value]
        limits += [f"adapter={key.adapter}"] if key.adapter else []
        shown.add_row(
            key.key_id,
            key.name,
            _tenant(key),
            ", ".join(sorted(key.scopes)),
            _groups(key.view)
            + ("" if key.writes is None else f"; writes for {_groups(View(key.writes))}"),
            _state(key),
            _day(key.created),
            "never" if key.expires is None else _day(key.expires),
            "\n".join(limits) or "none",
        )
    console().print(shown)
    return 0


def revoke(args: argparse.Namespace) -> int:
    with _store(args) as store:
        key = store.revoke(args.key_id)
        _record(args, "revoke_key", key)
    if args.json:
        emit(_fields(key))
    else:
        print(f"key {key.key_id} is refused from now on")
    return 0


@contextmanager
def _store(args: argparse.Namespace) -> Iterator[KeyStore]:
    settings = load(data_dir=args.data_dir)
    folder = settings.data_dir
    if not settings.database and folder != default_data_dir() and not folder.is_dir():
        raise WrongArgument(
            f"there is no folder {folder}, so no service would read keys from it: give the "
            "--data-dir of the service, or make the folder first"
        )
    from kvstitch.service.gateway.databases import key_store

    with key_store(settings) as store:
        yield store


def _record(args: argparse.Namespace, action: str, key: StoredKey) -> None:
    recorded = ("key_id", "name", "scopes", "groups", "writes", "expires", "limits", "adapter")
    details = {name: value for name, value in _fields(key).items() if name in recorded}
    settings = load(data_dir=args.data_dir)
    hooks().operator_acted(settings=settings, action=action, tenant=key.tenant, details=details)


def _fields(key: StoredKey) -> dict[str, Any]:
    fields = {**asdict(key), "scopes": sorted(key.scopes), "state": _state(key)}
    del fields["view"]
    groups = {"groups": key.view.groups, "writes": key.pen.groups}
    return fields | {
        name: [ALL_GROUPS] if some is None else sorted(some) for name, some in groups.items()
    }


def _groups(view: View) -> str:
    groups = view.groups
    return "all groups" if groups is None else ", ".join(sorted(groups)) or "no group"


def _state(key: StoredKey) -> str:
    if key.revoked is not None:
        return "revoked"
    return "valid" if key.valid(time.time()) else "expired"


def _tenant(key: StoredKey) -> str:
    return key.tenant or "the unnamed tenant"


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
