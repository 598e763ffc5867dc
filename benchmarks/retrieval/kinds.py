"""60 questions of seven kinds about Debian's documentation: in how many is the answer found first?

    python -m benchmarks.quality.fetch_docs
    python -m benchmarks.retrieval.kinds [--show] [--index FOLDER]

    plain      in the text's words         language  in German, French, Spanish, …
    words      in others than the text's   value     a default, in a table or far from its name
    typo       with words misspelt         list      an item, whose heading stands above
    name       of an option or an error

A question counts if a passage of its file holds the answer. The questions were written before the
search was changed, and nothing was fitted on them.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.quality.tasks import documentation
from benchmarks.retrieval.recall_targets import CHUNK_TOKENS, word_pieces
from kvstitch.retriever import ChunkSettings, LocalEmbedder, Passage, Retriever
from tests.fakes.models import TokenizerCounter

QUESTIONS = Path(__file__).parent / "data" / "kinds_questions.jsonl"
PLACES = 5


def opened(folder: Path) -> Retriever:
    """A retriever of the documentation; one that the folder has already is used as it is."""
    counter = TokenizerCounter.from_file(word_pieces())
    retriever = Retriever.in_folder(folder, LocalEmbedder(), ChunkSettings(counter, CHUNK_TOKENS))
    retriever.start()
    if not len(retriever.index):
        retriever.ingest(documentation.read(documentation.default_folder()))
        retriever.save()
    return retriever


def answers(passage: Passage, file: str, accepted: list[str]) -> bool:
    text = " ".join(passage.chunk.text.lower().split())
    return passage.chunk.doc_id == file and any(answer.lower() in text for answer in accepted)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", action="store_true", help="the questions that are missed")
    parser.add_argument("--index", type=Path, help="keep the index here, for another run")
    args = parser.parse_args()
    asked = [json.loads(line) for line in QUESTIONS.open(encoding="utf-8")]
    first, among = Counter[str](), Counter[str]()
    with TemporaryDirectory(prefix="kvstitch-") as scratch:
        retriever = opened(args.index or Path(scratch))
        for each in asked:
            passages = retriever.search(each["question"], PLACES, mode="hybrid")
            places = [answers(passage, each["file"], each["answers"]) for passage in passages]
            first[each["kind"]] += places[0]
            among[each["kind"]] += any(places)
            if args.show and not any(places):
                print(each["kind"], "|", each["question"], "|", each["answers"])
                print(*(f"    {p.chunk.doc_id} {p.chunk.text[:70]!r}" for p in passages), sep="\n")
        retriever.close()
    for kind, count in Counter(each["kind"] for each in asked).items():
        print(f"{kind:10} {count:2} questions: {first[kind]:2} first, {among[kind]:2} in {PLACES}")
    for what, kinds in (
        ("all", list(first)),
        ("in the text's language", [k for k in first if k != "language"]),
    ):
        found = sum(first[kind] for kind in kinds), sum(among[kind] for kind in kinds)
        print(f"{what}: {found[0]} first, {found[1]} in {PLACES}")


if __name__ == "__main__":
    main()
