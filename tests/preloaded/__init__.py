"""Services that start in a tenth of the time: their processes are forks of one that has imported
all that they need.

    [*preloaded.python(), "-m", "kvstitch.service.cli", "serve"]      in place of sys.executable

Most of what a start costs is importing torch, transformers and FastAPI, in two processes. `python`
names a small program that takes the place of the interpreter: for `-m kvstitch.service.cli` and
`-m kvstitch.service.worker` it asks the forking process (`parent.py`) for a child with its
arguments, environment, working directory and standard streams; it passes signals on, and ends as
the child ends. If it is killed, the child is killed too. Everything else it hands to the real
interpreter.

Apart from how they begin, these are real processes. Tests of the start itself, of memory, and of
stopped processes (SIGSTOP) use sys.executable.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_PROGRAM = Path(__file__).with_name("program.py")


@cache
def python() -> tuple[str]:
    """Return the command that takes the place of the interpreter; starts the forking process."""
    folder = Path(tempfile.mkdtemp(prefix="kvp-"))
    (folder / "interpreter").symlink_to(sys.executable)
    program = folder / "python"
    # Isolated and without site: it needs the standard library alone, and starts in 15 ms.
    program.write_text(f"#!{sys.executable} -IS\n{_PROGRAM.read_text('utf-8')}", encoding="utf-8")
    program.chmod(0o700)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen(64)
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.preloaded.parent", str(listening.fileno()), str(program)],
        stdin=subprocess.PIPE,  # it ends when this process does
        pass_fds=[listening.fileno()],
        env={k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")},
    )
    listening.close()

    def stop() -> None:
        parent.kill()
        parent.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return (str(program),)


def real_pid(pid: int) -> int:
    """Return the process that a started program stands for; `pid` if it is no such program."""
    if not python.cache_info().currsize:
        return pid
    try:
        return int((Path(python()[0]).parent / str(pid)).read_text())
    except FileNotFoundError:
        return pid
