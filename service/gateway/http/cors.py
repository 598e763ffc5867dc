"""Lets pages of other origins use the API, if the operator has named these origins.

Without KVSTITCH_CORS_ORIGINS no page of another origin can read anything here. A page whose origin
is named may call every route with an API key in a header, as any client; there are no cookies, and
browsers are never told to send credentials of their own (HTTP authentication, certificates).

Preflights carry no key, so they are answered before keys are looked at; so is what goes wrong, with
the headers that let the page read it.
"""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

METHODS = ("GET", "POST", "PUT", "DELETE")
# Any: OpenAI's client sends a dozen of its own. None of them means anything without a key.
REQUEST_HEADERS = ("*",)
# What a page may read of a response.
RESPONSE_HEADERS = ("Location", "Retry-After", "Server-Timing", "X-Request-Id", "X-Should-Retry")
PREFLIGHT_AGE_S = 600


def allow_origins(app: ASGIApp, origins: frozenset[str]) -> ASGIApp:
    """Wrap `app` so that pages of these origins may use it; "*" stands for every origin."""
    return CORSMiddleware(
        app,
        allow_origins=sorted(origins),
        allow_methods=METHODS,
        allow_headers=REQUEST_HEADERS,
        expose_headers=RESPONSE_HEADERS,
        allow_credentials=False,
        max_age=PREFLIGHT_AGE_S,
    )
