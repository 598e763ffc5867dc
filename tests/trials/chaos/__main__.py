"""`python -m tests.trials.chaos`: break the service for CHAOS_MINUTES, and say what broke.

CHAOS_MINUTES   10; time of the episodes, over all runs in this folder
CHAOS_SEED      1; what is done, in which order
CHAOS_DIR       chaos-SEED in the folder for temporary files; a stopped run goes on from there
CHAOS_EPISODE   none; do only this episode, in a folder of its own
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from tests.trials.chaos.campaign import Plan, run


def main() -> int:
    """Exit code 1 if there was a violation."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the service, too
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    minutes = float(os.environ.get("CHAOS_MINUTES", "10"))
    again = os.environ.get("CHAOS_EPISODE")
    default = Path(tempfile.gettempdir()) / f"chaos-{seed}"
    folder = Path(os.environ.get("CHAOS_DIR", default))
    plan = Plan(seed, minutes)
    if again is not None:
        folder, plan = folder / f"again-{again}", Plan(seed, minutes, first=int(again), episodes=1)
    journal = run(folder, plan)
    print(json.dumps(json.loads((folder / "report.json").read_text()), indent=1))
    return 1 if journal.violations else 0


if __name__ == "__main__":
    sys.exit(main())
