"""Text and bytes of single tokens, for every way in which vocabularies spell bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from kvstitch.service.gateway.prompts.detokenizer import TokenPieces
from tests.service.gateway.model_folders import byte_tokenizer


def pieces(tokenizer: Tokenizer) -> TokenPieces:
    return TokenPieces(tokenizer, tokenizer.to_str())


BYTE_LEVEL = byte_tokenizer()
BYTE_PIECES = pieces(BYTE_LEVEL)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_bytes_of_a_byte_level_vocabulary_add_up_to_the_text(text: str) -> None:
    found = [BYTE_PIECES(id).bytes for id in BYTE_LEVEL.encode(text, add_special_tokens=False).ids]
    assert b"".join(one for one in found if one is not None) == text.encode()


def test_a_part_of_a_character_has_bytes_and_no_text() -> None:
    first, *_ = BYTE_LEVEL.encode("🎉").ids
    assert BYTE_PIECES(first) == ("\ufffd", b"\xf0")


def test_special_tokens_have_a_name_and_no_bytes_added_ones_are_text() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    found = pieces(tokenizer)
    assert found(1) == ("</s>", None)
    think = tokenizer.token_to_id("<think>")
    assert think is not None and found(think) == ("<think>", b"<think>")


def test_an_id_that_the_tokenizer_does_not_know_is_empty() -> None:
    """Vocabularies of models are padded, and any id may be among the most likely ones."""
    assert BYTE_PIECES(99_999) == ("", None)


def test_byte_fallback_of_sentencepiece() -> None:
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁ab", "▁b"]
    vocabulary = {name: id for id, name in enumerate(names)}
    merges = [("a", "b"), ("▁", "ab"), ("▁", "b")]
    vocabulary["ab"] = len(vocabulary)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    found = pieces(tokenizer)
    ids = tokenizer.encode("ab b\n🎉").ids
    joined = b"".join(one for id in ids if (one := found(id).bytes) is not None)
    assert joined == " ab b\n🎉".encode()  # the blank that the vocabulary puts before a text, too
    assert found(vocabulary["▁ab"]) == (" ab", b" ab")


def test_word_pieces_are_what_they_add_to_a_text() -> None:
    vocabulary = {"[UNK]": 0, "a": 1, "gate": 2, "##way": 3}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    found = pieces(tokenizer)
    assert (found(2).bytes, found(3).bytes) == (b" gate", b"way")
