"""One ring of the keys that several gateways send, each as far as it knows."""

from __future__ import annotations

from kvstitch.encryption.keyring import DataKey, Keyring
from kvstitch.service.worker.server.leases import GatewayKeys

A, B = b"gateway a", b"gateway b"


def key(owner: str, number: int) -> DataKey:
    return DataKey(bytes([number]) * 16, owner, bytes([number]) * 32)


OLD, NEW, ROTATED = key("old", 1), key("new", 2), key("old", 3)


def held(ring: Keyring) -> set[str]:
    return {each.owner for each in ring.all()}


def test_a_gateway_that_does_not_know_a_new_key_yet_takes_nothing_away() -> None:
    ring = Keyring(active=False)
    keys = GatewayKeys(ring)
    assert keys.take(A, [OLD, NEW], alone=False)
    assert not keys.take(B, [OLD], alone=False)
    assert ring.find(NEW.id) == NEW and ring.active


def test_what_one_sends_no_more_is_gone_whatever_others_still_send() -> None:
    ring = Keyring()
    keys = GatewayKeys(ring)
    keys.take(A, [OLD, NEW], alone=False)
    keys.take(B, [OLD, NEW], alone=False)
    assert keys.take(A, [NEW], alone=False) and held(ring) == {"new"}
    assert not keys.take(B, [OLD, NEW], alone=False) and held(ring) == {"new"}


def test_the_latest_key_of_a_tenant_seals_whoever_was_last_to_send() -> None:
    for order in ((A, B), (B, A)):
        ring = Keyring()
        keys = GatewayKeys(ring)
        for gateway in order:
            keys.take(gateway, [OLD, ROTATED] if gateway == A else [OLD], alone=False)
        assert ring.current("old") == ROTATED


def test_a_gateway_that_is_gone_keeps_no_key_alive_and_one_that_comes_back_is_believed() -> None:
    ring = Keyring()
    keys = GatewayKeys(ring)
    keys.take(A, [OLD, NEW], alone=False)
    assert not keys.silent(A) and held(ring) == {"old", "new"}, "there is no other"
    keys.take(B, [NEW], alone=False)
    assert keys.silent(A) and held(ring) == {"new"}
    assert keys.heard(A) and held(ring) == {"old", "new"}
    assert not keys.heard(A)


def test_the_only_gateway_replaces_what_it_sent_under_another_name() -> None:
    ring = Keyring()
    keys = GatewayKeys(ring)
    keys.take(A, [OLD, NEW], alone=True)
    assert keys.take(B, [NEW], alone=True) and held(ring) == {"new"}
