"""What wraps the keys of tenants: a master key of our own, or a KMS behind a command or an object.

A wrapped key is bound to its tenant and id, so that one cannot be put in another's place. A KMS
gets these as its context, and should bind them likewise (AWS: EncryptionContext).
"""

import binascii
import hashlib
import importlib
import json
import shlex
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from kvstitch.encryption.aead import KEY_BYTES, open_sealed, place, seal
from kvstitch.encryption.keyring import (
    KEY_ID_BYTES,
    DataKey,
    EncryptionError,
    KeyMissing,
    Keyring,
    MasterKeyError,
)
from kvstitch.service.settings import Settings

KMS_TIMEOUT_S = 30.0
PYTHON = "python:"
Context = Mapping[str, str]
"""Of a wrapped key: its tenant and its id."""


class MasterKey(Protocol):
    """Wraps and unwraps keys of 32 bytes."""

    def wrap(self, secret: bytes, context: Context) -> bytes:
        """Return the key, wrapped for its context."""

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Return the key."""


class LocalMasterKey:
    """A master key of 32 bytes."""

    def __init__(self, secret: bytes) -> None:
        # By its id a wrapped key tells which master key it needs, and nothing about that key.
        own_id = hashlib.sha256(b"kvstitch master key\0" + secret).digest()[:KEY_ID_BYTES]
        self._key = DataKey(own_id, "", secret)
        self._ring = Keyring([self._key])

    def wrap(self, secret: bytes, context: Context) -> bytes:
        return seal(self._key, secret, _place(context))

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        try:
            return open_sealed(self._ring, wrapped, _place(context))
        except KeyMissing as error:
            raise MasterKeyError(
                "the stored keys were wrapped by another master key than the one that is set: set "
                "that one (KVSTITCH_ENCRYPTION_KEY_FILE)"
            ) from error
        except EncryptionError as error:
            raise MasterKeyError(f"a stored key of {context} is damaged: {error}") from error


class CommandMasterKey:
    """A command that talks to a KMS."""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)

    def wrap(self, secret: bytes, context: Context) -> bytes:
        return self._call("wrap", secret, context)

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        return self._call("unwrap", wrapped, context)

    def _call(self, action: str, key: bytes, context: Context) -> bytes:
        sent = json.dumps({"key": b64encode(key).decode(), "context": dict(context)})
        try:
            ended = subprocess.run(
                [*self._command, action],
                input=sent.encode(),
                capture_output=True,
                timeout=KMS_TIMEOUT_S,
                check=False,
            )
            if ended.returncode == 0:
                return b64decode(json.loads(ended.stdout)["key"], validate=True)
            said = ended.stderr.decode(errors="replace").strip().splitlines()
            why = said[-1] if said else f"exit code {ended.returncode}"
        except (OSError, subprocess.SubprocessError) as error:
            why = str(error)
        except (ValueError, LookupError, TypeError):
            why = 'it must answer {"key": base64} on stdout'
        raise MasterKeyError(f"encryption_kms, {self._command[0]} {action}: {why}")


class ObjectMasterKey:
    """An object with the methods of `MasterKey` that the operator has written."""

    def __init__(self, path: str) -> None:
        module, _, name = path.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise MasterKeyError(
                f"encryption_kms names no object module:object in {path!r}: {error}"
            ) from error
        self._object: MasterKey = found() if callable(found) else found

    def wrap(self, secret: bytes, context: Context) -> bytes:
        try:
            return bytes(self._object.wrap(secret, context))
        except Exception as error:
            raise MasterKeyError(f"encryption_kms cannot wrap a key: {error}") from error

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        try:
            return bytes(self._object.unwrap(wrapped, context))
        except Exception as error:
            raise MasterKeyError(f"encryption_kms cannot unwrap a key: {error}") from error


def master_key(settings: Settings) -> MasterKey | None:
    """Return the master key that the settings name; None: nothing is encrypted. Raises
    MasterKeyError: it cannot be read, or is none."""
    if settings.encryption_kms.startswith(PYTHON):
        return ObjectMasterKey(settings.encryption_kms.removeprefix(PYTHON))
    if settings.encryption_kms:
        return CommandMasterKey(settings.encryption_kms)
    if settings.encryption_key_file is not None:
        return from_file(settings.encryption_key_file)
    if settings.encryption_key:
        return LocalMasterKey(parse_key(settings.encryption_key, "encryption_key"))
    return None


def from_file(path: Path) -> LocalMasterKey:
    """Return the master key that a file holds."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise MasterKeyError(f"encryption_key_file {path} cannot be read: {error}") from error
    return LocalMasterKey(parse_key(text, f"encryption_key_file {path}"))


def parse_key(text: str, name: str) -> bytes:
    """Return the 32 bytes that a text gives in hex or base64."""
    text = text.strip()
    for decode in (bytes.fromhex, lambda t: b64decode(t, validate=True)):
        try:
            key = decode(text)
        except (ValueError, binascii.Error):
            continue
        if len(key) == KEY_BYTES:
            return key
    raise MasterKeyError(
        f"{name} holds no key of {KEY_BYTES} bytes in hex or base64: make one with "
        "`kvstitch encryption new-master`"
    )


def _place(context: Context) -> bytes:
    return place("tenant key", *(part for item in sorted(context.items()) for part in item))
