"""Requests to one bucket, with bounded waits and this package's errors.

obstore (Rust's object_store) signs, connects, retries a busy server's 503, and finds credentials:
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a web identity token, the container's or the machine's
role. It is imported by `start`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from kvstitch.kvstore.errors import ChunkCorrupt, TierError, TierTimeout, TierUnavailable

_RETRIES = 2
_SHOWN = 300  # characters of an error


@dataclass(frozen=True)
class Place:
    """Where the objects are: `s3://bucket/prefix` (the prefix may be missing), the server's URL
    (empty: AWS, or AWS_ENDPOINT_URL) and region (empty: AWS_REGION, or us-east-1)."""

    url: str
    endpoint: str = ""
    region: str = ""


@dataclass(frozen=True)
class Waits:
    """Longest waits in seconds."""

    silence: float = 2.0
    read: float = 15.0
    write: float = 60.0


@dataclass(frozen=True)
class Part:
    """A range of an object."""

    content: memoryview
    size: int
    version: str | None


class Bucket:
    """A bucket, or what is below a prefix in it."""

    def __init__(self, place: Place, waits: Waits, name: str) -> None:
        self._place = place
        self._waits = waits
        self._name = name
        self._obstore: Any = None
        self._reading: Any = None
        self._writing: Any = None

    def start(self) -> None:
        """Prepare the client; it connects at first use, so a server that is down delays nothing."""
        try:
            import obstore
        except ImportError as error:
            raise TierError("the S3 tier needs obstore: pip install kvstitch-s3") from error
        parts = urlsplit(self._place.url)
        if parts.scheme != "s3" or not parts.netloc:
            raise TierError(f"bad S3 URL {self._place.url!r}: give s3://bucket/prefix")
        try:
            self._reading = self._client(parts.netloc, parts.path, self._waits.read)
            self._writing = self._client(parts.netloc, parts.path, self._waits.write)
        except Exception as error:
            raise TierError(f"bad S3 settings: {_shown(error)}") from error
        self._obstore = obstore

    def close(self) -> None:
        self._obstore = self._reading = self._writing = None

    def read(
        self, path: str, start: int = 0, end: int | None = None, version: str | None = None
    ) -> Part | None:
        """Read the bytes `[start, end)` of an object, fewer where it ends."""
        options: dict[str, Any] = {} if end is None else {"range": (start, end)}
        if version:
            options["if_match"] = version
        with self._errors(self._waits.read) as obstore:
            try:
                got = obstore.get(self._reading, path, options=options)
                content = memoryview(got.bytes())
            except obstore.exceptions.PreconditionError:
                return None
            except FileNotFoundError as error:
                self._require_bucket(error)
                return None
            except obstore.exceptions.GenericError as error:
                if "InvalidRange" in str(error):
                    raise ChunkCorrupt(f"{path} ends before byte {start}") from error
                raise
            return Part(content, got.meta["size"], got.meta["e_tag"])

    def exists(self, path: str) -> bool:
        with self._errors(self._waits.read) as obstore:
            try:
                obstore.head(self._reading, path)
            except FileNotFoundError:
                return False
            return True

    def create(self, path: str, buffers: Sequence[bytes | memoryview]) -> None:
        """Write an object as a whole, unless there is one already."""
        with self._errors(self._waits.write) as obstore:
            try:
                obstore.put(self._writing, path, list(buffers), mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return

    def replace(self, path: str, content: memoryview) -> None:
        """Write an object as a whole, in place of one that is there."""
        with self._errors(self._waits.write) as obstore:
            obstore.put(self._writing, path, content, use_multipart=False)

    def list(self, folder: str | None = None) -> Iterator[str]:
        """Yield the paths of all objects, or of those in a folder."""
        with self._errors(self._waits.read) as obstore:
            for page in obstore.list(self._reading, folder, chunk_size=1000):
                yield from (one["path"] for one in page)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; those that are not there do not matter."""
        with self._errors(self._waits.write) as obstore:
            obstore.delete(self._writing, paths)

    def _client(self, bucket: str, prefix: str, timeout_s: float) -> Any:
        from obstore.store import S3Store

        silence = timedelta(seconds=self._waits.silence)
        settings: dict[str, Any] = {}
        if self._place.endpoint:
            settings["endpoint"] = self._place.endpoint
        if self._place.region:
            settings["region"] = self._place.region
        return S3Store(
            bucket,
            prefix=prefix.strip("/") or None,
            virtual_hosted_style_request=False,
            client_options={
                "allow_http": self._place.endpoint.startswith("http://"),
                "connect_timeout": silence,
                "read_timeout": silence,
                "timeout": timedelta(seconds=timeout_s),
            },
            # A server that is silent is not asked again: its circuit breaker takes over.
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": silence * 0.9,
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(milliseconds=500),
                    "base": 2,
                },
            },
            **settings,
        )

    def _require_bucket(self, error: FileNotFoundError) -> None:
        """Raise an error if it is the bucket that does not exist, not only the object."""
        if "NoSuchBucket" in str(error):
            raise TierError(f"{self._name}: the bucket of {self._place.url} is missing") from error

    @contextmanager
    def _errors(self, timeout_s: float) -> Iterator[Any]:
        """Yield obstore; its errors in the block become tier errors."""
        obstore = self._obstore
        if obstore is None:
            raise TierUnavailable(f"tier {self._name} is not started")
        started = time.monotonic()
        try:
            yield obstore
        except FileNotFoundError as error:
            self._require_bucket(error)
            raise TierError(f"{self._name}: {_shown(error)}") from error
        except obstore.exceptions.BaseError as error:
            text = f"{self._name}: {_shown(error)}"
            if time.monotonic() - started >= min(self._waits.silence, timeout_s):
                raise TierTimeout(text) from error
            raise TierUnavailable(text) from error


def _shown(error: Exception) -> str:
    """Return the message without what only obstore's authors can read."""
    return str(error).partition("\n\nDebug source")[0][:_SHOWN]
