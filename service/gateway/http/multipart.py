"""Splits multipart/form-data into its parts, one after another as they come in.

Memory holds a piece of one part at a time: large ones are written to the spool folder as they come.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from kvstitch.service.errors import MalformedBody
from kvstitch.service.gateway.documents.jobs.job_records import SpooledFile
from kvstitch.service.gateway.documents.jobs.spool_folder import (
    INLINE_BYTES,
    START_BYTES,
    SpoolWriter,
    Upload,
)
from kvstitch.service.gateway.json_content import NOT_UTF8

MAX_HEADER_BYTES = 16_384


@dataclass
class Part:
    """A part of a form; `content` is there when the part has come in as a whole."""

    content: bytes | SpooledFile = b""
    start: bytes = b""  # the first bytes of its content
    size: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    _buffer: bytearray = field(default_factory=bytearray)  # what is not in the file
    _file: SpoolWriter | None = None

    def add(self, data: bytes) -> None:
        self._buffer += data
        self.size += len(data)
        self.start = (self.start + data[:START_BYTES])[:START_BYTES]

    async def spill(self, upload: Upload) -> None:
        """Write what there is to a file, if that is much."""
        if len(self._buffer) >= INLINE_BYTES:
            self._file = self._file or await upload.writer()
            await self._file.write(bytes(self._buffer))
            self._buffer.clear()

    async def finish(self) -> None:
        self.content = bytes(self._buffer)
        if self._file is not None:
            await self._file.write(self.content)
            self.content = await self._file.finish()

    def named(self, option: bytes) -> str:
        """Return `name` or `filename`, as Content-Disposition has it; "" if it has none."""
        disposition = self.headers.get("content-disposition", "")
        return decoded(dict(parse_options_header(disposition)[1]).get(option, b""))

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        return charset_of(self.headers.get("content-type", ""))


async def read_parts(
    body: AsyncIterator[bytes], content_type: str, upload: Upload, check: Callable[[Part], None]
) -> AsyncIterator[Part]:
    """Read the parts of a form; `check` is asked whenever there is more of one, and may raise."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise MalformedBody("the Content-Type of a form names its boundary; this one does not")
    parts = _PartCollector(check)
    names = [name for name in vars(_PartCollector) if name.startswith("on_")]
    parser = MultipartParser(boundary, {name: getattr(parts, name) for name in names})  # type: ignore[arg-type]
    async for data in body:
        try:
            parser.write(data)
        except MultipartParseError as error:
            raise MalformedBody(f"the form cannot be read: {error}", field="body") from error
        for part in parts.complete:
            await part.finish()
            yield part
        parts.complete.clear()
        await parts.current.spill(upload)
    if not parts.ended:
        raise MalformedBody("the form ends in the middle: send it again", field="body")


class _PartCollector:
    """The parser's callbacks (`on_…`); collects the parts that are `complete`."""

    def __init__(self, check: Callable[[Part], None]) -> None:
        self.complete: list[Part] = []
        self.current = Part()
        self.ended = False
        self._check = check
        self._header_name = b""
        self._header_value = b""
        self._header_bytes = 0

    def on_part_begin(self) -> None:
        self.current, self._header_bytes = Part(), 0

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]
        self._count_header(end - start)

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]
        self._count_header(end - start)

    def on_header_end(self) -> None:
        name = self._header_name.decode("latin-1").lower()
        self.current.headers[name] = self._header_value.decode("latin-1")
        self._header_name = self._header_value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.current.add(data[start:end])
        self._check(self.current)

    def on_part_end(self) -> None:
        self.complete.append(self.current)
        self.current = Part()

    def on_end(self) -> None:
        self.ended = True

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise MalformedBody("a part of the form has headers that are too long", field="body")


def charset_of(content_type: str) -> str:
    """Return the charset that a Content-Type names; "" if it names none."""
    return parse_options_header(content_type)[1].get(b"charset", b"").decode("ascii", "ignore")


def decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise MalformedBody(f"a name or field of the form {NOT_UTF8}", field="body") from error
