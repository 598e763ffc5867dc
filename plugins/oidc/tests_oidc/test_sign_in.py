"""The exchange of a code for a token: what is sent to the issuer, and what is taken from it. In a
browser, at a real provider: tests/e2e/console/test_console_sign_in.py."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import load
from kvstitch_audit.part import part_of
from tests.fakes.issuer import AUDIENCE, Issuer, issuing
from tests.service.gateway.rig import Rig, running

NONCE = "of-this-sign-in-1234"
VERIFIER = "v" * 43
CLIENT = "console"
Open = Callable[..., Rig]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture
def serving(folder: Path, data: Path, issuer: Issuer) -> Iterator[Open]:
    """serving(oidc_client_secret="s"): a service whose console signs in at `issuer`."""
    opened: list[Any] = []

    def open_one(**settings: Any) -> Rig:
        usual = {"oidc_issuer": issuer.name, "oidc_audience": AUDIENCE, "oidc_client_id": CLIENT}
        manager = running(folder, data, **{"oidc_refetch_s": 0.01, **usual, **settings})
        opened.append(manager)
        rig: Rig = manager.__enter__()
        return rig

    yield open_one
    for manager in opened:
        manager.__exit__(None, None, None)


def grant(issuer: Issuer, access_token: Any = None, **who: Any) -> None:
    """What the issuer gives for any code: an access token for this service, unless another is
    named, and an ID token with these claims changed."""
    id_token = issuer.token(**{"aud": CLIENT, "nonce": NONCE, "name": "Anna Example", **who})
    issuer.granted = 200, {"access_token": access_token or issuer.token(), "id_token": id_token}


def redeemed(rig: Rig, *, origin: str | None = None, **changed: Any) -> httpx.Response:
    place = f"{rig.url}/ui/"
    sent = {"code": "c0de", "verifier": VERIFIER, "nonce": NONCE, "redirect_uri": place}
    headers = {} if origin == "" else {"Origin": origin or rig.url}
    return rig.http.post("/ui/sign-in", json={**sent, **changed}, headers=headers)


def test_where_one_signs_in(serving: Open, issuer: Issuer) -> None:
    rig = serving(
        oidc_client_secret="never told",
        oidc_client_scopes="openid email",
        oidc_client_parameters="audience=https://rag.example/,prompt=login",
    )
    assert rig.http.get("/ui/sign-in").json() == {"issuer": issuer.name}
    assert issuer.requests == 0, "the page opens whether the issuer answers or not"
    found = rig.http.get("/ui/sign-in/provider")
    assert found.json() == {
        "authorization_endpoint": f"{issuer.url}/authorize",
        "end_session_endpoint": "",
        "parameters": {"client_id": CLIENT, "scope": "openid email", "response_type": "code",
                       "audience": "https://rag.example/", "prompt": "login"},
    }  # fmt: skip
    rig.http.get("/ui/sign-in/provider")
    assert issuer.requests == 1, "it is remembered"


def test_a_service_without_a_client(serving: Open, issuer: Issuer) -> None:
    rig = serving(oidc_client_id="")
    assert rig.http.get("/ui/sign-in").json() == {"issuer": None}
    assert rig.http.get("/ui/sign-in/provider").status_code == 404
    refused = redeemed(rig)
    assert refused.status_code == 404 and "KVSTITCH_OIDC_CLIENT_ID" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("secret", "ways", "told", "sender"),
    [
        ("", ["client_secret_basic"], "", ""),
        ("s3:/+ &", ["client_secret_basic", "client_secret_post"], "", "console:s3%3A%2F%2B%20%26"),
        ("s3:/+ &", ["client_secret_post"], "s3:/+ &", ""),
    ],
    ids=["public", "basic", "post"],
)
def test_a_code_for_a_token(
    serving: Open, issuer: Issuer, secret: str, ways: list[str], told: str, sender: str
) -> None:
    issuer.ways = ways
    rig = serving(oidc_client_secret=secret, oidc_client_parameters="resource=urn:x")
    grant(issuer)
    reply = redeemed(rig)
    assert reply.status_code == 200, reply.text
    assert reply.headers["cache-control"] == "no-store" and "set-cookie" not in reply.headers
    found = reply.json()
    assert found["token"] == issuer.granted[1]["access_token"]
    assert (found["subject"], found["name"]) == ("anna", "Anna Example")
    bearer = {"Authorization": f"Bearer {found['token']}"}
    assert rig.http.get("/v1/models", headers=bearer).status_code == 200
    [(form, authorization)] = issuer.exchanges
    assert form.pop("client_secret", "") == told
    assert form == {
        "grant_type": "authorization_code", "code": "c0de", "code_verifier": VERIFIER,
        "client_id": CLIENT, "redirect_uri": f"{rig.url}/ui/", "resource": "urn:x",
    }  # fmt: skip
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == sender


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "of another sign-in": ({"nonce": "another-nonce-123456"}, "sign_in_refused", "nonce"),
    "without a nonce": ({"nonce": None}, "sign_in_refused", "nonce"),
    "for another client": ({"aud": "shop"}, "invalid_token", "another service"),
    "of another person": ({"sub": "ben"}, "sign_in_refused", "two people"),
    "expired": ({"exp": 1}, "invalid_token", "expired"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_id_token_that_is_wrong(serving: Open, issuer: Issuer, name: str) -> None:
    claims, code, says = WRONG[name]
    rig = serving()
    grant(issuer, **claims)
    reply = redeemed(rig)
    assert reply.status_code == 401 and reply.json()["code"] == code
    assert says in reply.json()["detail"] and "token" not in reply.json()


def test_which_token_is_used(serving: Open, issuer: Issuer) -> None:
    """Access tokens that only the issuer can read are none; ID tokens are, where they are named."""
    rig = serving()
    grant(issuer, "opaque")
    reply = redeemed(rig)
    assert reply.status_code == 401 and "oidc_client_parameters" in reply.json()["detail"]
    grant(issuer, issuer.token(aud="shop"))
    reply = redeemed(rig)
    assert reply.status_code == 401 and reply.json()["field"] == "aud"


@pytest.mark.parametrize("access_token", ["opaque", ""])
def test_an_id_token_is_taken_where_it_is_named(
    serving: Open, issuer: Issuer, access_token: str
) -> None:
    rig = serving(oidc_audience=f"{AUDIENCE},{CLIENT}")
    grant(issuer, access_token or issuer.token(aud="shop"))
    found = redeemed(rig).json()
    assert found["token"] == found["id_token"]
    bearer = {"Authorization": f"Bearer {found['token']}"}
    assert rig.http.get("/v1/models", headers=bearer).status_code == 200


GRANTS: list[tuple[tuple[int, Any], str]] = [
    ((400, {"error": "invalid_grant", "error_description": "used up"}), "invalid_grant: used up"),
    ((401, {"error": "invalid_client"}), "invalid_client"),
    ((200, []), "200"),
    ((200, {"access_token": "a.b.c"}), "no ID token"),
    ((200, {"id_token": "no token"}), "malformed"),
]


@pytest.mark.parametrize(("granted", "says"), GRANTS)
def test_what_the_issuer_refuses(
    serving: Open, issuer: Issuer, granted: tuple[int, Any], says: str
) -> None:
    rig = serving()
    issuer.granted = granted
    reply = redeemed(rig)
    assert reply.status_code == 401 and says in reply.json()["detail"]


def test_an_issuer_that_is_away(serving: Open, issuer: Issuer) -> None:
    rig = serving()
    issuer.down = True
    for reply in (rig.http.get("/ui/sign-in/provider"), redeemed(rig)):
        assert reply.status_code == 503 and reply.json()["code"] == "identity_unavailable"
    issuer.down = False
    grant(issuer)
    assert redeemed(rig).status_code == 200


def test_only_the_console_exchanges(serving: Open, issuer: Issuer) -> None:
    rig = serving(allowed_origins="https://other.example")
    grant(issuer)
    places = ["https://other.example/ui/", "http://127.0.0.1:1/ui/", f"{rig.url}/elsewhere", "x"]
    replies = [redeemed(rig, redirect_uri=place) for place in places]
    replies += [redeemed(rig, origin=""), redeemed(rig, origin="https://other.example")]
    assert [reply.status_code for reply in replies] == [401] * 6
    assert redeemed(rig, origin="https://evil.example").status_code == 403
    assert redeemed(rig, verifier="short").status_code == 422
    assert issuer.exchanges == []


def test_the_audit_log_names_who_signed_in(serving: Open, issuer: Issuer) -> None:
    """And nobody can fill it with sign-ins that fail."""
    rig = serving(audit=True, oidc_tenant="red")
    assert redeemed(rig).status_code == 401
    grant(issuer, issuer.token(scope="audit", groups=["all"]))
    token = redeemed(rig).json()["token"]
    writer = part_of(rig.gateway).writer
    assert writer is not None
    found = [e for e in writer.log.page("red", 0, 100) if e["route"] == "POST /ui/sign-in"]
    assert [(e["action"], e["actor"], e["status"]) for e in found] == [("sign_in", "sub:anna", 200)]
    assert token not in str(found) and "c0de" not in str(found)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"oidc_issuer": "", "oidc_client_id": "c"}, "oidc_issuer that is a URL"),
        ({"oidc_client_scopes": "profile"}, "must hold 'openid'"),
        ({"oidc_client_parameters": "state=x"}, "no parameter of the console's own"),
        ({"oidc_client_parameters": "resource"}, "NAME=VALUE"),
        ({"oidc_issuer": "http://login.example", "oidc_jwks": "keys.json"}, "without TLS"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], says: str) -> None:
    usual = {"oidc_issuer": "https://i.example", "oidc_audience": "x", "oidc_client_id": "c"}
    with pytest.raises(InvalidSetting, match=says):
        load(**{**usual, **settings})
