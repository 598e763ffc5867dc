"""Answers come first: what is read, cut and embedded gives way to them on a busy machine.

It gives way, and does not stop: in Linux's class SCHED_IDLE documents would get a third of a per
cent of a core that answers keep busy, and none would ever be done.
"""

from __future__ import annotations

import os
import threading

NICE = 10
"""With it a busy core gives a thread a ninth of what it gives another."""


def behind_answers() -> None:
    """Put the calling thread, and those that it starts, behind what answers. Of Linux."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
