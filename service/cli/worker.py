"""`kvstitch worker`: runs a worker by itself, for gateways on this machine and others."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from service.errors import InvalidSetting, KvstitchError, ModelRefused
from service.shared import openmp

if TYPE_CHECKING:
    from service.settings import Settings
    from service.shared.worker_settings import WorkerSettings

CANNOT_BE_SERVED = 3


def run(args: argparse.Namespace) -> int:
    """Become a worker process; 3 if it cannot serve. A worker ends by a signal.

    Raises:
        InvalidSetting: A setting is wrong by itself.
    """
    openmp.prepare()
    from service.settings import Settings, load

    names = set(Settings.model_fields)
    settings = load(**{name: value for name, value in vars(args).items() if name in names})
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
    from service.cli.checks import architecture, loras, model
    from service.cluster.plan import PreparedWorker
    from service.gateway.data_folder import UMASK
    from service.models.model_finder import ModelFinder
    from service.shared import fleet_secret

    fleet_secret.require_secret(address, settings.fleet_secret)
    if settings.workers > 1:
        raise InvalidSetting("workers (KVSTITCH_WORKERS) is for `serve`: start one for each")
    os.umask(UMASK)
    folder = ModelFinder.of(settings).prepare(settings.model)
    for finding in (
        architecture.unservable(folder, settings),
        model.unloadable(folder, settings),
        loras.unservable(settings),
    ):
        if finding is not None:
            raise ModelRefused(f"{finding.message}: {finding.remedy}")
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
