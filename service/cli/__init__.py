"""The command line: `kvstitch serve | ingest | ask | jobs | documents | keys | …`.

`serve` runs the service, `keys` works on its data folder, and most other commands ask a running
service through kvstitch.client.
Each command with its arguments is in a file of its own.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from kvstitch.client import errors
from kvstitch.service import __version__
from kvstitch.service.cli import administration, ask, configuration, encryption, serve, status
from kvstitch.service.cli.documents import documents, ingest, jobs
from kvstitch.service.cli.options import DEFAULT_URL, WrongArgument, as_command_error
from kvstitch.service.cli.output import report_error
from kvstitch.service.errors import InvalidRequest, InvalidSetting, KvstitchError
from kvstitch.service.plugins import hooks

WRONG_ARGUMENTS = 2  # as argparse
SHELLS = ("bash", "zsh", "fish")
# Options whose values are files or folders; argparse knows no such type.
FILE_OPTIONS = ("--config", "--data-dir", "--documents", "--embedder", "--from", "--model",
                "--model-cache", "--out", "--questions")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors go to stderr, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # For locales that cannot write all of Unicode.
            stream.reconfigure(errors="backslashreplace")
    args = argparse.Namespace(json=False)  # where plugins fail, which may be before it is parsed
    try:
        args = parser().parse_args(argv)
        command: Callable[[argparse.Namespace], int] = args.command
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


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="kvstitch",
        description="RAG serving from stitched KV caches",
        epilog="Exit codes: 0 done, 1 an error or a document that failed, 2 wrong arguments, "
        "3 the service cannot be served.",
    )
    made.add_argument("--version", action="version", version=f"kvstitch {__version__}")
    url = os.environ.get("KVSTITCH_URL", DEFAULT_URL)
    made.set_defaults(url=url, api_key=None, json=False)
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for name, help, add_arguments in (
        ("serve", "run the service", serve.add_arguments),
        ("worker", "run a worker that gateways share", serve.add_worker_arguments),
        ("ingest", "put documents into a running service", ingest.add_arguments),
        ("ask", "ask a running service", ask.add_arguments),
        ("jobs", "what became of accepted documents", jobs.add_arguments),
        ("documents", "what is stored: look, pin, delete", documents.add_arguments),
        ("keys", "make, list and revoke API keys", administration.add_key_arguments),
        ("encryption", "keys of what is stored: rotate, delete", encryption.add_arguments),
        ("status", "show how a running service is", status.add_arguments),
        ("config", "show and check the settings", configuration.add_arguments),
        ("completion", "complete commands in a shell", partial(_add_completion, whole=made)),
    ):
        add_arguments(commands.add_parser(name, help=help))
    for verb in chain.from_iterable(hooks().command_line_verbs()):
        verb.add_arguments(commands.add_parser(verb.name, help=verb.help))
    return made


def _add_completion(parser: argparse.ArgumentParser, *, whole: argparse.ArgumentParser) -> None:
    parser.description = "Print a script that completes commands, options and their values."
    parser.epilog = (
        'For bash: eval "$(kvstitch completion bash)"; zsh: eval "$(kvstitch completion zsh)"; '
        "fish: kvstitch completion fish | source."
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    parser.set_defaults(command=partial(_completion, parser=whole))


def _completion(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Print the script, which holds everything: completing starts no Python."""
    import shtab

    _mark_files(parser)
    print(shtab.complete(parser, args.shell))
    return 0


def _mark_files(parser: argparse.ArgumentParser) -> None:
    """Say which values are files, in the way that shtab reads it."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _mark_files(below)
        elif action.metavar == "PATH" or not set(FILE_OPTIONS).isdisjoint(action.option_strings):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
