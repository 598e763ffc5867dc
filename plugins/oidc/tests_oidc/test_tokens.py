"""Tokens of an issuer over HTTP: who gets in, and by which reason others do not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.messages.requests import Generate
from kvstitch.service.settings import load
from tests.fakes.issuer import AUDIENCE, Issuer, issuing, part
from tests.fakes.worker import FakeWorker
from tests.service.gateway.rig import Rig, running, until

OF_ISSUER: dict[str, Any] = {"oidc_audience": AUDIENCE, "oidc_refetch_s": 0.01}
Open = Callable[..., Rig]


@pytest.fixture(scope="module")
def module_issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def issued(module_issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A service that takes tokens of `module_issuer`, which its tests leave as it is."""
    from tests.service.gateway.model_folders import make_folder

    folder = make_folder(tmp_path_factory.mktemp("issued") / "model")
    data = tmp_path_factory.mktemp("d")
    settings = {**OF_ISSUER, "oidc_issuer": module_issuer.name, "oidc_clock_skew_s": 30}
    with running(folder, data, **settings) as rig:
        yield rig


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture
def serving(folder: Path, data: Path, issuer: Issuer) -> Iterator[Open]:
    """serving(oidc_tenant="red"): a service that takes tokens of `issuer`."""
    opened: list[Any] = []

    def open_one(**settings: Any) -> Rig:
        manager = running(folder, data, **{**OF_ISSUER, "oidc_issuer": issuer.name, **settings})
        opened.append(manager)
        rig: Rig = manager.__enter__()
        return rig

    yield open_one
    for manager in opened:
        manager.__exit__(None, None, None)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def asked(rig: Rig, token: str, path: str = "/v1/models") -> httpx.Response:
    return rig.http.get(path, headers=bearer(token))


def refused(rig: Rig, token: str, field: str | None, says: str) -> None:
    """Refused with this reason, on a route of each form."""
    reply = asked(rig, token)
    assert reply.status_code == 401, reply.text
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_token", field), error
    assert says in error["message"]
    told = reply.headers["www-authenticate"]
    assert told.startswith('Bearer realm="kvstitch", error="invalid_token", error_description="')
    assert told.isascii() and told.count('"') == 6
    problem = asked(rig, token, "/admin/documents")
    assert problem.status_code == 401 and problem.json().get("field") == field
    upload = rig.http.post("/admin/precompute", headers=bearer(token), content=b"never read")
    assert upload.status_code == 401


def test_a_token_is_taken_beside_keys(issued: Rig, module_issuer: Issuer) -> None:
    assert asked(issued, module_issuer.token()).status_code == 200
    needed = issued.http.get("/v1/models")
    assert needed.status_code == 401, "without keys, too, because there is an issuer"
    assert needed.json()["error"]["code"] == "invalid_api_key"
    assert "token" in needed.json()["error"]["message"]
    assert needed.headers["www-authenticate"] == 'Bearer realm="kvstitch"', "RFC 6750, 3.1"
    assert asked(issued, "kvs_wrong").json()["error"]["code"] == "invalid_api_key"
    by_key = issued.http.get("/v1/models", headers={"x-api-key": module_issuer.token()})
    assert by_key.status_code == 200


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "expired": ({"exp": int(time.time()) - 120}, "exp", "expired"),
    "not yet valid": ({"nbf": int(time.time()) + 3000}, "nbf", "not valid yet"),
    "another audience": ({"aud": "shop"}, "aud", "another service"),
    "other audiences": ({"aud": ["shop", "mail"]}, "aud", "another service"),
    "another issuer": ({"iss": "https://login.example"}, "iss", "another issuer"),
    "nearly the issuer": ({"iss": "http://127.0.0.1/"}, "iss", "another issuer"),
    **{f"no {name}": ({name: None}, name, f"lacks the claim '{name}'")
       for name in ("iss", "aud", "exp", "sub")},
    "an empty sub": ({"sub": ""}, "sub", "lacks the claim"),
    "a long sub": ({"sub": "a" * 256}, "sub", "up to 255"),
    "a sub of two lines": ({"sub": "a\nb"}, "sub", "printable"),
    "scopes that are a number": ({"scope": 3}, "scope", "list of texts"),
    "groups that are objects": ({"groups": [{"name": "hr"}]}, "groups", "list of texts"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_claims_that_are_wrong(issued: Rig, module_issuer: Issuer, name: str) -> None:
    changes, field, says = WRONG[name]
    if changes.get("exp"):
        changes = {"exp": int(time.time()) - 120}
    refused(issued, module_issuer.token(**changes), field, says)


def test_a_subject_that_is_no_text(issued: Rig, module_issuer: Issuer) -> None:
    private: Any = module_issuer.keys["first"][1]
    claims = part(module_issuer.claims(sub=7))
    signed = f"{part({'alg': 'RS256', 'kid': 'first'})}.{claims}"
    signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(
        signed.encode(), private
    )
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    refused(issued, f"{signed}.{text}", "sub", "must be a text")


def test_clocks_may_differ_a_little(issued: Rig, module_issuer: Issuer) -> None:
    """By oidc_clock_skew_s, 30 s here."""
    now = int(time.time())
    lates: list[dict[str, Any]] = [{"exp": now - 10}, {"nbf": now + 10}, {"iat": now + 10}]
    for late in lates:
        assert asked(issued, module_issuer.token(**late)).status_code == 200
    refused(issued, module_issuer.token(exp=now - 31), "exp", "expired")
    refused(issued, module_issuer.token(nbf=now + 90), "nbf", "clock")


@pytest.mark.parametrize("name", ["none", "None", "nOnE", ""])
def test_an_unsigned_token(issued: Rig, module_issuer: Issuer, name: str) -> None:
    for signature in ("", "AAAA"):
        header = part({"alg": name, "kid": "first", "typ": "JWT"})
        token = f"{header}.{part(module_issuer.claims())}.{signature}"
        refused(issued, token, "alg", "not taken")


def test_no_algorithm_at_all(issued: Rig, module_issuer: Issuer) -> None:
    refused(issued, f"{part({'kid': 'first'})}.{part(module_issuer.claims())}.AAAA", "alg", "")


@pytest.mark.parametrize("form", ["PEM", "DER", "modulus"])
def test_a_public_key_used_as_a_secret(issued: Rig, module_issuer: Issuer, form: str) -> None:
    """HS/RS confusion: signed by HMAC with what everybody knows of the RSA key."""
    public: Any = module_issuer.keys["first"][1].public_key()
    secret = {
        "PEM": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "DER": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "modulus": module_issuer.jwk("first")["n"].encode(),
    }[form]
    signed = f"{part({'alg': 'HS256', 'kid': 'first'})}.{part(module_issuer.claims())}"
    digest = hmac.digest(secret, signed.encode(), hashlib.sha256)
    token = f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
    assert jwt.api_jws.PyJWS()._load(token), "well formed: only the algorithm is wrong"
    refused(issued, token, "alg", "not taken")


def test_an_algorithm_that_the_key_is_not_for(issued: Rig, module_issuer: Issuer) -> None:
    """RSA, and on the list, but the issuer says that this key is for RS256."""
    private: Any = module_issuer.keys["first"][1]
    token = jwt.encode(module_issuer.claims(), private, "PS256", headers={"kid": "first"})
    refused(issued, token, "kid", "for PS256")
    not_listed = jwt.encode(module_issuer.claims(), private, "RS512", headers={"kid": "first"})
    refused(issued, not_listed, "alg", "RS512")


def test_a_payload_that_was_changed(issued: Rig, module_issuer: Issuer) -> None:
    header, payload, signature = module_issuer.token().split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    other = part({**claims, "sub": "root", "groups": ["board"]})
    refused(issued, f"{header}.{other}.{signature}", "signature", "changed")
    last = "A" if signature[-2] != "A" else "B"
    refused(issued, f"{header}.{payload}.{signature[:-2]}{last}{signature[-1]}", "signature", "")
    stranger = Issuer()
    stranger.name = module_issuer.name
    stranger._server.server_close()
    refused(issued, stranger.token(), "signature", "somebody else")


@pytest.mark.parametrize("token", ["a.b.c", "..", "e30.e30.e30", "eyJhbGciOiJSUzI1NiJ9.!.AAAA",
                                   f"{'a' * 17_000}.b.c"])  # fmt: skip
def test_what_is_no_token(issued: Rig, token: str) -> None:
    reply = asked(issued, token)
    assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_token"


def test_keys_that_a_token_brings_along_count_nothing(issued: Rig, module_issuer: Issuer) -> None:
    """`jwk`, `jku` and `x5c` in the header name the attacker's key."""
    stranger = Issuer()
    stranger._server.server_close()
    headers = {"kid": "mine", "jwk": stranger.jwk("first"), "jku": "http://127.0.0.1:9/jwks"}
    private: Any = stranger.keys["first"][1]
    token = jwt.encode(module_issuer.claims(), private, "RS256", headers=headers)
    refused(issued, token, "kid", "no key 'mine'")


@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA"])
def test_keys_of_other_kinds(issuer: Issuer, serving: Open, algorithm: str) -> None:
    issuer.add("curve", algorithm)
    rig = serving()
    assert asked(rig, issuer.token("curve")).status_code == 200
    assert asked(rig, issuer.token("first")).status_code == 200
    private: Any = issuer.keys["curve"][1]
    nameless = jwt.encode(issuer.claims(), private, algorithm)
    assert asked(rig, nameless).status_code == 200, "the only one of its kind"


def test_an_unknown_key_and_new_ones(issuer: Issuer, serving: Open) -> None:
    """Rotation: an unknown key asks for the keys again; a withdrawn one is refused then."""
    rig = serving()
    old = issuer.token()
    assert asked(rig, old).status_code == 200 and issuer.reads == 1
    assert asked(rig, old).status_code == 200 and issuer.reads == 1
    issuer.add("second")
    assert asked(rig, issuer.token("second")).status_code == 200 and issuer.reads == 2
    assert asked(rig, old).status_code == 200, "both are published"
    del issuer.keys["first"]
    issuer.add("third")
    assert asked(rig, issuer.token("third")).status_code == 200
    refused(rig, old, "kid", "no key 'first'")


def test_keys_are_read_again_by_themselves(issuer: Issuer, serving: Open) -> None:
    """So a withdrawn key is refused without an unknown one; nobody waits for it."""
    rig = serving(oidc_refresh_s=0.05)
    old = issuer.token()
    assert asked(rig, old).status_code == 200
    issuer.add("second")
    del issuer.keys["first"]
    until(lambda: asked(rig, old).status_code == 401, "the withdrawn key is refused")


def test_made_up_names_of_keys_do_not_wear_the_issuer_out(issuer: Issuer, serving: Open) -> None:
    rig = serving(oidc_refetch_s=3600.0)
    assert asked(rig, issuer.token()).status_code == 200
    for number in range(20):
        private: Any = issuer.keys["first"][1]
        made_up = jwt.encode(issuer.claims(), private, "RS256", headers={"kid": f"k{number}"})
        assert asked(rig, made_up).status_code == 401
    assert issuer.reads == 1


def test_an_issuer_that_is_away(issuer: Issuer, serving: Open) -> None:
    """Known keys hold; an unknown one may be new, so that is a 503."""
    rig = serving(oidc_refresh_s=0.01)
    assert asked(rig, issuer.token()).status_code == 200
    issuer.down = True
    before = issuer.requests
    while issuer.requests == before:  # it cannot be read, which nobody is told
        assert asked(rig, issuer.token()).status_code == 200
    issuer.add("second")
    unknown = asked(rig, issuer.token("second"))
    assert unknown.status_code == 503 and "retry-after" in unknown.headers
    assert unknown.json()["error"]["code"] == "identity_unavailable"
    issuer.down = False
    until(lambda: asked(rig, issuer.token("second")).status_code == 200, "back")


def test_keys_that_are_too_old_open_nothing(
    issuer: Issuer, serving: Open, create: Callable[..., str]
) -> None:
    key = create()
    issuer.down = True
    rig = serving()
    for _ in range(3):
        reply = asked(rig, issuer.token())
        assert reply.status_code == 503 and "API keys go on working" in reply.text
    assert asked(rig, key).status_code == 200
    issuer.down = False
    until(lambda: asked(rig, issuer.token()).status_code == 200, "read")


def test_known_keys_hold_for_a_while_only(issuer: Issuer, serving: Open) -> None:
    rig = serving(oidc_refresh_s=0.01, oidc_max_age_s=2.0)
    # On a busy machine reading them may take as long as they hold.
    until(lambda: asked(rig, issuer.token()).status_code == 200, "read")
    issuer.down = True
    until(lambda: asked(rig, issuer.token()).status_code == 503, "too old")
    assert asked(rig, "a.b.c").status_code == 401, "what is no token needs no key"


def test_keys_from_a_file(issuer: Issuer, serving: Open, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(issuer.published()))
    rig = serving(oidc_issuer="accounts.example", oidc_jwks=str(file))
    issuer.name = "accounts.example"
    assert asked(rig, issuer.token()).status_code == 200
    issuer.add("second")
    file.write_text(json.dumps(issuer.published()))
    assert asked(rig, issuer.token("second")).status_code == 200
    assert issuer.reads == 0


@pytest.mark.parametrize("content", ["[]", "{}", '{"keys": []}', "<html>", '{"keys": {}}'])
def test_files_that_hold_no_keys(
    issuer: Issuer, serving: Open, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(content)
    rig = serving(oidc_jwks=str(file))
    assert asked(rig, issuer.token()).status_code == 503


def test_secrets_and_keys_for_encryption_among_the_published_ones_are_not_used(
    issuer: Issuer, serving: Open, tmp_path: Path
) -> None:
    secret = base64.urlsafe_b64encode(b"s" * 32).rstrip(b"=").decode()
    file = tmp_path / "jwks.json"
    keys = [{"kty": "oct", "k": secret, "kid": "first"}, {**issuer.jwk("first"), "use": "enc"}]
    file.write_text(json.dumps({"keys": keys}))
    rig = serving(oidc_jwks=str(file))
    refused(rig, issuer.token(), "kid", "no key 'first'")
    hmac_token = jwt.encode(issuer.claims(), "s" * 32, "HS256", headers={"kid": "first"})
    refused(rig, hmac_token, "alg", "not taken")


def test_an_issuer_that_describes_another(issuer: Issuer, serving: Open) -> None:
    token = issuer.token()
    issuer.name = "https://login.example"
    rig = serving(oidc_issuer=issuer.url)
    assert asked(rig, token).status_code == 503


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"oidc_issuer": "https://login.example"}, "oidc_audience"),
        ({"oidc_issuer": "http://login.example", "oidc_audience": "a"}, "in between"),
        ({"oidc_issuer": "login.example", "oidc_audience": "a"}, "oidc_jwks"),
        ({"oidc_algorithms": "HS256"}, "HS256"),
        ({"oidc_algorithms": "RS256,none"}, "none"),
        ({"oidc_scopes": "boss=everything"}, "boss=everything"),
        ({"oidc_quotas": "answers=claim"}, "answers=claim"),
    ],
)
def test_settings_that_would_open_the_service(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        load(**settings)


def test_scopes_come_from_claims(issuer: Issuer, serving: Open) -> None:
    rig = serving(oidc_scopes_claim="realm_access.roles",
                  oidc_scopes="rag-user=generate, rag-ops=metrics, *=ingest")  # fmt: skip
    user = issuer.token(realm_access={"roles": ["rag-user", "admin"]})
    assert asked(rig, user).status_code == 200
    lacks = asked(rig, user, "/admin/documents")
    assert lacks.status_code == 403 and "token of anna lacks the scope 'admin'" in lacks.text
    assert 'error="insufficient_scope"' in lacks.headers["www-authenticate"]
    assert asked(rig, user, "/status").status_code == 403
    assert asked(rig, user, "/admin/jobs").status_code == 200
    nothing = issuer.token()
    assert asked(rig, nothing).status_code == 403
    assert asked(rig, nothing, "/admin/jobs").status_code == 200
    named = "https://example.com/roles"
    claims: dict[str, Any] = {named: ["rag-ops"]}
    other = issuer.token(**claims)
    assert asked(rig, other, "/status").status_code == 403


def test_a_claim_with_dots_in_its_name_and_one_text_of_scopes(
    issuer: Issuer, serving: Open
) -> None:
    named = "https://example.com/scopes"
    rig = serving(oidc_scopes_claim=named)
    assert asked(rig, issuer.token(**{named: "metrics generate"})).status_code == 200
    assert asked(rig, issuer.token(scope="generate")).status_code == 403


def test_the_tenant_comes_from_a_claim(issuer: Issuer, serving: Open) -> None:
    rig = serving(oidc_tenant_claim="org.id")
    worker = rig.worker
    assert isinstance(worker, FakeWorker)
    body = {"question": "x", "top_k": 0}
    for tenant in ("red", "blue"):
        token = issuer.token(org={"id": tenant})
        assert rig.http.post("/v1/rag/generate", json=body, headers=bearer(token)).is_success
    assert [m.tenant for m in worker.seen(Generate) if isinstance(m, Generate)] == ["red", "blue"]
    wrong: dict[str, Any]
    for wrong in ({}, {"org": "red"}, {"org": {"id": ""}}, {"org": {"id": None}}):
        refused(rig, issuer.token(**wrong), "org.id", "lacks the claim 'org.id'")
    for wrong in ({"org": {"id": 5}}, {"org": {"id": "r\n"}}, {"org": {"id": "r" * 65}}):
        refused(rig, issuer.token(**wrong), "org.id", "printable")


def test_quotas_come_from_claims(issuer: Issuer, serving: Open) -> None:
    rig = serving(oidc_quotas="requests_per_minute=rpm,documents=docs")
    body = {"question": "x", "top_k": 0, "max_tokens": 1}
    anna, ben = (bearer(issuer.token(sub=who, rpm=2)) for who in ("anna", "ben"))
    codes = [rig.http.post("/v1/rag/generate", json=body, headers=anna).status_code
             for _ in range(3)]  # fmt: skip
    assert codes == [200, 200, 429]
    again = bearer(issuer.token(sub="anna", rpm=2, jti="another token"))
    assert rig.http.post("/v1/rag/generate", json=body, headers=again).status_code == 429
    assert rig.http.post("/v1/rag/generate", json=body, headers=ben).status_code == 200
    few = bearer(issuer.token(docs=1))
    documents = {"documents": [{"doc_id": name, "text": "x"} for name in "ab"]}
    too_many = rig.http.post("/admin/precompute", json=documents, headers=few)
    assert too_many.status_code == 429 and too_many.json()["field"] == "documents"
    for wrong in ("2", 0, -1, True, 1.5, 2**63):
        refused(rig, issuer.token(rpm=wrong), "rpm", "whole number")


@pytest.mark.parametrize("groups", [["*"], ["hr", "*"], ["CN=hr,OU=all"], "*", [""], ["a" * 65]])
def test_no_name_of_a_group_stands_for_all(issuer: Issuer, serving: Open, groups: Any) -> None:
    rig = serving(oidc_all_groups="everything")
    admin = bearer(issuer.token(groups=["everything"]))
    sent = {"documents": [{"doc_id": "d", "text": "of legal", "readers": ["legal"]}]}
    job = rig.http.post("/admin/precompute", json=sent, headers=admin).json()["job_id"]
    done = lambda: rig.http.get(f"/admin/jobs/{job}", headers=admin).json()["state"]  # noqa: E731
    until(lambda: done() == "succeeded", "ingested")
    assert rig.http.get("/admin/documents/d", headers=admin).status_code == 200
    for claimed in (groups, None):
        token = issuer.token(groups=claimed)
        assert asked(rig, token, "/admin/documents/d").status_code == 404


def test_anonymous_senders_beside_tokens(issuer: Issuer, serving: Open) -> None:
    """Where they are allowed, a token that is not valid is still refused."""
    rig = serving(allow_anonymous=True)
    assert rig.http.get("/v1/models").status_code == 200
    assert asked(rig, "sk-anything").status_code == 200
    refused(rig, issuer.token(aud="shop"), "aud", "another service")
