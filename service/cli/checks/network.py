"""Checks the address to listen on: free, and not open to anyone without a key."""

from __future__ import annotations

import time
from collections.abc import Iterator

from service.cli.checks.data import served_by
from service.cli.checks.finding import Finding, fail, ok, warn
from service.errors import KvstitchError
from service.gateway.auth.access import is_loopback
from service.gateway.auth.keys import StoredKey
from service.gateway.databases import key_store
from service.gateway.server import listen
from service.settings import Settings


def check(settings: Settings) -> Iterator[Finding]:
    yield _port(settings)
    yield _exposure(settings)


def _port(settings: Settings) -> Finding:
    where = f"{settings.host}:{settings.port}"
    try:
        listen(settings.host, settings.port).close()
    except KvstitchError as error:
        if pid := served_by(settings.data_dir):
            return ok("port", f"{where} is taken; process {pid} serves from the data folder")
        return fail("port", f"{where} is taken or not of this machine", error.message)
    return ok("port", f"{where} is free")


def _exposure(settings: Settings) -> Finding:
    keys: list[StoredKey] = []
    if settings.database or (settings.data_dir / "keys.sqlite3").is_file():
        try:
            with key_store(settings) as store:
                keys = store.all()
        except KvstitchError as error:
            what = "see that it can be reached" if settings.database else "restore the file"
            return fail("keys", error.message, f"{what}, or make new keys")
    near = is_loopback(settings.host)
    if not keys or settings.allow_anonymous:
        if near:
            return ok("keys", f"no key is needed; only this machine reaches {settings.host}")
        if settings.allow_anonymous:
            return warn("keys", f"whoever reaches {settings.host} is served without a key",
                        "sure? else unset KVSTITCH_ALLOW_ANONYMOUS")  # fmt: skip
        return fail("keys", f"others reach {settings.host}, and there is no key: serve refuses",
                    "kvstitch keys create")  # fmt: skip
    now = time.time()
    valid = sum(key.valid(now) for key in keys)
    if not valid:
        return fail("keys", f"none of {len(keys)} keys is valid any more: everybody is refused",
                    "kvstitch keys create")  # fmt: skip
    return ok("keys", f"{valid} of {len(keys)} keys are valid; every request needs one")
