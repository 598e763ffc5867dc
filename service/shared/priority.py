"""Answers come first: what is read, cut and embedded gives way to them on a busy machine.

On Linux niceness counts within a session where its sessions are scheduled as groups (autogroup, the
default outside containers): gateway, worker and parsers stay in one.

It gives way, and does not stop: in Linux's class SCHED_IDLE documents would get a third of a per
cent of a core that answers keep busy, and none would ever be done.
"""

from __future__ import annotations

import contextlib
import os
import threading

NICE = 12
"""With it a busy core gives a thread a fifteenth of what it gives another."""
LONG_NICE = 15
"""With it a thirtieth. For what takes long: threads of an answer wait for one another, so what one
loses, all lose, and several long files at a time would take half of them."""


def behind_answers() -> None:
    """Put the calling thread, and those that it starts, behind what answers. Of Linux."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def behind_all(pid: int) -> None:
    """Put a process of one thread, which is ours and takes long, further back."""
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, LONG_NICE)
