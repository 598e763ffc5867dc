from __future__ import annotations

import numpy as np
import pytest

from retriever.embedders import space_of
from tests.fakes.models import HashingEmbedder


def test_vectors_have_length_one_whatever_the_text() -> None:
    vectors = HashingEmbedder(32).embed(["two words", "", "...", "漢字", "a a a"])
    assert vectors.shape == (5, 32) and vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0)


def test_shared_words_make_texts_similar() -> None:
    query, near, far = HashingEmbedder().embed(["red fox", "the red Fox runs", "blue whale"])
    assert query @ near > query @ far


def test_it_is_the_same_on_every_machine() -> None:
    assert HashingEmbedder(8).embed(["one"]).argmax() == 1  # crc32("one") = 0x7a6c86f1


def test_no_texts() -> None:
    assert HashingEmbedder(8).embed([]).shape == (0, 8)


def test_space_names_the_dimension() -> None:
    assert space_of(HashingEmbedder(8)) != space_of(HashingEmbedder(9))
