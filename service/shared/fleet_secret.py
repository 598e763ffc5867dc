"""What gateways and workers that meet over TCP prove to each other, derived from one secret.

    KVSTITCH_FLEET_SECRET ── HKDF-SHA256 ──┬── "worker"   CURVE key pair of every worker
                                           ├── "gateway"  CURVE key pair of every gateway
                                           └── "tenants"  keys the chunks of named tenants

Both sides derive both pairs. So a gateway knows that it talks to a worker of its fleet, a worker
lets only gateways of its fleet in, and everything between them is encrypted.

Source:
    RFC 5869 (HKDF); ZeroMQ RFC 26 (CurveZMQ).
"""

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass, field
from typing import Literal

from kvstitch.service.errors import InvalidSetting

MIN_SECRET_CHARS = 32  # as `openssl rand -hex 16` writes them
_SALT = b"kvstitch fleet 1"

Side = Literal["worker", "gateway"]


@dataclass(frozen=True)
class CurveKeys:
    """A CURVE key pair in Z85, as ZeroMQ takes it."""

    public: bytes
    secret: bytes = field(repr=False)


def check(secret: str) -> None:
    """Raise InvalidSetting if a secret is too short to be one."""
    if len(secret) < MIN_SECRET_CHARS:
        raise InvalidSetting(
            f"KVSTITCH_FLEET_SECRET must have at least {MIN_SECRET_CHARS} characters: take what "
            "`openssl rand -hex 32` prints, the same for all gateways and workers"
        )


def curve_keys(secret: str, side: Side) -> CurveKeys:
    """Return the key pair of a side."""
    # Here, because settings import this module in processes that have no sockets.
    import zmq
    from zmq.utils import z85

    check(secret)
    private = z85.encode(derive(secret, side))
    return CurveKeys(zmq.curve_public(private), private)


def tenants_secret(secret: str) -> str:
    """Return what keys the chunks of named tenants, in hex."""
    check(secret)
    return derive(secret, "tenants").hex()


def derive(secret: str, purpose: str) -> bytes:
    """Return 32 bytes for one purpose, by HKDF-SHA256."""
    extracted = hmac.new(_SALT, secret.encode(), hashlib.sha256).digest()
    return hmac.new(extracted, purpose.encode() + b"\x01", hashlib.sha256).digest()


def is_encrypted(address: str, secret: str) -> bool:
    """Return whether a connection uses CURVE: every one over TCP, where there is a secret."""
    return bool(secret) and address.startswith("tcp://")


def require_secret(address: str, secret: str) -> None:
    """Raise InvalidSetting if others can reach an address, and no secret protects it."""
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if secret:
        check(secret)
    elif address.startswith("tcp://") and not is_loopback(host):
        raise InvalidSetting(
            f"{address} can be reached from other machines: set KVSTITCH_FLEET_SECRET to the same "
            f"{MIN_SECRET_CHARS} or more characters for all gateways and workers, such as what "
            "`openssl rand -hex 32` prints, or take a loopback address"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
