"""The command line: `kvstitch serve | ingest | ask | jobs | documents | keys | status | doctor`.

`serve` is the service, `keys` and `doctor` work on its data folder; the others speak HTTP to one
that runs. Arguments are in arguments.py, a command in the file of its name.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from service.cli.arguments import parser
from service.cli.output import report
from service.errors import KvstitchError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are typed and on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale that has not all of Unicode
    args = parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        code = command(args)
        sys.stdout.flush()
        return code
    except KvstitchError as error:
        report(error, as_json=args.json)
        return 1
    except UnicodeEncodeError as error:
        wrong = KvstitchError(f"an argument is not valid UTF-8: {error.object!r}")
        report(wrong, as_json=args.json)
        return 1
    except BrokenPipeError:
        # Whoever read has had enough (`| head`). Python must not find that out again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
