"""The committed corpus: what the script writes, small enough for one chunk each, retrievable."""

from demo.corpus_files import read_documents, read_questions
from demo.language.vocabulary import DOCUMENT, build_tokenizer
from demo.make_corpus import build
from demo.measuring.recall import recall
from demo.training.export import SERVED_CHUNK_TOKENS


def test_committed_files_are_what_the_script_writes() -> None:
    documents, questions = build()
    committed = {d.doc_id: (d.title, d.text) for d in read_documents()}
    assert committed == {i: (d.title, d.text) for i, d in documents.items()}
    assert read_questions() == questions


def test_every_document_fits_one_chunk() -> None:
    tokenizer = build_tokenizer()
    for document in read_documents():
        segment = DOCUMENT.format(title=document.title, text=document.text)
        assert len(tokenizer.encode(segment).ids) <= SERVED_CHUNK_TOKENS, document.doc_id


def test_the_right_document_is_among_the_first_three() -> None:
    assert recall(top_k=3) >= 0.97
