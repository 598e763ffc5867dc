"""The command line: `kvstitch serve | ingest | ask | jobs | documents | keys | model | …`.

`serve` runs the service, `keys` and `doctor` work on its data folder, `model` on the model cache,
`cluster` on a Ray cluster, and the other commands ask a running service through kvstitch.client.
Each command with its arguments is in the file of its name.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from kvstitch.client import errors
from service.cli.output import report_error
from service.cli.parser import parser
from service.cli.service_client import WrongArgument, as_command_error
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
    except errors.KvstitchError as error:
        return _failed(as_command_error(error), args)
    except KvstitchError as error:
        return _failed(error, args)
    except UnicodeEncodeError as error:
        message = f"an argument is not valid UTF-8: {error.object!r}"
        return _failed(WrongArgument(message, code=KvstitchError.code), args)
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`). Python must not fail on it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


def _failed(error: KvstitchError, args: argparse.Namespace) -> int:
    """Report an error; 2 if other arguments would have made the command succeed, else 1."""
    report_error(error, as_json=args.json)
    wrong = isinstance(error, InvalidSetting | InvalidRequest | WrongArgument)
    return WRONG_ARGUMENTS if wrong else 1
