"""The part of a server that is its process: all but how it is started and what it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.processes import ServerProcess, free_port
from benchmarks.peers.servers.peer import Conditions
from loadtest.traffic.routes import CorpusDocument


class OwnProcess(ABC):
    """Starts one command on a free port.

    Args:
        name: in the table.
        conditions: the same for all servers.
        health: path that answers 200 when it is ready.
    """

    def __init__(self, name: str, conditions: Conditions, health: str = "/health") -> None:
        self.name = name
        self.conditions = conditions
        self.url = ""
        self._health = health
        self._process: ServerProcess | None = None

    @abstractmethod
    def command(self, port: int) -> Sequence[str]:
        """Starts it on this port.

        Raises:
            Absent: it is not installed.
        """

    def environment(self) -> Mapping[str, str]:
        """Variables of its own."""
        return {}

    def folder(self) -> Path | None:
        """Where it runs: away from ours, whose folders its Python could take for packages."""
        return self.conditions.folder

    def start(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        process = ServerProcess(
            self.command(port),
            self.url + self._health,
            self.conditions.folder / f"{self.name.replace(' ', '-')}.log",
            environment={**self.conditions.environment, **self.environment()},
            folder=self.folder(),
        )
        process.start()
        self._process = process

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def store(self, documents: Sequence[CorpusDocument]) -> bool:
        return False

    def rest(self) -> None:
        self._running().rest()

    def cpu_s(self) -> float:
        return self._running().cpu_s()

    def memory_mib(self) -> float:
        return self._running().memory_mib()

    def _running(self) -> ServerProcess:
        assert self._process is not None, "it was not started"
        return self._process
