"""`kvstitch serve`: reads the settings, finds the model folder, and runs the gateway."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING

from service.cli.options import add_settings, settings_of
from service.errors import KvstitchError
from service.shared import openmp

if TYPE_CHECKING:
    from service.settings import Settings

CANNOT_BE_SERVED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run the service. Without options: the demo model on loopback."
    parser.epilog = "Every setting is also an environment variable, e.g. KVSTITCH_DATA_DIR."
    add_settings(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 3 if the service cannot be served.

    Raises:
        InvalidSetting: A setting is wrong by itself.
    """
    openmp.prepare()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Without this the client adds a `_created` series to every metric, which nothing uses.
    os.environ.setdefault("PROMETHEUS_DISABLE_CREATED_SERIES", "true")

    settings = settings_of(args)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for noisy in ("faiss", "httpx", "transformers", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        failure = _serve(settings)
    except KvstitchError as error:
        failure = error.message
    if failure is not None:
        print(f"kvstitch: {failure}", file=sys.stderr)
        return CANNOT_BE_SERVED
    return 0


def _serve(settings: Settings) -> str | None:
    """Serve until a signal or a failure; returns why it failed.

    Raises:
        KvstitchError: It cannot start.
    """
    from service.cli.doctor import model
    from service.gateway.data_folder import UMASK
    from service.models.model_finder import ModelFinder

    os.umask(UMASK)  # the worker inherits it
    folder = ModelFinder.of(settings).prepare(settings.model)
    # Before the gateway is imported, which takes longer than all of this.
    model.require_config(folder, settings)
    from service.gateway.composition import Gateway
    from service.gateway.server import listen, serve

    # Before gigabytes of weights are loaded, and loaded again because the worker has died of them.
    model.require_loadable(folder, settings)
    gateway = Gateway(settings, folder)
    bound = listen(settings.host, settings.port)
    port = bound.getsockname()[1]
    gateway.claim()
    print(
        f"kvstitch: {gateway.prompts.model} from {folder}, data in {settings.data_dir}; "
        f"listening on http://{settings.host}:{port} as soon as it is loaded",
        file=sys.stderr,
    )
    return serve(gateway, bound)
