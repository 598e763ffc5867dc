"""`kvstitch encryption`: the master key, and the keys of tenants in a data folder or database."""

import argparse
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstitch.service.cli.options import WrongArgument
from kvstitch.service.cli.output import console, emit, table
from kvstitch.service.plugins import hooks
from kvstitch.service.settings import Settings, load

if TYPE_CHECKING:
    from kvstitch.service.gateway.encryption.tenant_keys import TenantKeys

# The gateway's databases are imported where they are used (see administration.py).


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Works on the data folder or database itself, with the master key that the settings name, "
        "also while a service runs from it."
    )
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    new = commands.add_parser("new-master", help="write a new master key to a file")
    new.add_argument("file", metavar="FILE", type=Path, help="must not exist")
    new.set_defaults(command=new_master)
    listed = commands.add_parser("keys", help="show which tenants have which keys")
    listed.set_defaults(command=show)
    turn = commands.add_parser(
        "rotate", help="give a tenant a new key; what is stored stays readable"
    )
    turn.set_defaults(command=rotate)
    wrap = commands.add_parser(
        "rewrap", help="wrap the tenants' keys by another master key, which is set afterwards"
    )
    target = wrap.add_mutually_exclusive_group(required=True)
    target.add_argument("--new-key-file", type=Path, metavar="FILE", help="the new master key")
    target.add_argument("--new-kms", metavar="COMMAND", help="the new encryption_kms")
    wrap.set_defaults(command=rewrap)
    gone = commands.add_parser(
        "delete",
        help="delete a tenant's keys and documents: its stored KV can be read no more, not in "
        "backups either",
    )
    gone.add_argument("--yes", action="store_true", help="do it; without, nothing is done")
    gone.set_defaults(command=delete)
    for command in (turn, gone):
        command.add_argument("--tenant", required=True, help="'': the unnamed one")
    for command in (listed, turn, wrap, gone):
        command.add_argument("--data-dir", help="the service's data folder")
        command.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")


def new_master(args: argparse.Namespace) -> int:
    """Write 32 random bytes in hex to a file that only this user can read."""
    try:
        descriptor = os.open(args.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise WrongArgument(f"{args.file} cannot be made: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    print(
        f"{args.file} holds a new master key: set KVSTITCH_ENCRYPTION_KEY_FILE, and keep a copy "
        "elsewhere. Without it nothing that is stored can be read."
    )
    return 0


def show(args: argparse.Namespace) -> int:
    """List all keys, without their secrets."""
    with _keys(load(data_dir=args.data_dir)) as keys:
        rows = keys.rows()
    fields = ("tenant", "key_id", "created")
    if args.json:
        emit([dict(zip(fields, row, strict=True)) for row in rows])
        return 0
    shown = table(*fields)
    for tenant, key_id, created in rows:
        day = datetime.fromtimestamp(created, UTC).date().isoformat()
        shown.add_row(tenant or "the unnamed tenant", key_id, day)
    console().print(shown)
    return 0


def rotate(args: argparse.Namespace) -> int:
    settings = load(data_dir=args.data_dir)
    with _keys(settings) as keys:
        key = keys.rotate(args.tenant)
    _record(settings, args.tenant, "rotate_key", {"key_id": key.id.hex()})
    return _say(args, {"tenant": args.tenant, "key_id": key.id.hex()},
                f"what is stored from now on is sealed under the key {key.id.hex()}")  # fmt: skip


def rewrap(args: argparse.Namespace) -> int:
    from kvstitch.service.gateway.encryption.master_key import master_key

    settings = load(data_dir=args.data_dir)
    chosen = {"encryption_key_file": args.new_key_file, "encryption_kms": args.new_kms or ""}
    new = master_key(settings.model_copy(update={**chosen, "encryption_key": ""}))
    assert new is not None
    with _keys(settings) as keys:
        count = keys.rewrap(new)
    name = "KVSTITCH_ENCRYPTION_KMS" if args.new_kms else "KVSTITCH_ENCRYPTION_KEY_FILE"
    _record(settings, "", "rewrap_keys", {"keys": count})
    return _say(args, {"keys": count},
                f"{count} keys are wrapped by the new master key: set {name} to it before the next "
                "start, and destroy the old one")  # fmt: skip


def delete(args: argparse.Namespace) -> int:
    """Delete a tenant's keys and rows, and print the receipt."""
    if not args.yes:
        raise WrongArgument(
            f"this makes everything of the tenant {args.tenant!r} unreadable for ever, documents, "
            "KV, jobs and their backups: say --yes"
        )
    from kvstitch.service.gateway.databases import delete_keys

    settings = load(data_dir=args.data_dir)
    with _keys(settings) as keys:
        receipt = delete_keys(settings, keys, args.tenant)
    _record(settings, args.tenant, "delete_keys", receipt)
    return _say(args, receipt,
                f"{len(receipt['key_ids'])} keys are deleted, and with them {receipt['documents']} "
                f"documents in {receipt['chunks']} chunks: receipt {receipt['receipt_id']}. Their "
                "KV in the tiers cannot be read any more, and goes when its room is "
                "needed.")  # fmt: skip


@contextmanager
def _keys(settings: Settings) -> Iterator["TenantKeys"]:
    from kvstitch.encryption.keyring import EncryptionError
    from kvstitch.service.gateway.encryption.tenant_keys import tenant_keys_of
    from kvstitch.service.gateway.service_database import shared_database

    url = settings.database
    keys = tenant_keys_of(settings, shared_database(url, connections=1) if url else None)
    if keys is None:
        raise WrongArgument(
            "nothing is encrypted here: set encryption_key_file (KVSTITCH_ENCRYPTION_KEY_FILE), "
            "encryption_key or encryption_kms as the service has it"
        )
    try:
        keys.start()
        yield keys
    except EncryptionError as error:
        raise WrongArgument(str(error)) from error
    finally:
        keys.close()


def _record(settings: Settings, tenant: str, action: str, details: dict[str, Any]) -> None:
    hooks().operator_acted(settings=settings, action=action, tenant=tenant, details=details)


def _say(args: argparse.Namespace, fields: dict[str, Any], sentence: str) -> int:
    if args.json:
        emit(fields)
    else:
        print(sentence)
    return 0
