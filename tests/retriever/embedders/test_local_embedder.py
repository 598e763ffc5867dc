from __future__ import annotations

import json
import random
import shutil
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvstitch.retriever.embedders import Prompts, local_embedder, short_text
from kvstitch.retriever.embedders.local_embedder import LocalEmbedder
from kvstitch.retriever.embedders.sentence_model_folder import SentenceModelFolder
from kvstitch.retriever.errors import EmbedderNotStarted, EmbedderUnsupported


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of one layer with MiniLM's tokenizer, and no sentence-transformers files."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny-bert")
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    source = SentenceModelFolder.read(None).path
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(source / name, folder / name)
    return folder


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "tiny-bert"))


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def states(embedder: LocalEmbedder, text: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """The model's last hidden states [tokens, dim], from transformers alone."""
    from transformers import AutoTokenizer

    assert embedder._loaded is not None
    tokenizer = AutoTokenizer.from_pretrained(embedder._loaded.folder.path, local_files_only=True)
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        hidden = embedder._loaded.model(**inputs).last_hidden_state[0]
    return np.asarray(hidden.numpy())


def test_vectors_of_the_installed_model_have_length_one(minilm: LocalEmbedder) -> None:
    assert (minilm.name, minilm.dim, len(minilm.revision)) == ("all-MiniLM-L6-v2", 384, 64)
    assert minilm.embed([])[0].shape == (0, 384)
    vectors = minilm.embed(["one", "", "a much longer text " * 20])[0]
    assert vectors.shape == (3, 384) and vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)


def test_the_tokenizer_keeps_no_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(local_embedder, "keep_no_words", asked.append)
    embedder = LocalEmbedder(folder)
    embedder.start()
    try:
        assert embedder._loaded is not None and asked == [embedder._loaded.tokenizer]
    finally:
        embedder.close()


def test_batching_changes_nothing_and_keeps_the_order(minilm: LocalEmbedder) -> None:
    texts = [f"text number {number} " * (number % 7 + 1) for number in range(40)]
    alone = np.concatenate([minilm.embed([text])[0] for text in texts])
    assert np.abs(minilm.embed(texts)[0] - alone).max() < 1e-5


def test_few_shapes_are_computed(minilm: LocalEmbedder) -> None:
    """For every shape that is new the libraries keep programs of their own."""
    loaded = minilm._loaded
    assert loaded is not None
    shapes: Counter[tuple[int, ...]] = Counter()

    def note(module: object, args: tuple[object, ...], fields: dict[str, Any]) -> None:
        shapes[tuple(fields["input_ids"].shape)] += 1

    watched = loaded.model.register_forward_pre_hook(note, with_kwargs=True)
    source = random.Random(3)
    try:
        for _ in range(6):
            minilm.embed(["word " * source.randint(1, 300) for _ in range(source.randint(1, 13))])
    finally:
        watched.remove()
    assert sum(shapes.values()) > 12
    for rows, tokens in shapes:
        assert rows & (rows - 1) == 0 and rows * tokens <= 2048
        assert tokens % 32 == 0 or (rows == 1 and tokens <= 128)


def test_bfloat16_is_close_to_float32(minilm: LocalEmbedder) -> None:
    texts = [f"text number {number} " * (number % 7 + 1) for number in range(40)]
    embedder = LocalEmbedder(dtype="bfloat16")
    embedder.start()
    vectors = embedder.embed(texts)[0]
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    likeness = (vectors * minilm.embed(texts)[0]).sum(axis=1)
    assert 0.999 < likeness.min() < 1 - 1e-7


TEXTS = [
    "",
    "a",
    "Which tier is read first when a chunk is stored twice?",
    "Wie lange gilt die Garantie, und wer bezahlt den Rückversand?",
    "保証期間はどのくらいですか。",
    "ما هي مدة الضمان؟ Ποια είναι η εγγύηση; 🙂🙂 x²+y²=z²",
    "unaffable antidisestablishmentarianism " * 6,
    "a text of just about as many tokens as are computed so " * 9,
    "a text that is longer than what is computed so " * 15,
]


@pytest.mark.parametrize("text", TEXTS)
def test_one_short_text_is_computed_as_transformers_does(minilm: LocalEmbedder, text: str) -> None:
    pooled = states(minilm, text).mean(axis=0)
    assert np.abs(minilm.embed([text])[0][0] - pooled / np.linalg.norm(pooled)).max() < 1e-5


def test_short_texts_are_computed_in_few_shapes(
    minilm: LocalEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: Counter[int] = Counter()
    product = short_text._Linear.__call__

    def note(linear: short_text._Linear, x: torch.Tensor, then: str = "none") -> torch.Tensor:
        rows[len(x)] += 1
        return product(linear, x, then)

    monkeypatch.setattr(short_text._Linear, "__call__", note)
    for words in range(1, 40):
        minilm.embed(["word " * words])
    assert rows and set(rows) <= {16, 32, 48}


def test_one_short_text_in_bfloat16(minilm: LocalEmbedder) -> None:
    """Two ways to compute in bfloat16 are as far from one another as each from float32. Of an empty
    text, which nobody searches for, both are further from it."""
    embedder = LocalEmbedder(dtype="bfloat16")
    embedder.start()
    assert embedder._loaded is not None and embedder._loaded.short is not None
    texts = TEXTS[1:]
    ours = np.concatenate([embedder.embed([text])[0] for text in texts])
    embedder._loaded.short = None
    theirs = np.concatenate([embedder.embed([text])[0] for text in texts])
    exact = np.concatenate([minilm.embed([text])[0] for text in texts])
    assert (ours * theirs).sum(axis=1).min() > 0.9999
    assert np.abs(ours - theirs).max() < 3e-3
    assert np.abs(ours - exact).max() < 1.5 * max(np.abs(theirs - exact).max(), 1e-3)


def test_other_models_than_bert_are_left_to_transformers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"hidden_act": "relu"})
    embedder = LocalEmbedder(folder, dtype="float32")
    embedder.start()
    assert embedder._loaded is not None and embedder._loaded.short is None
    pooled = states(embedder, "a few words").mean(axis=0)
    vector = embedder.embed(["a few words"])[0][0]
    assert np.abs(vector - pooled / np.linalg.norm(pooled)).max() < 1e-5
    embedder.close()


def test_end_of_a_long_text_can_be_found(minilm: LocalEmbedder) -> None:
    beginning = "The harbour was quiet and the boats lay still in the morning fog. " * 25
    ending = "Photosynthesis turns sunlight, water and carbon dioxide into sugar. " * 25
    query, whole, half = minilm.embed(
        ["How do plants make sugar from light?", beginning + ending, beginning]
    )[0]
    assert query @ whole > query @ half + 0.2


def test_threads_may_share_it(minilm: LocalEmbedder) -> None:
    texts = ["short", "a longer text " * 100]
    expected = minilm.embed(texts)[0]
    wrong: list[float] = []

    def embed() -> None:
        for _ in range(3):
            difference = float(np.abs(minilm.embed(texts)[0] - expected).max())
            if difference > 1e-5:
                wrong.append(difference)

    threads = [threading.Thread(target=embed) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_use_before_start_and_after_close(tiny_folder: Path) -> None:
    embedder = LocalEmbedder(tiny_folder, dtype="float32")
    with pytest.raises(EmbedderNotStarted):
        embedder.embed(["text"])
    embedder.start()
    embedder.start()
    assert embedder.embed(["text"])[0].shape == (1, 16)
    embedder.close()
    with pytest.raises(EmbedderNotStarted):
        _ = embedder.revision


def test_bare_folder_is_mean_pooled_and_named_after_it(tiny_folder: Path) -> None:
    folder = SentenceModelFolder.read(tiny_folder)
    assert folder.pooling == "mean"
    assert folder.max_tokens == 64
    assert folder.name == tiny_folder.name


@pytest.mark.parametrize("spelling", ["old", "new"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_pooling_is_what_the_folder_asks_for(folder: Path, pooling: str, spelling: str) -> None:
    token = "token" if pooling == "cls" else "tokens"
    others = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}
    old = others | {"word_embedding_dimension": 16, f"pooling_mode_{pooling}_{token}": True}
    new = {"embedding_dimension": 16, "pooling_mode": pooling}
    write_json(folder / "1_Pooling" / "config.json", old if spelling == "old" else new)
    embedder = LocalEmbedder(folder, dtype="float32")
    embedder.start()
    hidden = states(embedder, "a few words")
    expected = {"cls": hidden[0], "mean": hidden.mean(axis=0), "max": hidden.max(axis=0)}[pooling]
    # In a batch with a longer text, so that an influence of padding would be noticed.
    vector = embedder.embed(["a few words", "a longer text " * 10])[0][0]
    assert np.abs(vector - expected / np.linalg.norm(expected)).max() < 1e-5
    embedder.close()


def test_length_is_read_from_the_folder(folder: Path) -> None:
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 16})
    embedder = LocalEmbedder(folder, dtype="float32")
    embedder.start()
    assert embedder.embed(["word " * 30, "word"])[1] == 16 + 16 + 4 + 3
    embedder.close()


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ("modules.json", [{"type": "sentence_transformers.models.Dense"}], "Dense"),
        ("config_sentence_transformers.json", {"prompts": {"query": 1}}, '"prompts" must be'),
        ("config_sentence_transformers.json", {"prompts": ["query: "]}, '"prompts" must be'),
        ("config.json", None, "not a model folder"),
    ],
)
def test_what_is_not_run_here_is_refused(
    folder: Path, file: str, content: object, what: str
) -> None:
    if content is None:
        (folder / file).unlink()
    else:
        write_json(folder / file, content)
    with pytest.raises(EmbedderUnsupported, match=what):
        LocalEmbedder(folder, dtype="float32").start()


@pytest.mark.parametrize(
    ("written", "prompts"),
    [
        ({"query": "query: ", "passage": "passage: "}, Prompts("query: ", "passage: ")),
        ({"query": "q: ", "passage": "p: ", "document": "d: "}, Prompts("q: ", "d: ")),
        ({"corpus": "text: ", "clustering": "cluster: "}, Prompts("", "text: ")),
        ({}, Prompts()),
        (None, Prompts()),
    ],
)
def test_prompts_are_read_from_the_folder(folder: Path, written: object, prompts: Prompts) -> None:
    assert SentenceModelFolder.read(folder).prompts == Prompts()
    write_json(folder / "config_sentence_transformers.json", {"prompts": written})
    embedder = LocalEmbedder(folder, dtype="float32")
    embedder.start()
    assert embedder.prompts == prompts
    pooled = states(embedder, "a few words").mean(axis=0)
    vector = embedder.embed(["a few words"])[0][0]
    embedder.close()
    assert np.abs(vector - pooled / np.linalg.norm(pooled)).max() < 1e-5, "who asks puts it there"


def test_vectors_from_before_prompts_were_read_are_others(folder: Path) -> None:
    file = folder / "config_sentence_transformers.json"
    write_json(file, {"prompts": {"query": "query: "}})
    now = SentenceModelFolder.read(folder)
    assert now.revision() != replace(now, prompts=Prompts()).revision()


@pytest.mark.parametrize("change", ["weights", "pooling", "length", "tokenizer"])
def test_revision_follows_all_that_decides_a_vector(
    folder: Path, tiny_folder: Path, change: str
) -> None:
    before = SentenceModelFolder.read(folder).revision()
    assert before == SentenceModelFolder.read(tiny_folder).revision()
    match change:
        case "weights":
            weights = folder / "model.safetensors"
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.write_bytes(content)
        case "pooling":
            write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "cls"})
        case "length":
            write_json(folder / "sentence_bert_config.json", {"max_seq_length": 16})
        case "tokenizer":
            path = folder / "tokenizer.json"
            path.write_text(path.read_text() + " ")
    assert SentenceModelFolder.read(folder).revision() != before
