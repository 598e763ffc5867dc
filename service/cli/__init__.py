"""The command line: `kvstitch serve | ingest | ask | jobs | documents | keys | model | …`.

`serve` runs the service, `keys` and `doctor` work on its data folder, `model` on the model cache,
`cluster` on a Ray cluster, and the other commands speak HTTP to a running service. Arguments are in
arguments.py, each command is in the file of its name.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from service.cli.arguments.parser import parser
from service.cli.output import report_error
from service.cli.service_client import CommandError, WrongArgument
from service.errors import InvalidRequest, InvalidSetting, KvstitchError

WRONG_ARGUMENTS = 2  # as argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors go to stderr, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # for locales that cannot write all of Unicode
    args = parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        code = command(args)
        sys.stdout.flush()
        return code
    except KvstitchError as error:
        report_error(error, as_json=args.json)
        return WRONG_ARGUMENTS if _from_arguments(error) else 1
    except UnicodeEncodeError as error:
        wrong = WrongArgument(
            f"an argument is not valid UTF-8: {error.object!r}", code=KvstitchError.code
        )
        report_error(wrong, as_json=args.json)
        return WRONG_ARGUMENTS
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`). Python must not fail on it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


def _from_arguments(error: KvstitchError) -> bool:
    """Whether other arguments would have made the command succeed, as a service may tell too."""
    if isinstance(error, CommandError):
        return isinstance(error, WrongArgument) or error.http_status == InvalidRequest.status
    return isinstance(error, InvalidSetting | InvalidRequest)
