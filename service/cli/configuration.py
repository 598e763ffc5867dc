"""`kvstitch config`: the settings that a service would have, where from, and what is wrong."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstitch.service.cli.options import add_settings, given_settings, settings_of
from kvstitch.service.cli.output import console, emit, plain, table
from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import all_settings, unknown_variables
from kvstitch.service.settings.fields import is_secret, masked
from kvstitch.service.settings.loading import find_file, is_reloadable, read_file, sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Take the options, environment and file of `serve`, start nothing and ask nobody."
    )
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    for name, command, help in (
        ("show", show, "every setting with its value, and where that comes from"),
        ("check", check, "say what is wrong; exit code 1 if anything is"),
    ):
        made = commands.add_parser(name, help=help)
        add_settings(made)
        made.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
        made.set_defaults(command=command)


def show(args: argparse.Namespace) -> int:
    """Print all settings; secrets are masked."""
    settings = settings_of(args)
    file, in_file = _file(args)
    came_from = sources(given_settings(args), os.environ, in_file, file)
    rows = [
        {
            "name": name,
            "value": _format_value(name, getattr(settings, name)),
            "source": came_from[name],
            "reloadable": is_reloadable(name, all_settings()),
        }
        for name in sorted(all_settings().model_fields)
    ]
    if args.json:
        emit({"file": str(file) if file else None, "settings": rows})
        return 0
    shown = table("setting", "value", "from", "a change takes")
    for row in rows:
        value = "" if row["value"] is None else plain(row["value"])
        effect = "a reload" if row["reloadable"] else "a restart"
        shown.add_row(str(row["name"]), value, plain(row["source"]), effect)
    console().print(shown)
    print(f"file: {file or 'none'}")
    return 0


def check(args: argparse.Namespace) -> int:
    """Print what is wrong, a line each; 1 if anything is."""
    wrong = list(_find_errors(args))
    if args.json:
        emit({"wrong": wrong})
    elif wrong:
        print("\n".join(map(plain, wrong)))
    else:
        file, in_file = _file(args)
        print(f"{file}: {len(in_file)} settings" if file else "no file; the settings are right")
    return 1 if wrong else 0


def _find_errors(args: argparse.Namespace) -> Iterator[str]:
    yield from unknown_variables(os.environ)
    try:
        settings_of(args)
        file, in_file = _file(args)
    except InvalidSetting as error:
        yield from error.message.splitlines()
        return
    secrets = sorted(
        name for name in in_file if is_secret(name, str(in_file[name]), all_settings())
    )
    if file is not None and secrets and file.stat().st_mode & 0o004:
        yield f"{file} holds {', '.join(secrets)}, and every user can read it: chmod o-r {file}"


def _file(args: argparse.Namespace) -> tuple[Path | None, dict[str, Any]]:
    file = find_file(args.config, os.environ)
    return file, {} if file is None else read_file(file, all_settings()).toml_data


def _format_value(name: str, value: Any) -> bool | int | float | str | None:
    if isinstance(value, bool | int | float | None):
        return value
    return masked(name, str(value), all_settings())
