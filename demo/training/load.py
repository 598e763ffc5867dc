"""Reads an exported model back into the plain decoder."""

from __future__ import annotations

import json
from pathlib import Path

from demo.training.decoder import Decoder, DecoderConfig
from demo.training.shards import read_shards


def load_plain(folder: Path) -> Decoder:
    """Reads exported weights as fp32, in evaluation mode."""
    raw = json.loads((folder / "config.json").read_text())
    fields = DecoderConfig.__dataclass_fields__
    decoder = Decoder(DecoderConfig(**{k: v for k, v in raw.items() if k in fields}))
    tensors = read_shards(folder)
    decoder.load_state_dict({k.removeprefix("model."): v.float() for k, v in tensors.items()})
    return decoder.eval()
