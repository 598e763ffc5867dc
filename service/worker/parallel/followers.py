"""The processes of the other ranks, as rank 0 sees them: started, told, asked, watched, ended."""

from __future__ import annotations

import logging
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from service.worker.parallel.commands import Checked, Loaded

log = logging.getLogger("kvstitch.parallel")

ANSWER_S = 5.0  # how long a process may take to say how it failed


class Followers:
    """One process for each rank but the first.

    Args:
        size: number of ranks.
        on_end: called with a sentence when one has ended or all are out of step, on any thread. It
            should end this process: what runs here may wait for the others for ever.
    """

    def __init__(self, size: int, on_end: Callable[[str], None]) -> None:
        self._size = size
        self._on_end = on_end
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._ending = threading.Event()

    def start(self, *arguments: str) -> None:
        """Starts the processes.

        Args:
            arguments: of each, before its rank.
        """
        for rank in range(1, self._size):
            ours, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(
                    [
                        *(sys.executable, "-m", "service.worker.parallel.follower"),
                        *(str(theirs.fileno()), *arguments, str(rank)),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            self._processes.append(process)
            self._pipes.append(Connection(ours.detach()))
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def send(self, command: object) -> None:
        """Tells every process, in order; a process that has ended is noticed by its watcher."""
        message = pickle.dumps(command, protocol=pickle.HIGHEST_PROTOCOL)
        for pipe in self._pipes:
            try:
                pipe.send_bytes(message)
            except OSError as error:
                self.give_up(f"a rank does not take commands: {error}")

    def ask(self, command: object) -> list[Checked]:
        """Sends a command and waits for every answer; none come where ranks are out of step."""
        self.send(command)
        answers = []
        for pipe in self._pipes:
            if not pipe.poll(ANSWER_S):
                self.give_up("a rank does not answer")
                return []
            answers.append(self._answer(pipe))
        return answers

    def loaded(self) -> list[Loaded]:
        """Waits until every process has loaded its part of the model."""
        return [self._answer(pipe) for pipe in self._pipes]

    def give_up(self, why: str) -> None:
        if not self._ending.is_set():
            self._on_end(why)

    def close(self) -> None:
        """Ends the processes."""
        self._ending.set()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()  # it has nothing to save, and may be waiting in an exchange
            process.wait()

    def _answer(self, pipe: Connection) -> Any:
        try:
            return pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError) as error:
            self.give_up(f"a rank ended: {error}")
            raise

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        self.give_up(f"rank {rank} of {self._size} ended (code {code})")
