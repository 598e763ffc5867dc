"""kill -9 of a writer at random moments leaves only whole chunks."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from kvstore import SsdTier
from tests.kvstore.chunks import make_chunk, make_key, make_spec

ROUNDS = 25
CAPACITY = 40 * 120_000  # small enough that writers evict too


def write_forever(root: Path, start: int, chunks: list) -> None:
    tier = SsdTier(root, CAPACITY)
    tier.start()
    n = start
    while True:
        tier.put(make_key(n), chunks[n % len(chunks)])
        n += 1


def kill_writers(root: Path) -> dict[str, int]:
    """Fork a writer, kill it, check what it left; many times."""
    chunks = [make_chunk(make_spec("int8", tokens=1000), seed=n) for n in range(5)]
    rng = random.Random(11)
    report = {"kept": 0, "unreadable": 0, "swept": 0, "different": 0, "over": 0}
    for round_number in range(ROUNDS):
        child = os.fork()
        if child == 0:
            write_forever(root, round_number * 100_000, chunks)
        time.sleep(0.02 + rng.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        tier = SsdTier(root, CAPACITY)
        tier.start()
        report["kept"] += tier.scan.kept
        report["unreadable"] += tier.scan.removed_unreadable
        report["swept"] += tier.scan.swept_temporary
        used = tier.usage().used_bytes
        assert used is not None
        report["over"] += used > CAPACITY
        known = {chunk.header_bytes for chunk in chunks}
        for key in list(tier.keys()):
            chunk = tier.read(key)
            assert chunk is not None
            chunk.verify()
            report["different"] += chunk.header_bytes not in known
        tier.close()
    return report


def test_only_whole_chunks_survive(tmp_path):
    # In a separate process, because it forks, and a process with many threads should not fork.
    command = [sys.executable, "-m", __name__, str(tmp_path)]
    root = Path(__file__).parents[4]
    done = subprocess.run(command, cwd=root, capture_output=True, timeout=120, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kept"] > 0 and report["swept"] > 0, report
    assert (report["unreadable"], report["different"], report["over"]) == (0, 0, 0), report


if __name__ == "__main__":
    print(json.dumps(kill_writers(Path(sys.argv[1]))))
