"""Keys of tenants: wrapped, rotated, deleted, and what is said of a wrong master key."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from pathlib import Path

import pytest

from kvstitch.encryption.keyring import KeyMissing, MasterKeyError
from kvstitch.service import cli
from kvstitch.service.errors import InvalidSetting
from kvstitch.service.gateway.encryption.master_key import LocalMasterKey, master_key, parse_key
from kvstitch.service.gateway.encryption.tenant_keys import (
    FILE,
    TenantKeys,
    keys_database,
    require_no_keys,
    tenant_keys_of,
)
from kvstitch.service.settings import Settings, load

KMS = """
import base64, json, sys
sent = json.load(sys.stdin)
key, context = base64.b64decode(sent["key"]), json.dumps(sent["context"], sort_keys=True).encode()
if sys.argv[1] == "wrap":
    out = b"%d:" % len(context) + context + key[::-1]
else:
    length, _, rest = key.partition(b":")
    if rest[: int(length)] != context:
        sys.exit("the KMS refuses: another context")
    out = rest[int(length) :][::-1]
print(json.dumps({"key": base64.b64encode(out).decode()}))
"""


def settings_of(folder: Path, **more: object) -> Settings:
    return load(data_dir=folder, **more)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "master.key"
    path.write_text(os.urandom(32).hex() + "\n")
    return path


def opened(folder: Path, **more: object) -> TenantKeys:
    keys = tenant_keys_of(settings_of(folder, **more), None)
    assert keys is not None
    keys.start()
    return keys


def test_keys_are_made_once_and_come_back(tmp_path: Path, key_file: Path) -> None:
    keys = opened(tmp_path, encryption_key_file=key_file)
    sealing = keys.ring.current("acme")
    assert keys.ring.current("acme") == sealing != keys.ring.current("other")
    keys.close()
    raw = b"".join(path.read_bytes() for path in tmp_path.glob(f"{FILE}*"))
    assert sealing.id.hex().encode() in raw
    assert sealing.secret not in raw and sealing.secret.hex().encode() not in raw
    again = opened(tmp_path, encryption_key_file=key_file)
    assert again.ring.current("acme") == sealing
    assert [tenant for tenant, _, _ in again.rows()] == ["acme", "other"]
    again.close()


def test_two_gateways_make_one_key(tmp_path: Path, key_file: Path) -> None:
    one, two = (opened(tmp_path, encryption_key_file=key_file) for _ in range(2))
    assert one.ring.current("acme") == two.ring.current("acme")
    assert len(one.rows()) == 1
    one.close()
    two.close()


def test_a_wrong_or_missing_master_key_is_said_at_the_start(tmp_path: Path, key_file: Path) -> None:
    keys = opened(tmp_path, encryption_key_file=key_file)
    keys.ring.current("acme")
    keys.close()
    wrong = tenant_keys_of(settings_of(tmp_path, encryption_key=os.urandom(32).hex()), None)
    assert wrong is not None
    with pytest.raises(InvalidSetting, match="another master key"):
        wrong.start()
    wrong.close()
    with pytest.raises(InvalidSetting, match="no master key is set"):
        require_no_keys(settings_of(tmp_path), None)
    require_no_keys(settings_of(tmp_path / "empty"), None)
    for text, said in (("abc", "holds no key"), ("\xff", "cannot be read")):
        key_file.write_bytes(text.encode("latin-1"))
        with pytest.raises(InvalidSetting, match=said):
            tenant_keys_of(settings_of(tmp_path, encryption_key_file=key_file), None)
    with pytest.raises(InvalidSetting, match="cannot be read"):
        tenant_keys_of(settings_of(tmp_path, encryption_key_file=tmp_path / "none"), None)


def test_documents_that_an_earlier_version_has_sealed_are_refused(
    tmp_path: Path, key_file: Path
) -> None:
    """It made a second key of each tenant, for the words of its documents."""
    keys = opened(tmp_path, encryption_key_file=key_file)
    keys.ring.current("acme")
    keys.rotate("acme")
    keys.close()
    with sqlite3.connect(tmp_path / FILE) as raw:
        raw.execute("UPDATE tenant_keys SET purpose = 'words' WHERE number = 2")
    raw.close()
    again = tenant_keys_of(settings_of(tmp_path, encryption_key_file=key_file), None)
    assert again is not None
    for start in (again.start, lambda: require_no_keys(settings_of(tmp_path), None)):
        with pytest.raises(InvalidSetting, match="ingest them into an empty data folder"):
            start()
    again.close()


def test_a_wrapped_key_is_its_tenants(tmp_path: Path, key_file: Path) -> None:
    keys = opened(tmp_path, encryption_key_file=key_file)
    for tenant in ("acme", "other"):
        keys.ring.current(tenant)
    keys.close()
    with sqlite3.connect(tmp_path / FILE) as raw:
        raw.execute("UPDATE tenant_keys SET tenant = 'acme' WHERE tenant = 'other'")
    raw.close()
    swapped = tenant_keys_of(settings_of(tmp_path, encryption_key_file=key_file), None)
    assert swapped is not None
    with pytest.raises(InvalidSetting, match="damaged"):
        swapped.start()
    swapped.close()


def test_rotation_deletion_and_another_gateway(tmp_path: Path, key_file: Path) -> None:
    keys, other = (opened(tmp_path, encryption_key_file=key_file) for _ in range(2))
    first = keys.ring.current("acme")
    second = keys.rotate("acme")
    assert keys.ring.current("acme") == second and keys.ring.find(first.id) == first
    assert other.ring.find(second.id) == second  # asked for, because it was not known
    assert other.ring.current("acme") == second
    gone = keys.delete("acme")
    assert gone == [first.id, second.id]
    assert other.refresh() and not other.refresh()
    for ring in (keys.ring, other.ring):
        with pytest.raises(KeyMissing):
            ring.find(first.id)
    raw = b"".join(path.read_bytes() for path in tmp_path.glob(f"{FILE}*"))
    assert first.id.hex().encode() not in raw  # overwritten, not only unlinked
    assert keys.ring.current("acme").id not in gone
    keys.close()
    other.close()


def test_rewrap_by_the_command_line(
    tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    keys = opened(tmp_path, encryption_key_file=key_file)
    sealing = keys.ring.current("acme")
    keys.close()
    new = tmp_path / "new.key"
    assert cli.main(["encryption", "new-master", str(new)]) == 0
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    assert cli.main(["encryption", "new-master", str(new)]) != 0  # it is never overwritten
    monkeypatch.setenv("KVSTITCH_ENCRYPTION_KEY_FILE", str(key_file))
    command = ["encryption", "rewrap", "--new-key-file", str(new), "--data-dir", str(tmp_path)]
    assert cli.main(command) == 0
    assert cli.main(["encryption", "delete", "--tenant", "acme", "--data-dir", str(tmp_path)]) != 0
    assert "--yes" in capsys.readouterr().err
    old = tenant_keys_of(settings_of(tmp_path), None)
    assert old is not None
    with pytest.raises(InvalidSetting, match="another master key"):
        old.start()
    old.close()
    monkeypatch.delenv("KVSTITCH_ENCRYPTION_KEY_FILE")
    later = opened(tmp_path, encryption_key_file=new)
    assert later.ring.current("acme") == sealing
    later.close()


def test_a_kms_behind_a_command(tmp_path: Path) -> None:
    script = tmp_path / "kms.py"
    script.write_text(KMS)
    command = f"{sys.executable} {script}"
    keys = opened(tmp_path, encryption_kms=command)
    sealing = keys.ring.current("acme")
    keys.close()
    again = opened(tmp_path, encryption_kms=command)
    assert again.ring.find(sealing.id) == sealing
    again.close()
    with sqlite3.connect(tmp_path / FILE) as raw:
        raw.execute("UPDATE tenant_keys SET tenant = 'thief'")
    raw.close()
    for kms, said in ((command, "refuses: another context"), ("/no/such/kms", "No such file")):
        refused = tenant_keys_of(settings_of(tmp_path, encryption_kms=kms), None)
        assert refused is not None
        with pytest.raises(InvalidSetting, match=said):
            refused.start()
        refused.close()


def test_a_kms_that_is_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_kms.py").write_text(
        "class Kms:\n"
        "    def wrap(self, secret, context):\n        return secret[::-1]\n"
        "    def unwrap(self, wrapped, context):\n        return wrapped[::-1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    keys = opened(tmp_path, encryption_kms="python:own_kms:Kms")
    sealing = keys.ring.current("acme")
    keys.close()
    again = opened(tmp_path, encryption_kms="python:own_kms:Kms")
    assert again.ring.find(sealing.id) == sealing
    again.close()
    with pytest.raises(MasterKeyError, match="names no object"):
        master_key(settings_of(tmp_path, encryption_kms="python:own_kms:Other"))


def test_settings(tmp_path: Path, key_file: Path) -> None:
    with pytest.raises(InvalidSetting, match="one of encryption_key_file"):
        settings_of(tmp_path, encryption_key_file=key_file, encryption_kms="x")
    with pytest.raises(MasterKeyError) as error:
        parse_key("not a key but perhaps a secret", "encryption_key")
    assert "perhaps" not in str(error.value)
    assert not settings_of(tmp_path).encrypted
    assert LocalMasterKey(bytes(32)) is not None and keys_database(tmp_path).shared is False
