"""What cannot be served is refused by its header, with a sentence, and so is what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstitch.service.errors import ModelRefused
from kvstitch_gguf.gguf_checks import check
from kvstitch_gguf.gguf_conversion import convert
from kvstitch_gguf.gguf_file import quantisation, read_header
from tests_gguf.gguf_files import TOKENS, tiny_config, write_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(file, tiny_config("llama"), Kind.Q4_0)
    return file


def test_the_header_is_what_gguf_s_own_reader_finds(whole: Path) -> None:
    ours, theirs = read_header(whole), gguf.GGUFReader(whole)
    assert ours.architecture == "llama" and ours.get("embedding_length") == 256
    assert ours.metadata["tokenizer.ggml.tokens"] is None and len(TOKENS) > 256
    assert [(t.name, t.kind, t.shape) for t in ours.tensors] == [
        (t.name, int(t.tensor_type), tuple(int(n) for n in reversed(t.shape)))
        for t in theirs.tensors
    ]
    assert [ours.data_start + t.offset for t in ours.tensors] == [
        t.data_offset for t in theirs.tensors
    ]
    assert quantisation(ours) == "Q4_0"
    check(ours)


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("mamba", {}, r"architecture mamba, which is not.*llama \(Llama, Mistral, Mixtral\)"),
        ("llama", {"rope.scaling.type": "longrope"}, "RoPE scaling of type longrope"),
        (
            "llama",
            {"rope.scaling.type": "yarn", "rope.scaling.attn_factor": 1.5},
            r"sets llama\.rope\.scaling\.attn_factor",
        ),
        ("phi3", {"rope.scaling.type": "longrope"}, "lacks rope_factors_short.weight"),
        ("llama", {"attention.value_length": 32}, "keys of 64 and values of 32 dimensions"),
        ("llama", {"attention.key_length": 128, "attention.value_length": 128}, "64 of 128"),
        ("llama", {"attention.sliding_window": 9}, r"sets llama\.attention\.sliding_window, which"),
        ("llama", {"rope.freq_base_swa": 9.0}, r"sets llama\.rope\.freq_base_swa, which"),
        ("llama", {"attention.causal": False}, r"sets llama\.attention\.causal, which"),
        ("llama", {"attention.head_count": [4, 2]}, "another number for every layer"),
        ("llama", {"embedding_length": None}, r"has no llama\.embedding_length"),
        ("llama", {"tokenizer.ggml.pre": "own"}, "splits text in the way own"),
        ("llama", {"split.count": 3}, "one of 3 parts"),
    ],
)
def test_what_is_not_served(
    tmp_path: Path, architecture: str, keys: dict[str, Any], message: str
) -> None:
    config = tiny_config("phi3" if architecture == "phi3" else "llama")
    write_gguf(tmp_path / "a.gguf", config, architecture=architecture, keys=keys)
    with pytest.raises(ModelRefused, match=message):
        check(read_header(tmp_path / "a.gguf"))


def test_a_quantisation_that_cannot_be_read(tmp_path: Path) -> None:
    blocks = np.zeros((4, gguf.GGML_QUANT_SIZES[Kind.Q8_K][1]), np.uint8)
    out = gguf.GGUFWriter(str(tmp_path / "a.gguf"), "llama")
    out.add_tensor("token_embd.weight", blocks, raw_dtype=Kind.Q8_K)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    with pytest.raises(
        ModelRefused, match=r"in Q8_K \(token_embd\.weight\), which the package gguf cannot"
    ):
        check(read_header(tmp_path / "a.gguf"))


def test_a_tensor_that_the_family_does_not_have(tmp_path: Path) -> None:
    """A bias left out would make every answer wrong."""
    bias = np.ones(256, np.float32)
    write_gguf(tmp_path / "a.gguf", tiny_config("llama"), tensors={"blk.0.attn_q.bias": bias})
    with pytest.raises(ModelRefused, match=r"lacks weights of a Llama.*: blk\.0\.attn_k\.b"):
        convert(tmp_path / "a.gguf", tmp_path, torch.float32)
    write_gguf(tmp_path / "a.gguf", tiny_config("qwen2"), tensors={"blk.0.ffn_up.bias": bias})
    with pytest.raises(ModelRefused, match=r"does not have: blk\.0\.ffn_up\.bias: it is a"):
        convert(tmp_path / "a.gguf", tmp_path, torch.float32)


def test_what_says_that_there_is_nothing_of_it_is_passed_over(tmp_path: Path) -> None:
    keys = {"expert_count": 0, "rope.scaling.type": "none", "attention.causal": True}
    images = {"mm.tokens_per_image": 256, "vision.attention.head_count": 16}
    write_gguf(tmp_path / "a.gguf", tiny_config("llama"), keys={**keys, **images})
    check(read_header(tmp_path / "a.gguf"))


def test_experts_apart_as_files_of_2023_have_them(tmp_path: Path) -> None:
    keys = {"expert_count": 8, "expert_used_count": 2}
    write_gguf(tmp_path / "a.gguf", tiny_config("llama"), keys=keys)
    with pytest.raises(ModelRefused, match=r"lacks weights of a Mixtral.*: blk\.0\.ffn_down"):
        convert(tmp_path / "a.gguf", tmp_path, torch.float32)


def test_a_weight_of_another_shape(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_config("llama"), keys={"feed_forward_length": 128})
    with pytest.raises(ModelRefused, match=r"ffn_gate.* has the shape \(256, 256\), and a Llama"):
        convert(tmp_path / "a.gguf", tmp_path, torch.float32)


@pytest.mark.parametrize("key", ["attention.head_count_kv", "block_count"])
def test_a_config_that_makes_no_sense(tmp_path: Path, key: str) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_config("llama"), keys={key: [2, 2, 2]})
    with pytest.raises(ModelRefused):
        convert(tmp_path / "a.gguf", tmp_path, torch.float32)


def test_rope_factors_of_unknown_origin(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.linspace(1, 7, 32, dtype=np.float32)}
    write_gguf(tmp_path / "a.gguf", tiny_config("llama"), tensors=factors)
    with pytest.raises(ModelRefused, match="not Llama 3's"):
        convert(tmp_path / "a.gguf", tmp_path, torch.float32)


def test_a_file_that_is_cut_off(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    (tmp_path / "a.gguf").write_bytes(content[:-2000])
    with pytest.raises(ModelRefused, match=f"cut off: it has {len(content) - 2000} bytes of"):
        check(read_header(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 a wheel, say", "does not begin with GGUF"),
        (b"GGUF\x01\0\0\0" + bytes(16), "version 1, and 2 and 3 are read"),
        (b"GGUF\0\0\0\x03" + bytes(16), "version 50331648"),  # of a big-endian machine
    ],
)
def test_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(ModelRefused, match=message):
        read_header(tmp_path / "a.gguf")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_refused_or_harmless(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Any bytes changed or missing in the header: a header, or ModelRefused, and nothing else."""
    content = bytearray(whole.read_bytes())
    header_bytes = read_header(whole).data_start
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header_bytes - 8))
        content[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    end = data.draw(st.one_of(st.just(len(content)), st.integers(0, header_bytes)))
    (tmp_path / "a.gguf").write_bytes(content[:end])
    try:
        check(read_header(tmp_path / "a.gguf"))
    except ModelRefused as error:
        assert str(tmp_path) in error.message
