"""An issuer of tokens: it signs what a test says, and publishes its keys over HTTP."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "kvstitch-tests"
Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class Issuer:
    """Between `start` and `stop` its keys are at `url`; `keys` by their names may be changed.

    Attributes:
        requests: How many it was sent.
        reads: How often the keys were read.
        down: Whether it answers 500.
        exchanges: Forms that were sent to its token endpoint, and their Authorization.
        granted: Status and body of what that endpoint answers.
        ways: How it wants clients to say who they are.
    """

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Private]] = {}
        self.requests = self.reads = 0
        self.down = False
        self.exchanges: list[tuple[dict[str, str], str]] = []
        self.granted: tuple[int, Any] = (200, {})
        self.ways = ["client_secret_basic", "client_secret_post"]
        self.add("first")
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers = {
                    "/.well-known/openid-configuration": issuer.described,
                    "/jwks": issuer.published,
                }
                issuer.requests += 1
                if self.path == "/jwks":
                    issuer.reads += 1
                self.answer(200, answers[self.path]())

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                assert self.path == "/token"
                sender = self.headers.get("Authorization", "")
                issuer.exchanges.append((dict(parse_qsl(form)), sender))
                self.answer(*issuer.granted)

            def answer(self, status: int, content: Any) -> None:
                body = json.dumps(content).encode()
                self.send_response(500 if issuer.down else status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.name = self.url

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def described(self) -> dict[str, Any]:
        return {
            "issuer": self.name,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "token_endpoint_auth_methods_supported": self.ways,
        }

    def published(self) -> dict[str, Any]:
        return {"keys": [self.jwk(name) for name in self.keys]}

    def jwk(self, name: str) -> dict[str, Any]:
        algorithm, private = self.keys[name]
        made: Any = {"RS": RSAAlgorithm, "ES": ECAlgorithm, "Ed": OKPAlgorithm}[algorithm[:2]]
        public = made.to_jwk(private.public_key(), as_dict=True)
        return {**public, "kid": name, "alg": algorithm, "use": "sig"}

    def add(self, name: str, algorithm: str = "RS256") -> None:
        """Make a key, and publish it."""
        private: Private
        if algorithm.startswith("RS"):
            private = rsa.generate_private_key(65_537, 2048)
        elif algorithm == "ES256":
            private = ec.generate_private_key(ec.SECP256R1())
        else:
            private = ed25519.Ed25519PrivateKey.generate()
        self.keys[name] = (algorithm, private)

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Claims that are right, with changes; None leaves one out."""
        now = int(time.time())
        right = {"iss": self.name, "aud": AUDIENCE, "sub": "anna", "iat": now, "exp": now + 300,
                 "scope": "generate ingest admin metrics"}  # fmt: skip
        return {name: value for name, value in {**right, **changes}.items() if value is not None}

    def token(self, key: str = "first", **claims: Any) -> str:
        algorithm, private = self.keys[key]
        return jwt.encode(self.claims(**claims), private, algorithm, headers={"kid": key})


@contextmanager
def issuing() -> Iterator[Issuer]:
    issuer = Issuer()
    issuer.start()
    try:
        yield issuer
    finally:
        issuer.stop()


def part(content: Any) -> str:
    """One part of a token, as it is written."""
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()
