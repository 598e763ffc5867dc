"""Refuses what a browser sends in the name of a page of somebody else.

A page that a person happens to visit can make their browser send requests to any address, this
machine's own among them. Two things give such a page away, and no script can change them:

    Host     DNS rebinding: the page's own name leads to this machine   421 unknown_host
    Origin   a form or a fetch of another site that writes              403 foreign_origin

Senders that are no browsers send neither Origin nor Sec-Fetch-Site, and are not concerned.
"""

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kvstitch.service.errors import ForeignOrigin, UnknownHost
from kvstitch.service.gateway.http.problems import respond
from kvstitch.service.settings import Settings
from kvstitch.service.settings.fields import parts
from kvstitch.service.shared.fleet_secret import is_loopback

READING_METHODS = ("GET", "HEAD", "OPTIONS")
ANY = "*"


class BrowserGuard:
    """Checks Host of every request, and Origin of those that write. Plain ASGI."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._hosts = frozenset(parts(settings.allowed_hosts.lower()))
        if not self._hosts and not is_loopback(settings.host):
            self._hosts = frozenset({ANY})  # its names are known to the operator alone
        # Who may read answers may also ask: a question is a POST.
        origins = f"{settings.allowed_origins},{settings.cors_origins}"
        self._origins = frozenset(parts(origins.lower()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                self._check_host(headers.get("host", ""))
                if scope["method"] not in READING_METHODS:
                    self._check_origin(headers)
            except (UnknownHost, ForeignOrigin) as error:
                await respond(Request(scope), error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        if ANY in self._hosts or not host:
            return
        name = (_split(f"//{host}")[1] or "").rstrip(".")
        allowed = name in self._hosts
        if not self._hosts:
            allowed = is_loopback(name) or name.endswith(".localhost")
        if not allowed:
            raise UnknownHost(
                f"this service does not answer for the host {host[:200]!r}: use an address of this "
                "machine (localhost), or add the name to KVSTITCH_ALLOWED_HOSTS",
            )

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        origin = headers.get("origin")
        if origin is None:
            # Every browser says this much, or sends an Origin.
            foreign = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
        else:
            own = _split(f"//{headers.get('host', '')}")
            scheme = origin.partition(":")[0]
            foreign = scheme not in ("http", "https") or _split(origin)[0] != own[0] or not own[0]
        if foreign and origin not in self._origins and ANY not in self._origins:
            raise ForeignOrigin(
                f"a page of {(origin or 'another site')[:200]} may not change anything here: send "
                "the request without a browser, or add the origin to KVSTITCH_ALLOWED_ORIGINS"
            )


@lru_cache(maxsize=256)  # clients have few names for this machine
def _split(url: str) -> tuple[str, str]:
    """Return (host with port, host alone) of a URL, in lower case; empty if it is none."""
    try:
        parts = urlsplit(url)
        return parts.netloc.lower(), (parts.hostname or "").lower()
    except ValueError:
        return "", ""
