"""`kvstitch serve` and `kvstitch worker`: a gateway with its workers, and a worker by itself.

Both read the settings and find the model folder; what takes long to import is imported after that.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn, Self

from kvstitch.service.cli.options import add_settings, settings_of
from kvstitch.service.errors import InvalidSetting, KvstitchError, ModelRefused
from kvstitch.service.plugins import adapters, load_object
from kvstitch.service.settings import Settings, unknown_variables
from kvstitch.service.settings.calibration import calibrated
from kvstitch.service.shared import logs, resources
from kvstitch.service.shared.fleet_secret import require_secret
from kvstitch.service.shared.worker_settings import WorkerSettings

logger = logging.getLogger("kvstitch")
CANNOT_BE_SERVED = 3
WORKER_ADDRESS = "tcp://127.0.0.1:5700"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run the service. Without options: the demo model on loopback."
    parser.epilog = (
        "Every setting is also an environment variable, e.g. KVSTITCH_DATA_DIR, and a name in "
        "kvstitch.toml, e.g. data_dir; options come first, then the environment, then the file."
    )
    add_settings(parser)
    parser.set_defaults(command=run)


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a worker by itself, for gateways that name it in KVSTITCH_WORKER_ADDRESSES. It takes "
        "the settings of `serve`; SIGTERM lets it finish what runs."
    )
    parser.epilog = "Beyond loopback KVSTITCH_FLEET_SECRET must be set, the same for all."
    parser.add_argument("--listen", metavar="ADDRESS", default=WORKER_ADDRESS, help="tcp://HOST:"
                        f"PORT; port 0: any (default: {WORKER_ADDRESS})")  # fmt: skip
    add_settings(parser)
    parser.set_defaults(command=run_worker)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 3 if the service cannot be served."""
    resources.share_heaps()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Without this the client adds a `_created` series to every metric, which nothing uses.
    os.environ.setdefault("PROMETHEUS_DISABLE_CREATED_SERIES", "true")
    # In a terminal SIGHUP says that it was closed. Elsewhere it asks for the settings to be read
    # again, which they just are until the server listens.
    reread = None if os.isatty(0) else partial(settings_of, args)
    if reread is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return _start_with(args, partial(_serve, reread=reread))


def run_worker(args: argparse.Namespace) -> int:
    """Become a worker process, which ends by a signal; 3 if it cannot serve."""
    return _start_with(args, lambda settings: _become_worker(settings, args.listen))


def _start_with(args: argparse.Namespace, start: Callable[[Settings], str | None]) -> int:
    """Start with the settings of the arguments; `start` returns or raises why it cannot be."""
    resources.prepare_torch()
    settings = settings_of(args)
    logs.set_up(settings.log_format)
    for noisy in ("faiss", "httpx", "huggingface_hub", "mcp", "transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for said in unknown_variables(os.environ):
        logger.warning(said)
    try:
        failure = start(settings)
    except KvstitchError as error:
        failure = error.message
    if failure is None:
        return 0
    if settings.log_format == "json":
        logger.error(failure)
    else:  # as every command ends that cannot do its work
        print(f"kvstitch: {failure}", file=sys.stderr, flush=True)
    return CANNOT_BE_SERVED


def _model_folder(settings: Settings) -> Path:
    """Return the folder of a model whose config.json says that it can be served."""
    from kvstitch.service.gateway.data_folder import UMASK
    from kvstitch.service.models import prepare_model
    from kvstitch.service.worker.model.folder_checks import config_fault, read_config

    os.umask(UMASK)  # the worker inherits it
    folder = prepare_model(settings)
    how = {"device": settings.device, "quantize": settings.quantize}
    try:
        fault = config_fault(folder, read_config(folder), **how)
    except (ValueError, OSError) as error:
        raise ModelRefused(
            f"{folder}/config.json cannot be read: {error}: copy the model folder again"
        ) from error
    if fault is not None:
        raise ModelRefused(f"{fault.problem}: {fault.remedy}")
    return folder


def _require_loadable(folder: Path, settings: Settings) -> None:
    """Raise ModelRefused where weights or adapters cannot be loaded, without loading them: before
    gigabytes are loaded, and loaded again because the worker has died of them."""
    from kvstitch.service.worker.model.folder_checks import FolderFault, weights_fault

    fault = None if settings.worker_addresses else weights_fault(folder)
    if fault is not None:
        raise ModelRefused(f"{fault.problem}: {fault.remedy}")
    for name, lora in settings.loras.items():
        found = load_object(adapters().examine)(lora)
        if isinstance(found, FolderFault):
            raise ModelRefused(f"{name}: {found.problem}: {found.remedy}")


def _serve(settings: Settings, reread: Callable[[], Settings] | None) -> str | None:
    """Serve until a signal or a failure; return why it failed."""
    started = time.monotonic()
    folder = _model_folder(settings)  # before the gateway is imported, which takes longer
    from kvstitch.service.gateway.composition import Gateway
    from kvstitch.service.gateway.server import listen, serve

    _require_loadable(folder, settings)
    gateway = Gateway(settings, folder)
    bound = listen(settings.host, settings.port)
    gateway.claim()
    logger.info(
        "loading %s from %s, data in %s, prefix mode %s, port %d",
        *(gateway.prompts.model, folder, settings.data_dir, gateway.prompts.prefix_mode),
        bound.getsockname()[1],
    )
    return serve(gateway, bound, started, reread)


@dataclass(frozen=True)
class PreparedWorker:
    """A worker whose model is on this machine."""

    settings: Settings = field(repr=False)
    folder: Path
    calibration: Path | None

    @classmethod
    def of(cls, settings: Settings, folder: Path) -> Self:
        """Take the calibration of a model's folder, and make the data folder."""
        from kvstitch.service.gateway.data_folder import FOLDER_MODE

        try:
            settings.data_dir.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            text = f"data_dir {settings.data_dir} cannot be used: {error.strerror}"
            raise InvalidSetting(text) from error
        settings, calibration_file = calibrated(settings, folder)
        return cls(settings, folder, calibration_file)

    @property
    def secret(self) -> str:
        """The fleet's secret; "" where there is none, which only loopback addresses allow."""
        return self.settings.fleet_secret

    def at(self, address: str) -> WorkerSettings:
        """Return the process's settings for an address, which only this machine may reach if there
        is no fleet secret."""
        from kvstitch.service.gateway.data_folder import own_secret

        require_secret(address, self.secret)
        return self.settings.worker(
            self.folder,
            address,
            shared=True,
            tenants_secret="" if self.secret else own_secret(self.settings.data_dir),
            calibration=self.calibration,
        )


def _become_worker(settings: Settings, address: str) -> NoReturn:
    """Replace this process by the worker process, which reads its settings from standard input."""
    require_secret(address, settings.fleet_secret)
    if settings.workers > 1:
        raise InvalidSetting("workers (KVSTITCH_WORKERS) is for `serve`: start one for each")
    folder = _model_folder(settings)
    _require_loadable(folder, settings)
    made = PreparedWorker.of(settings, folder).at(address)
    kv = made.kv_dir or "memory"
    logger.info("a worker of %s is starting at %s; KV in %s", made.model, made.address, kv)
    end, beginning = os.pipe()
    os.write(beginning, made.to_json().encode() + b"\n")
    os.dup2(end, 0)
    os.set_inheritable(beginning, True)  # a worker ends when its standard input is closed
    os.execv(sys.executable, [sys.executable, "-m", "kvstitch.service.worker"])
