"""Real files become a collection, and prompts, as the service makes them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.quality.collection import collection
from benchmarks.quality.tasks import natural_questions
from benchmarks.quality.tasks.documentation import parsed
from benchmarks.quality.tasks.retrieved import Passage
from kvstitch.retriever import LocalEmbedder
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.settings import load
from tests.service.gateway.model_folders import make_folder

PAGES = [
    ("a/tides.html", b"<h1>Tides</h1><p>The moon moves the sea twice a day.</p>"),
    ("a/bread.html", b"<h1>Bread</h1><p>Dough rests for nine hours in the cellar.</p>"),
]


def test_pages_are_found_and_written_into_prompts(tmp_path: Path) -> None:
    builder = PromptBuilder(make_folder(tmp_path / "model"), load(data_dir=tmp_path))
    with collection(parsed(PAGES), builder, LocalEmbedder()) as found:
        prompt = found.prompt("docs", "How long does dough rest?", ("nine hours",))
        assert {piece.document for piece in found.pieces()} == {"a/tides.html", "a/bread.html"}
    assert prompt.sources[0] == ("a/bread.html", 0)
    assert "nine hours" in builder.tokenizer.decode(prompt.documents[0])


def test_orders_keep_every_passage() -> None:
    ranked = [Passage("", str(place)) for place in range(5)]
    assert [p.text for p in natural_questions.ends(ranked)] == ["0", "2", "4", "3", "1"]
    for order in natural_questions.ORDERS.values():
        assert sorted(p.text for p in order(list(ranked))) == list("01234")
