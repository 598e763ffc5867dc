"""Where the service is and how patient a client is; from arguments and the environment."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from kvstitch.client.errors import InvalidRequest

URL_VARIABLE = "KVSTITCH_URL"
KEY_VARIABLE = "KVSTITCH_API_KEY"
DEFAULT_URL = "http://localhost:8000"
CONNECT_S = 5.0


@dataclass(frozen=True)
class Connection:
    """Settings of a client.

    Attributes:
        base_url: Of the service.
        api_key: Sent as a bearer token; empty: none.
        timeout_s: Longest silence of the service within a call.
        max_retries: How often a call is repeated.
        max_wait_s: A call is not repeated if the service asks to wait longer.
    """

    base_url: str
    api_key: str
    timeout_s: float
    max_retries: int
    max_wait_s: float

    @classmethod
    def make(cls, base_url: str | None, api_key: str | None, **patience: Any) -> Connection:
        """What is not given comes from KVSTITCH_URL and KVSTITCH_API_KEY.

        Raises:
            InvalidRequest: The key has characters that no header can hold.
        """
        url = base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        key = (api_key or os.environ.get(KEY_VARIABLE, "")).strip()
        if not (key.isascii() and key.isprintable()):
            raise InvalidRequest(
                "api_key has characters that no key has: copy it again", field="api_key"
            )
        return cls(url.rstrip("/"), key, **patience)

    def for_httpx(self) -> dict[str, Any]:
        """Arguments of httpx.Client and httpx.AsyncClient."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        timeout = httpx.Timeout(self.timeout_s, connect=min(CONNECT_S, self.timeout_s))
        return {
            "base_url": self.base_url,
            "headers": headers,
            "timeout": timeout,
            "verify": _trust(),
        }


@cache
def _trust() -> ssl.SSLContext:
    """Whom to trust. Reading this takes longer than all else that a client does at its start."""
    return httpx.create_ssl_context()
