"""`kvstitch worker`: runs a worker by itself, for gateways on this machine and others."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import TYPE_CHECKING

from service.errors import InvalidSetting, KvstitchError, ModelRefused
from service.shared import openmp

if TYPE_CHECKING:
    from service.settings import Settings
    from service.shared.worker_settings import WorkerSettings

CANNOT_BE_SERVED = 3


def run(args: argparse.Namespace) -> int:
    """Run until a signal; the worker's exit code: 0, or 3 if it cannot serve.

    Raises:
        InvalidSetting: A setting is wrong by itself.
    """
    openmp.prepare()
    from service.settings import Settings, load

    names = set(Settings.model_fields)
    settings = load(**{name: value for name, value in vars(args).items() if name in names})
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        return _supervise(_prepare(settings, args.listen))
    except KvstitchError as error:
        print(f"kvstitch: {error.message}", file=sys.stderr)
        return CANNOT_BE_SERVED


def _prepare(settings: Settings, address: str) -> WorkerSettings:
    """The worker's settings, with a model that can be served.

    Raises:
        KvstitchError: It cannot be started.
    """
    from service.cli.checks import architecture, loras, model
    from service.gateway.auth.secret_file import own_secret
    from service.gateway.data_folder import FOLDER_MODE, UMASK
    from service.models.model_finder import ModelFinder
    from service.settings import calibration
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
    try:
        settings.data_dir.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(
            f"data_dir {settings.data_dir} cannot be used: {error.strerror}"
        ) from error
    calibrated = calibration.find(settings, folder)
    if calibrated is not None:
        settings = calibrated.settings(settings)
    return settings.worker(
        folder,
        address,
        shared=True,
        tenants_secret="" if settings.fleet_secret else own_secret(settings.data_dir),
        calibration=None if calibrated is None else calibrated.path,
    )


def _supervise(settings: WorkerSettings) -> int:
    """Run the worker process, which gets our signals; returns its exit code."""
    print(
        f"kvstitch: a worker of {settings.model} is starting at {settings.address}; KV in "
        f"{settings.kv_dir or 'memory'}",
        file=sys.stderr,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "service.worker"], stdin=subprocess.PIPE, start_new_session=True
    )

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    assert process.stdin is not None
    process.stdin.write(settings.to_json().encode() + b"\n")
    process.stdin.flush()  # and stays open: the worker ends when we do
    code = process.wait()
    return code if code >= 0 else 128 - code
