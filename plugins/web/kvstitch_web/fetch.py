"""Fetches a URL of an allowed host, and never from a private address.

A name is resolved once, its addresses are checked, and the connection goes to the address that was
checked. So a name that resolves differently a moment later, or a redirect, leads to nothing else.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore

MAX_REDIRECTS = 5
TIMEOUT_S = 10.0  # to connect, and for every read
_REDIRECTS = (301, 302, 303, 307, 308)
# They hold an IPv4 address of any kind: of NAT64, also a network's own, and the old form.
_HOLDING_IPV4 = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
_HEADERS = [("User-Agent", "kvstitch-ingest"), ("Accept-Encoding", "identity")]


class NotFetched(Exception):
    """A URL that was not fetched."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True)
class Fetched:
    """A page."""

    media_type: str
    charset: str
    content: bytes


@dataclass(frozen=True)
class FetchLimits:
    """What may be fetched."""

    hosts: frozenset[str]
    max_bytes: int
    max_seconds: float
    private: bool = False


class Fetcher:
    """A client with connections of its own; a context manager."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self._pool = httpcore.ConnectionPool(network_backend=_CheckedBackend(limits.private))

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close()

    def get(self, url: str) -> Fetched:
        """Fetch a URL."""
        until = time.monotonic() + self._limits.max_seconds
        for _ in range(MAX_REDIRECTS + 1):
            self._check(url)
            try:
                found = self._once(url, until)
            except (httpcore.NetworkError, httpcore.TimeoutException) as error:
                raise NotFetched("it cannot be reached", str(error)) from error
            except (httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
                raise NotFetched("its server speaks no HTTP", str(error)) from error
            if isinstance(found, Fetched):
                return found
            url = urljoin(url, found)
        raise NotFetched(f"more than {MAX_REDIRECTS} redirects")

    def _check(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            named = parts.username is not None or parts.port == 0
        except ValueError as error:
            raise NotFetched("no URL", str(error)) from error
        if parts.scheme not in ("http", "https") or not host or named or not url.isascii():
            raise NotFetched("no http:// or https:// URL without a user name", url)
        if host not in self._limits.hosts:
            raise NotFetched("its host is not allowed", f"{host}; see --allow-host")

    def _once(self, url: str, until: float) -> Fetched | str:
        """Return the page, or where it redirects to."""
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT_S)
        with self._pool.stream(
            "GET", url, headers=_HEADERS, extensions={"timeout": timeouts}
        ) as response:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1")
                       for name, value in response.headers}  # fmt: skip
            if response.status in _REDIRECTS and "location" in headers:
                return headers["location"]
            if response.status != 200:
                raise NotFetched(f"HTTP {response.status}")
            if headers.get("content-encoding", "identity") != "identity":
                raise NotFetched("it is compressed though that was not asked for")
            content = self._content(response.iter_stream(), until)
        media_type, _, parameters = headers.get("content-type", "").partition(";")
        _, _, charset = parameters.lower().partition("charset=")
        charset = charset.partition(";")[0].strip(" \"'")
        return Fetched(media_type.strip().lower(), charset, content)

    def _content(self, parts: Iterable[bytes], until: float) -> bytes:
        content = bytearray()
        for part in parts:
            content += part
            if len(content) > self._limits.max_bytes:
                raise NotFetched(f"more than {self._limits.max_bytes} bytes")
            if time.monotonic() > until:
                raise NotFetched(f"it took more than {self._limits.max_seconds:.0f} s")
        return bytes(content)


class _CheckedBackend(httpcore.SyncBackend):
    """Connects to addresses that it has checked."""

    def __init__(self, private: bool) -> None:
        self._private = private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise NotFetched("its host is not known", host) from error
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not self._private and (inside := not_public(addresses)):
            raise NotFetched(
                "its host is at a private address",
                f"{host} is {inside}; --allow-private-addresses allows it",
            )
        return super().connect_tcp(addresses[0], port, timeout, local_address, socket_options)

    def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.NetworkStream:
        raise NotFetched("no http:// or https:// URL without a user name")


def not_public(addresses: Collection[str]) -> str | None:
    """Return one of the addresses that is not on the public internet, None if all are."""
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            inner = address.ipv4_mapped or address.sixtofour
            if inner is not None:
                address = inner
            elif (
                address.teredo is not None
                or address.is_site_local
                or any(address in network for network in _HOLDING_IPV4)
            ):
                return text
        if not address.is_global or address.is_multicast:
            return text
    return None
