"""Whoever meets a 401 at /mcp finds the issuer, and comes back with a token: the official client,
at a real OpenID provider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import anyio
import httpx
import httpx2
import pytest
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from tests.e2e.console.openid_provider import OpenIdProvider, openid_provider
from tests.fakes.issuer import AUDIENCE, Issuer, issuing
from tests.service.gateway.rig import Rig, running

WELL_KNOWN = "/.well-known/oauth-protected-resource"
CALLBACK = "http://127.0.0.1:1/callback"
READERS: list[dict[str, Any]] = [
    {"doc_id": "canteen", "text": "The canteen serves soup."},
    {"doc_id": "salaries", "text": "The salary of the gardener.", "readers": ["hr"]},
    {"doc_id": "minutes", "text": "The board sells the mill.", "readers": ["board"]},
]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def provider() -> Iterator[OpenIdProvider]:
    with openid_provider(CALLBACK) as provider:
        yield provider


def served_for(folder: Path, data: Path, issuer: str, **settings: Any) -> Any:
    usual = {"oidc_issuer": issuer, "oidc_audience": AUDIENCE, "oidc_refetch_s": 0.01}
    return running(folder, data, **{**usual, **settings})


def test_what_is_told(folder: Path, data: Path, issuer: Issuer) -> None:
    with served_for(folder, data, issuer.name) as rig:
        found = rig.http.get(f"{WELL_KNOWN}/mcp").json()
        assert found == {
            "resource": f"{rig.url}/mcp",
            "authorization_servers": [issuer.name],
            "bearer_methods_supported": ["header"],
            "resource_name": "kvstitch",
            "scopes_supported": ["generate", "admin"],
        }
        whole = rig.http.get(WELL_KNOWN).json()
        assert whole["resource"] == rig.url and "audit" in whole["scopes_supported"]
        refused = rig.http.post("/mcp")
        assert refused.status_code == 401
        told = refused.headers["www-authenticate"]
        url = f"{rig.url}{WELL_KNOWN}/mcp"
        assert told == f'Bearer realm="kvstitch", resource_metadata="{url}"'
        expired = rig.http.post(
            "/mcp", headers={"Authorization": f"Bearer {issuer.token(exp=1)}"}
        ).headers["www-authenticate"]
        assert expired.startswith(f'{told}, error="invalid_token", error_description="the token')
        elsewhere = rig.http.post("/v1/search").headers["www-authenticate"]
        assert elsewhere == 'Bearer realm="kvstitch"'


def test_behind_a_proxy(folder: Path, data: Path, issuer: Issuer) -> None:
    settings = {
        "public_url": "https://x.example/rag/",
        "oidc_scopes": "r=generate,*=metrics,ops=audit",
    }
    with served_for(folder, data, issuer.name, **settings) as rig:
        found = rig.http.get(f"{WELL_KNOWN}/mcp").json()
        assert found["resource"] == "https://x.example/rag/mcp"
        assert found["scopes_supported"] == ["r"], "what a client asks the issuer for"
        told = rig.http.post("/mcp").headers["www-authenticate"]
        assert f'"https://x.example/rag{WELL_KNOWN}/mcp"' in told
    with served_for(folder, data, issuer.name, oidc_scopes_claim="realm_access.roles") as rig:
        assert "scopes_supported" not in rig.http.get(WELL_KNOWN).json(), "roles are not asked for"


def test_without_an_issuer(rig: Rig) -> None:
    assert rig.http.get(f"{WELL_KNOWN}/mcp").status_code == 404
    assert rig.http.get("/.well-known/anything").status_code == 404


class Kept:
    """What a client remembers."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def signed_in(address: str, name: str) -> AuthorizationCodeResult:
    """Go through the provider's pages as a browser would, up to the callback."""
    with httpx.Client(follow_redirects=False, timeout=60) as browser:
        for _ in range(12):
            reply = browser.get(address)
            if not reply.has_redirect_location:
                action = re.findall(r'action="([^"]+)"', reply.text)[0]
                prompt = re.findall(r'name="prompt" value="([^"]+)"', reply.text)[0]
                form = {"prompt": prompt, "login": name, "password": "any"}
                reply = browser.post(urljoin(address, action), data=form)
            address = urljoin(address, reply.headers["location"])
            if address.startswith(CALLBACK):
                back = {k: v[0] for k, v in parse_qs(urlsplit(address).query).items()}
                return AuthorizationCodeResult(
                    code=back["code"], state=back.get("state"), iss=back.get("iss")
                )
    raise AssertionError("the provider does not end")


def test_the_official_client_signs_in(folder: Path, data: Path, provider: OpenIdProvider) -> None:
    """It is given nothing but the service's address: it finds the issuer, registers, asks for the
    scopes that are named, and sees what Anna's groups may read."""
    asked: list[str] = []

    async def go_there(address: str) -> None:
        asked.append(address)

    async def come_back() -> AuthorizationCodeResult:
        return await anyio.to_thread.run_sync(signed_in, asked[-1], "anna")

    async def documents(url: str) -> str:
        auth = OAuthClientProvider(
            f"{url}/mcp",
            OAuthClientMetadata(
                client_name="a client",
                redirect_uris=[CALLBACK],
                token_endpoint_auth_method="none",
                grant_types=["authorization_code"],
                application_type="native",
            ),
            Kept(),
            go_there,
            come_back,
        )
        async with (
            httpx2.AsyncClient(auth=auth, timeout=60) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
        ):
            return str(await client.call_tool("documents", {}))

    provider.set(audience=AUDIENCE)
    # Documents come in before there is an issuer: then nobody needs a key.
    with running(folder, data) as rig:
        rig.ingest(READERS)
    with served_for(folder, data, provider.issuer) as rig:
        found = anyio.run(documents, rig.url)
        assert "canteen" in found and "salaries" in found and "minutes" not in found
        query = parse_qs(urlsplit(asked[0]).query)
        assert query["resource"] == [f"{rig.url}/mcp"] and query["scope"] == ["generate admin"]
