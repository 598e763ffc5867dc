"""`kvstitch doctor`: runs all checks and says what to do about what they find."""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from rich.text import Text

from kvstitch import service
from kvstitch.service import __version__
from kvstitch.service.cli.options import add_client_options, add_settings, client, settings_of
from kvstitch.service.cli.output import console, emit, plain, table
from kvstitch.service.errors import KvstitchError
from kvstitch.service.settings import unknown_variables
from kvstitch_doctor import Finding, fail, ok, warn

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check what `serve` with the same options and environment would find, and the service at "
        "--url if one runs. Exit code 1 if anything fails."
    )
    add_settings(parser)
    parser.add_argument("--deep", action="store_true", help="also load model and embedder and run "
                        "the worker's start-up check (takes the model's memory)")  # fmt: skip
    add_client_options(parser)
    parser.set_defaults(command=run, url=None)


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
    from kvstitch_doctor import connections, data_folder, model

    yield from _check_packages()
    try:
        settings = settings_of(args)
    except KvstitchError as error:
        yield fail("settings", error.message, "mend the option or the environment variable")
        return
    for said in unknown_variables(os.environ):
        yield warn("settings", said, "correct its name, or remove it")
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    args.url = args.url or os.environ.get("KVSTITCH_URL") or f"http://{host}:{settings.port}"
    with client(args, timeout_s=30.0) as found:
        of_service = list(connections.check_service(found, args.url))
        status = connections.status_of(found)
    # Without a model the one that runs is meant, not the demo's.
    if status and not settings.model:
        yield connections.memory(status)
    else:
        for check in (model.check_model, model.check_loras, model.check_defaults):
            yield from check(settings)
    for check in (
        data_folder.check_folder,
        data_folder.check_index,
        connections.check_tiers,
        connections.check_workers,
        connections.check_address,
    ):
        yield from check(settings)
    if args.deep:
        yield from model.check_start(settings)
    yield from of_service


def _show(findings: list[Finding]) -> None:
    shown = table("", "check", "found", "what to do")
    for f in findings:
        mark = Text(f.level, style=STYLES[f.level])
        shown.add_row(mark, f.check, plain(f.message), plain(f.remedy))
    console().print(shown)
    counts = {level: sum(f.level == level for f in findings) for level in STYLES}
    print(", ".join(f"{n} {level}" for level, n in counts.items()))


def _check_packages() -> Iterator[Finding]:
    """Check the requirements of this checkout, or else of the installed package, without extras."""
    project = Path(service.__file__).parents[2] / "pyproject.toml"
    try:
        if project.is_file():
            texts = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
        else:
            texts = metadata.requires("kvstitch")
    except metadata.PackageNotFoundError:
        texts = None
    required = [Requirement(text) for text in texts or ()]
    required = [r for r in required if r.marker is None or r.marker.evaluate({"extra": ""})]
    if not required:
        yield fail("packages", "kvstitch's own requirements are not known",
                   "install it: pip install kvstitch")  # fmt: skip
        return
    wrong = [line for requirement in required if (line := _problem(requirement))]
    for line in wrong:
        yield fail("packages", line, "pip install -c constraints.txt kvstitch")
    if not wrong:
        python = ".".join(map(str, sys.version_info[:3]))
        many = f"{len(required)} packages in their ranges"
        yield ok("packages", f"kvstitch {__version__}, Python {python}, {many}")


def _problem(requirement: Requirement) -> str:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed ({requirement.specifier} is needed)"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} is {version}, {requirement.specifier} is needed"
