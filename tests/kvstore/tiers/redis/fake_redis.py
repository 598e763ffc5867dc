"""A fake server on a socket that sends scripted bytes, in pieces of a given size."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_COMMAND = re.compile(rb"(?m)^\*\d+\r$")


class Script:
    """The answers of the fake server.

    A request that contains a GET gets the next of `answers`; any other request (the client sends
    some when it connects) gets OK.

    Attributes:
        answers: what is left to send.
        piece: bytes per packet.
        pause: seconds between packets.
        accepted: connections so far.
        sent: released when all of an answer was sent.
    """

    def __init__(self, *answers: bytes, piece: int = 1 << 20, pause: float = 0.0) -> None:
        self.answers = list(answers)
        self.piece = piece
        self.pause = pause
        self.accepted = 0
        self.sent = threading.Semaphore(0)

    def serve(self, connection: socket.socket) -> None:
        """An answer of `b""` closes the connection; without answers left, nothing is sent."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while asked := connection.recv(1 << 16):
                if b"GET" not in asked:
                    connection.sendall(b"+OK\r\n" * len(_COMMAND.findall(asked)))
                    continue
                if not self.answers:
                    continue
                answer = self.answers.pop(0)
                if not answer:
                    return
                for start in range(0, len(answer), self.piece):
                    connection.sendall(answer[start : start + self.piece])
                    time.sleep(self.pause)
                self.sent.release()


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """`redis://` of the server."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                script.accepted += 1
                threading.Thread(target=quietly, args=(connection,), daemon=True).start()

        def quietly(connection: socket.socket) -> None:
            with suppress(OSError):  # the client went away
                script.serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
