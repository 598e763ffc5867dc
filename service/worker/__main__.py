"""`python -m kvstitch.service.worker`: reads settings, checks the model, serves.

The first line of standard input is WorkerSettings as JSON. It is not an argument because it may
hold the Redis password and the tenant secret, which a process list would show.

Exit code 3 means that the model or the settings were refused: the last line of stderr says why, and
a supervisor must not retry. The process ends when its standard input closes, so it never outlives
the gateway that started it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from contextlib import ExitStack

from kvstitch.kvstore import TierError, TierUnavailable
from kvstitch.service.errors import KvstitchError
from kvstitch.service.shared import logs, resources
from kvstitch.service.shared.worker_settings import WorkerSettings
from kvstitch.service.worker.model.load import lacks_memory, no_memory
from kvstitch.service.worker.server.composition import Composition, load_model
from kvstitch.service.worker.server.worker_server import WorkerServer

log = logging.getLogger("kvstitch.worker")

REFUSED = 3


def main() -> int:
    argparse.ArgumentParser(
        prog="python -m kvstitch.service.worker", description=__doc__
    ).parse_args()
    try:
        settings = WorkerSettings.from_json(sys.stdin.readline())
    except (ValueError, TypeError) as error:
        print(f"the first line of input is not WorkerSettings as JSON: {error}", file=sys.stderr)
        return REFUSED
    logs.set_up(settings.log_format)
    try:
        return serve(settings)
    except KvstitchError as error:
        return _refuse(settings, error.message)
    except TierUnavailable:  # the folder is in use, perhaps only until its last owner has ended
        raise
    except TierError as error:
        return _refuse(settings, str(error))
    except Exception as error:
        if not lacks_memory(error):
            raise
        _refuse(settings, no_memory())
        return 1  # it is tried again


def _refuse(settings: WorkerSettings, reason: str) -> int:
    """Say why, in the last line."""
    if settings.log_format == "json":
        log.error(reason)
    else:
        print(reason, file=sys.stderr)
    return REFUSED


def serve(settings: WorkerSettings) -> int:
    """Serve until a signal, a Shutdown message or the end of standard input; return the exit
    code. Raises KvstitchError if the worker cannot be started with these settings."""
    with ExitStack() as opened:
        parts = Composition(settings, load_model(settings), opened)
        with parts.serving() as server:
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signal_number, lambda *_: server.drain())
            threading.Thread(target=_stop_with_stdin, args=(server,), daemon=True).start()
            resources.look_after_memory()
            log.info("serving %s at %s", settings.model, parts.link.address)
            server.run()
    return 0


def _stop_with_stdin(server: WorkerServer) -> None:
    """Wait for the end of standard input, which the gateway holds open for as long as it lives."""
    while os.read(0, 4096):
        pass
    server.stop()


if __name__ == "__main__":
    sys.exit(main())
