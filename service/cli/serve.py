"""`kvstitch serve`: reads the settings, finds the model folder, and runs the gateway."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from service import openmp


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 3 if the service failed.

    Raises:
        KvstitchError: It cannot start.
    """
    openmp.prepare()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Without this the client adds a `_created` series to every metric, which nothing uses.
    os.environ.setdefault("PROMETHEUS_DISABLE_CREATED_SERIES", "true")
    from service.gateway.composition import Gateway
    from service.gateway.prompts.model_folder import resolve
    from service.gateway.server import listen, serve
    from service.settings import Settings, load

    names = set(Settings.model_fields)
    settings = load(**{name: value for name, value in vars(args).items() if name in names})
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for noisy in ("faiss", "httpx", "transformers", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    folder = resolve(settings.model)
    gateway = Gateway(settings, folder)
    bound = listen(settings.host, settings.port)
    port = bound.getsockname()[1]
    gateway.claim()
    print(
        f"kvstitch: {gateway.prompts.model} from {folder}, data in {settings.data_dir}; "
        f"listening on http://{settings.host}:{port} as soon as it is loaded",
        file=sys.stderr,
    )
    failure = serve(gateway, bound)
    if failure is not None:
        print(f"kvstitch: {failure}", file=sys.stderr)
        return 3
    return 0
