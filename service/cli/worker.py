"""`kvstitch worker`: runs a worker by itself, for gateways on this machine and others."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from service.cli.options import add_settings, settings_of
from service.errors import InvalidSetting, KvstitchError
from service.shared import openmp

if TYPE_CHECKING:
    from service.settings import Settings
    from service.shared.worker_settings import WorkerSettings

CANNOT_BE_SERVED = 3
WORKER_ADDRESS = "tcp://127.0.0.1:5700"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a worker by itself, for gateways that name it in KVSTITCH_WORKER_ADDRESSES. It takes "
        "the settings of `serve`; SIGTERM lets it finish what runs."
    )
    parser.epilog = "Beyond loopback KVSTITCH_FLEET_SECRET must be set, the same for all."
    parser.add_argument("--listen", metavar="ADDRESS", default=WORKER_ADDRESS, help="tcp://HOST:"
                        f"PORT; port 0: any (default: {WORKER_ADDRESS})")  # fmt: skip
    add_settings(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Become a worker process; 3 if it cannot serve. A worker ends by a signal.

    Raises:
        InvalidSetting: A setting is wrong by itself.
    """
    openmp.prepare()

    settings = settings_of(args)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        _become_worker(_prepare(settings, args.listen))
    except KvstitchError as error:
        print(f"kvstitch: {error.message}", file=sys.stderr)
        return CANNOT_BE_SERVED


def _prepare(settings: Settings, address: str) -> WorkerSettings:
    """Return the worker's settings, with a model that can be served.

    Raises:
        KvstitchError: It cannot be started.
    """
    from service.cli.doctor import model
    from service.cluster.plan import PreparedWorker
    from service.gateway.data_folder import UMASK
    from service.models.model_finder import ModelFinder
    from service.shared import fleet_secret

    fleet_secret.require_secret(address, settings.fleet_secret)
    if settings.workers > 1:
        raise InvalidSetting("workers (KVSTITCH_WORKERS) is for `serve`: start one for each")
    os.umask(UMASK)
    folder = ModelFinder.of(settings).prepare(settings.model)
    model.require_config(folder, settings)
    model.require_loadable(folder, settings)
    return PreparedWorker.of(settings, folder).at(address)


def _become_worker(settings: WorkerSettings) -> NoReturn:
    """Replace this process by the worker process, which reads its settings from standard input."""
    print(
        f"kvstitch: a worker of {settings.model} is starting at {settings.address}; KV in "
        f"{settings.kv_dir or 'memory'}",
        file=sys.stderr,
        flush=True,
    )
    end, beginning = os.pipe()
    os.write(beginning, settings.to_json().encode() + b"\n")
    os.dup2(end, 0)
    os.set_inheritable(beginning, True)  # a worker ends when its standard input is closed
    os.execv(sys.executable, [sys.executable, "-m", "service.worker"])
