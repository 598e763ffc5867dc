"""`kvstitch serve` with paced workers: `python -m benchmarks.fleet.paced_service --port …`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.fleet.paced_worker import COMMAND
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.server import listen, serve
from kvstitch.service.gateway.workers import ProcessOptions
from kvstitch.service.settings import load


def main() -> int:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    settings = load(host=args.host, port=args.port, data_dir=args.data_dir, model=str(args.model))
    gateway = Gateway(settings, args.model, processes=ProcessOptions(COMMAND))
    bound = listen(settings.host, settings.port)
    gateway.claim()
    if (failure := serve(gateway, bound, time.monotonic())) is not None:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
