"""Kills writers of the real tiers and damages what they wrote, and checks every read.

    python -m tests.trials.store --kills 1000 --damages 10000 --seed 1

The same seed makes the same choices; only the moments of kills by the clock differ. Ends with an
error at the first violation, and names the seed and the step.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from tests.redis_server import redis_server
from tests.trials.store.damaging import damage_files, damage_redis
from tests.trials.store.killing import kill_writers

NOBODY = 65534


@contextmanager
def unprivileged(folder: Path) -> Iterator[None]:
    """Nobody's rights while the block runs: the permissions of files do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.trials.store", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--damages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-redis", action="store_true", help="leave Redis out")
    given = parser.parse_args()
    torch.set_num_threads(1)  # a child of fork has no threads of its parent
    logging.disable()
    started = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstore-chaos-")))
        url = None if given.no_redis else stack.enter_context(redis_server()).url
        counts = kill_writers(folder / "kills", url, given.kills, given.seed)
        in_redis = 0 if url is None else given.damages // 4
        with unprivileged(folder):
            counts += damage_files(folder / "damages", given.damages - in_redis, given.seed)
        if url is not None:
            counts += damage_redis(url, in_redis, given.seed)
    report = {"seed": given.seed, "seconds": round(time.monotonic() - started, 1)}
    print(json.dumps({**report, **dict(sorted(counts.items()))}, indent=1))


if __name__ == "__main__":
    main()
