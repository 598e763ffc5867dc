"""The process that has imported what services need, and forks one for each request.

It never starts a thread, so that a fork is safe, and ends when its standard input closes.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import NoReturn

# The worker's first: torch reads how its threads wait when it is loaded.
PRELOADED = (
    "kvstitch.service.worker.__main__", "kvstitch.service.gateway.server",
    "kvstitch.service.cli.serve",
    # What plugins import when the command line and the gateway ask them.
    "kvstitch_audit.command", "kvstitch_audit.part", "kvstitch_dify.route",
    "kvstitch_doctor.command", "kvstitch_gguf.command", "kvstitch_gguf.named_embedders",
    "kvstitch_mcp.command", "kvstitch_mcp.route", "kvstitch_mcp.tools", "kvstitch_messages.route",
    "kvstitch_oidc.part", "kvstitch_ray.bulk.command", "kvstitch_ray.cluster.command",
    "kvstitch_tune.command", "kvstitch_web.command", "anyio._backends._asyncio",
    "mcp.server.streamable_http_manager", "uvicorn.lifespan.on", "uvicorn.loops.asyncio",
    "uvicorn.loops.auto", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto",
    # torch's operations on the meta device, where models are built, import sympy.
    "torch.fx.experimental.symbolic_shapes",
)  # fmt: skip
STREAMS = 3
MOST_FILES = 4096


class Parent:
    """Forks, passes signals on, and tells programs how their child ended.

    Args:
        listening: Where programs connect.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._children: dict[socket.socket, int] = {}
        self._wake, wake = socket.socketpair()
        wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake.fileno())
        self._waking = wake

    def run(self) -> None:
        while True:
            open_now: list[int | socket.socket] = [0, self._wake, self._listening, *self._children]
            ready, _, _ = select.select(open_now, [], [])
            if 0 in ready:
                return
            if self._wake in ready:
                self._wake.recv(MOST_FILES)
                self._reap()
            if self._listening in ready:
                self._fork(self._listening.accept()[0])
            for connection in [c for c in self._children if c in ready]:
                self._pass_on(connection)

    def _fork(self, connection: socket.socket) -> None:
        size = array.array("i").itemsize * STREAMS
        _, sent, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(size))
        streams = array.array("i")
        streams.frombytes(sent[0][2][:size])
        wanted = json.loads(connection.makefile("r").readline())
        pid = os.fork()
        if not pid:
            become(wanted["argv"], wanted["environment"], wanted["folder"], list(streams))
        for stream in streams:
            os.close(stream)
        connection.sendall(f"{pid}\n".encode())
        self._children[connection] = pid

    def _reap(self) -> None:
        for connection, pid in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[connection]
                with suppress(OSError):
                    connection.sendall(f"{status}\n".encode())
                connection.close()

    def _pass_on(self, connection: socket.socket) -> None:
        try:
            numbers = connection.recv(16)
        except OSError:
            numbers = b""
        pid = self._children[connection]
        with suppress(ProcessLookupError):
            if not numbers:  # the program was killed
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del self._children[connection]
                connection.close()
            for number in numbers:
                os.kill(pid, number)


def become(
    argv: list[str], environment: dict[str, str], folder: str, streams: list[int]
) -> NoReturn:
    """Run `python -m argv…` in this process, which has just been forked, and end as it ends."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        os.closerange(STREAMS, MOST_FILES)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        # Those of the forking process know how its own streams were: a pipe cannot be sought.
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        sys.argv = [argv[0], *argv[1:]]
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> None:
    listening = socket.socket(fileno=int(sys.argv[1]))
    sys.executable = sys.argv[2]  # what a service starts is forked here, too
    for module in PRELOADED:
        importlib.import_module(module)
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    from kvstitch.service.shared.lean_import import lean_import

    with lean_import():  # as a worker does when it loads one
        import transformers.models.llama.modeling_llama  # noqa: F401
        import transformers.models.qwen2.modeling_qwen2  # noqa: F401
    # A thousand regular expressions, which the first model of a process has compiled.
    get_checkpoint_conversion_mapping("llama")
    # What is here is left out of every child's searches for garbage, and its pages stay shared.
    gc.collect()
    gc.freeze()
    Parent(listening).run()


if __name__ == "__main__":
    main()
