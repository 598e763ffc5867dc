"""`kvstitch doctor`: runs all checks and says what to do about what they find."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict

from rich.text import Text

from service.cli.checks.finding import Finding, fail
from service.cli.output import console, emit, plain, table
from service.cli.service_client import client
from service.errors import KvstitchError
from service.settings import Settings, load

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 if no check fails, else 1."""
    findings = list(_findings(args))
    worst = max((f.level for f in findings), key=list(STYLES).index)
    if args.json:
        emit({"level": worst, "checks": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    return 1 if worst == "fail" else 0


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    # Here, because every command imports this module.
    from service.cli.checks import (
        data,
        defaults,
        index,
        loras,
        model,
        network,
        packages,
        running,
        tiers,
        workers,
    )

    yield from packages.check()
    names = set(Settings.model_fields)
    try:
        settings = load(**{name: v for name, v in vars(args).items() if name in names})
    except KvstitchError as error:
        yield fail("settings", error.message, "mend the option or the environment variable")
        return
    for subject in (model, loras, defaults, data, index, tiers, workers, network):
        yield from subject.check(settings)
    if args.deep:
        from service.cli.checks import deep

        yield from deep.check(settings)
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    own = f"http://{host}:{settings.port}"
    args.url = args.url or os.environ.get("KVSTITCH_URL") or own
    with client(args) as http:
        yield from running.check(http, args.url)


def _show(findings: list[Finding]) -> None:
    shown = table("", "check", "found", "what to do")
    for f in findings:
        mark = Text(f.level, style=STYLES[f.level])
        shown.add_row(mark, f.check, plain(f.message), plain(f.remedy))
    console().print(shown)
    counts = {level: sum(f.level == level for f in findings) for level in STYLES}
    print(", ".join(f"{n} {level}" for level, n in counts.items()))
