"""Receives the replies of Redis (its protocol is called RESP) directly into their buffers.

The caller knows the length of the values it requests, so every byte around the values is known too:

    $6\\r\\n <6 bytes> \\r\\n$9\\r\\n <9 bytes> \\r\\n        three frames around two values

One call (recvmsg) spreads the received bytes over frames and values. If a frame is not the expected
one, it tells what is wrong: the value is missing, it has another length, or there is an error.
After an unexpected reply it is unknown where the next one starts, so the connection must be closed.
"""

import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.format.buffers import ByteProgress

_SCATTER = 64  # buffers per call
_LONGEST_LINE = 1 << 10
_LONGEST_VALUE = 512 << 20  # the limit of Redis itself
_NIL = (b"$-1", b"_")  # in RESP2 and RESP3
_FLAGS = re.compile(rb"(:[01]\r\n)*")
_FLAG_BYTES = 4


class ServerError(Exception):
    """The server answered with an error; the message is its text.

    Attributes:
        number: how many values of the same request came completely before it.
    """

    number = 0


class ProtocolError(Exception):
    """The received bytes are not a reply to the request."""


@dataclass(frozen=True)
class UnexpectedValue:
    """The first value that is missing or has another length than expected.

    Attributes:
        number: its number in the request.
        nbytes: its length; None when there is no such value.
    """

    number: int
    nbytes: int | None


def command(*words: str | int) -> bytes:
    """Encode a command."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        encoded = str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(encoded), encoded))
    return b"".join(parts)


class Replies:
    """The requests and replies on one connection.

    Each method raises ServerError when the server answers with an error, ProtocolError when the
    bytes are not a reply, TimeoutError when nothing comes in time, and OSError when the connection
    breaks.

    Args:
        connection: a socket with a timeout, with no bytes of an earlier reply left in it.
        give_up_at: deadline, by `time.monotonic` (seconds).

    Attributes:
        expected: number of requested replies that have not come completely. If it is not 0 after
            use, the connection must be closed.
    """

    def __init__(self, connection: socket.socket, give_up_at: float) -> None:
        self._connection = connection
        self._give_up_at = give_up_at
        self.expected = 0

    def ask(self, commands: Sequence[bytes]) -> None:
        """Send these commands; their replies come in the same order."""
        self.expected += len(commands)
        self._connection.sendall(b"".join(commands))

    def value(self) -> bytes | None:
        """Receive one value of unknown length; None when there is none.

        No other reply may be expected at the same time.
        """
        head, came = self._line(b"")
        value: bytes | None = None
        if head not in _NIL:
            whole = bytearray(_length(head) + len(b"\r\n"))
            if len(came) > len(whole):
                raise ProtocolError("more came than was asked for")
            whole[: len(came)] = came
            filled = len(came)
            while filled < len(whole):
                filled += self._receive([memoryview(whole)[filled:]])
            if not whole.endswith(b"\r\n"):
                raise ProtocolError("a value that does not end")
            value = bytes(memoryview(whole)[:-2])
        elif came:
            raise ProtocolError("more came than was asked for")
        self.expected -= 1
        return value

    def values(
        self, values: Sequence[memoryview], progress: ByteProgress | None = None
    ) -> UnexpectedValue | None:
        """Fill each buffer with the value of one reply.

        Args:
            values: the buffers, none of them empty.
            progress: called with the number of bytes that are in place.

        Returns:
            None when all values are in place. Otherwise the first one that is not as expected; the
            values after it are lost.
        """
        frames = [b"$%d\r\n" % len(value) for value in values]
        wanted = [frames[0], *(b"\r\n" + frame for frame in frames[1:]), b"\r\n"]
        seen = [bytearray(len(frame)) for frame in wanted]
        places: list[memoryview] = []  # frames at even indices, values at odd indices
        for frame, value in zip(seen, values, strict=False):
            places += memoryview(frame), value
        places.append(memoryview(seen[-1]))

        # The place being filled, the bytes filled in it, and the bytes of complete values.
        at = offset = in_place = 0
        while at < len(places):
            offset += self._receive([places[at][offset:], *places[at + 1 : at + _SCATTER]])
            while at < len(places):
                is_frame, size = at % 2 == 0, len(places[at])
                if is_frame and not wanted[at // 2].startswith(seen[at // 2][:offset]):
                    return self._deviation(at // 2, _joined(places[at:], offset))
                if offset < size:
                    break
                offset -= size
                in_place += 0 if is_frame else size
                at += 1
            if progress is not None:
                progress(in_place + (offset if at % 2 else 0))
        self.expected -= len(values)
        return None

    def flags(self, count: int) -> None:
        """Receive `count` replies that are each 0 or 1, and ignore which."""
        came = bytearray(count * _FLAG_BYTES)
        filled = 0
        while filled < len(came):
            filled += self._receive([memoryview(came)[filled:]])
            known = _FLAGS.match(came, 0, filled)
            good = known.end() if known else 0
            if filled - good >= _FLAG_BYTES:
                raise _refusal(self._line(bytes(came[good:filled]))[0])
        self.expected -= count

    def _deviation(self, number: int, came: bytes) -> UnexpectedValue:
        """Interpret the bytes that came in place of frame number `number`."""
        if number:
            while len(came) < 2:
                came += self._more()
            if not came.startswith(b"\r\n"):
                raise ProtocolError(f"a value that does not end: {came[:16]!r}")
            came = came[2:]
        head, _ = self._line(came)
        try:
            return UnexpectedValue(number, None if head in _NIL else _length(head))
        except ServerError as error:
            error.number = number
            raise

    def _line(self, came: bytes) -> tuple[bytes, bytes]:
        """Receive until `came` holds a whole line; the line, and the bytes after it."""
        while b"\r\n" not in came:
            if len(came) > _LONGEST_LINE:
                raise ProtocolError(f"a line without end: {came[:16]!r}")
            came += self._more()
        line, _, rest = came.partition(b"\r\n")
        return line, rest

    def _more(self) -> bytes:
        buffer = bytearray(1 << 14)
        return bytes(memoryview(buffer)[: self._receive([memoryview(buffer)])])

    def _receive(self, buffers: list[memoryview]) -> int:
        """Receive at least one byte into the buffers."""
        try:
            count: int = self._connection.recvmsg_into(buffers)[0]
        except NotImplementedError:  # TLS sockets have no recvmsg
            count = self._connection.recv_into(buffers[0])
        if not count:
            raise ConnectionError("the server closed the connection")
        if time.monotonic() > self._give_up_at:
            raise TimeoutError("a read took over its deadline")
        return count


def _joined(places: Sequence[memoryview], nbytes: int) -> bytes:
    """The first `nbytes` bytes of these places, but not more than a line can have."""
    nbytes = min(nbytes, _LONGEST_LINE)
    joined = b""
    for place in places:
        joined += place[: nbytes - len(joined)]
        if len(joined) == nbytes:
            break
    return joined


def _length(head: bytes) -> int:
    """The length that the first line of a value gives."""
    if head[:1] != b"$" or not head[1:].isdigit():
        raise _refusal(head)
    nbytes = int(head[1:])
    if nbytes > _LONGEST_VALUE:
        raise ProtocolError(f"a value of {nbytes} bytes")
    return nbytes


def _refusal(line: bytes) -> ServerError | ProtocolError:
    if line.startswith(b"-"):
        return ServerError(line[1:].decode(errors="replace"))
    return ProtocolError(f"not a reply to what was asked: {line[:32]!r}")
