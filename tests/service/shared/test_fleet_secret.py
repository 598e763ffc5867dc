"""Keys from one secret: the same on both sides, different for each purpose, never short."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import zmq

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import Settings, load
from kvstitch.service.shared import fleet_secret

SECRET = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2


def test_derivation_is_hkdf_of_rfc_5869() -> None:
    """Against another implementation: both sides of a fleet may run different releases for years,
    so the derivation may never change."""
    hashes = pytest.importorskip("cryptography.hazmat.primitives.hashes")
    hkdf = pytest.importorskip("cryptography.hazmat.primitives.kdf.hkdf")
    for purpose in ("worker", "gateway", "tenants"):
        made = hkdf.HKDF(hashes.SHA256(), 32, b"kvstitch fleet 1", purpose.encode())
        assert fleet_secret.derive(SECRET, purpose) == made.derive(SECRET.encode())
    assert hashlib.sha256(fleet_secret.derive(SECRET, "worker")).hexdigest()[:16] == PINNED


PINNED = "01c93f8e30b3e355"


def test_sides_and_secrets_have_keys_of_their_own() -> None:
    keys = [
        fleet_secret.curve_keys(secret, side)
        for secret in (SECRET, OTHER)
        for side in ("worker", "gateway")
    ]
    assert len({key.public for key in keys}) == len({key.secret for key in keys}) == 4
    assert all(zmq.curve_public(key.secret) == key.public for key in keys)
    assert keys[0].secret.decode() not in repr(keys[0])
    assert len(bytes.fromhex(fleet_secret.tenants_secret(SECRET))) == 32


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:5700", "tcp://10.0.0.1:5700", "tcp://[::]:5700", "tcp://host:1"]
)
def test_what_others_reach_needs_a_secret(address: str) -> None:
    with pytest.raises(InvalidSetting, match="set KVSTITCH_FLEET_SECRET"):
        fleet_secret.require_secret(address, "")
    with pytest.raises(InvalidSetting, match="at least 32 characters"):
        fleet_secret.require_secret(address, "short")
    fleet_secret.require_secret(address, SECRET)
    assert fleet_secret.is_encrypted(address, SECRET)


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:5700", "tcp://[::1]:5700", "tcp://localhost:1", "ipc:///tmp/x"]
)
def test_what_nobody_else_reaches_needs_none(address: str) -> None:
    fleet_secret.require_secret(address, "")
    assert not fleet_secret.is_encrypted(address, "")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"worker_addresses": "tcp://10.0.0.1:5700"}, "set KVSTITCH_FLEET_SECRET"),
        ({"worker_addresses": "dns://workers:5700"}, "set KVSTITCH_FLEET_SECRET"),
        ({"worker_addresses": "tcp://127.0.0.1"}, "has no port"),
        ({"worker_addresses": "http://127.0.0.1:1"}, "must be tcp://, dns://"),
        ({"worker_addresses": "dns://a:1,tcp://b:1"}, "must stand alone"),
        ({"worker_addresses": "tcp://127.0.0.1:1", "workers": 2}, "KVSTITCH_WORKERS"),
        ({"fleet_secret": "tell-nobody"}, "at least 32 characters"),
    ],
)
def test_settings_say_what_is_wrong(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says) as error:
        load(**wrong)
    assert "tell-nobody" not in error.value.message


def test_tenants_have_the_fleets_secret_unless_they_have_their_own(tmp_path: Path) -> None:
    settings: Settings = load(fleet_secret=SECRET)
    derived = fleet_secret.tenants_secret(SECRET)
    made = settings.worker(tmp_path, "ipc://x", tenants_secret="ab", shared=True)
    assert made.tenants_secret == derived and made.fleet_secret == SECRET and made.shared
    own: Settings = load(fleet_secret=SECRET, tenant_secret="cd" * 16)
    assert own.worker(tmp_path, "ipc://x").tenants_secret == "cd" * 16
    assert SECRET not in repr(settings)
