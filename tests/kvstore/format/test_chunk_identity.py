from typing import Any

import pytest

from kvstitch.kvstore import ChunkSpecError, chunk_key
from kvstitch.kvstore.format.chunk_identity import (
    is_chunk_key,
    require_chunk_key,
    require_extra_name,
)

FACTS: dict[str, Any] = {
    "fingerprint": "model-a",
    "dtype": "bfloat16",
    "codec": "raw",
    "prefix_mode": "none",
    "prefix_ids": [1, 2],
    "chunk_ids": [3, 4],
    "tenant_secret": b"",
}


@pytest.mark.parametrize("text", ["", "Sketch", "../x", "a.b", "a" * 33, "1a", "a\n", "a-b"])
def test_names_of_extra_tensors(text):
    assert require_extra_name("sketch_2") == "sketch_2"
    with pytest.raises(ChunkSpecError, match="not a name"):
        require_extra_name(text)


def test_key_is_stable_across_releases():
    # If this value changes, every stored chunk is lost. Raise the format version instead.
    assert chunk_key(**FACTS) == "38fe5dbdff6f32882e6858d287df1eda"


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "model-b"},
        {"dtype": "float16"},
        {"codec": "int8"},
        {"prefix_mode": "bos"},
        {"prefix_ids": [1]},
        {"prefix_ids": [1, 2, 3], "chunk_ids": [4]},
        {"chunk_ids": [4, 3]},
        {"tenant_secret": b"t"},
        {"tenant_secret": b"t" * 65},
        {"fingerprint": "model-", "dtype": "abfloat16"},
    ],
)
def test_every_field_changes_the_key(change):
    assert chunk_key(**FACTS | change) != chunk_key(**FACTS)


def test_form_and_repeatability():
    key = chunk_key(**FACTS)
    assert is_chunk_key(key) and key == chunk_key(**FACTS | {"chunk_ids": (3, 4)})


@pytest.mark.parametrize("ids", [[-1], [2**31], [1.5], ["a"]])
def test_bad_token_ids(ids):
    with pytest.raises(ChunkSpecError, match="token ids"):
        chunk_key(**FACTS | {"chunk_ids": ids})


@pytest.mark.parametrize("text", ["", "../../etc", "A" * 32, "a" * 31, "a" * 32 + "\n"])
def test_foreign_text_is_no_key(text):
    with pytest.raises(ChunkSpecError):
        require_chunk_key(text)
