"""A fingerprint of a model folder: over everything that a chunk's KV depends on.

It covers weights, config with RoPE, tokenizer, chat template, and how weights are quantised, so a
cache or a calibration made by another revision of the model is never used.
"""

import hashlib
from pathlib import Path
from typing import Any

CALIBRATION_FILE = "calibration.json"
"""In a model's folder or in the data folder: see `kvstitch.service.settings.calibration`."""

# Files up to this size are hashed whole. Of larger ones, the size and evenly spaced samples are
# hashed, the first of which holds the header (names, shapes, offsets); reading all of a 16 GB
# checkpoint would delay the start.
WHOLE_FILE_BYTES = 256 * 1024 * 1024
SAMPLES = 256
SAMPLE_BYTES = 64 * 1024
_TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


QUANTISED = {
    "int8": b"int8, a scale for each row",
    "int4": b"int4, a scale for 32 columns; head int8",
}
"""What the setting `quantize` does to weights. A text changes when what is computed does."""


def fingerprint(folder: str, quantize: str = "off") -> str:
    """Return 32 hex characters over weights, config, tokenizer and template of a model folder, and
    how its weights are quantised when they are loaded."""
    digest = hashlib.blake2b(digest_size=16)
    path = Path(folder)
    weights = sorted([*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")])
    for file in [path / name for name in _TEXT_FILES] + weights:
        if file.exists():
            digest.update(file.name.encode() + b"\0")
            _hash_file(digest, file)
    digest.update(QUANTISED.get(quantize, b""))
    return digest.hexdigest()


def _hash_file(digest: Any, file: Path) -> None:
    size = file.stat().st_size
    digest.update(size.to_bytes(8, "little"))
    with file.open("rb") as data:
        if size <= WHOLE_FILE_BYTES:
            while block := data.read(1 << 20):
                digest.update(block)
            return
        for i in range(SAMPLES):
            data.seek(i * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            digest.update(data.read(SAMPLE_BYTES))
