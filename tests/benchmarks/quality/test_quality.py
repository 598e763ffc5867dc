"""The quality bench: every kind of method answers as it does elsewhere, shares are those of the
method, tables are the answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality.answering import Answer, Answerer
from benchmarks.quality.compared import Compared, ablation, methods
from benchmarks.quality.multi_infllm import MultiInfLLM
from benchmarks.quality.sparse import main
from benchmarks.quality.tables import Scores, ablation_table, methods_table
from service.worker.api import FullReuse, LegoLink, Pie, SamKV, Vanilla
from service.worker.methods.api import ModelFacts
from tests.benchmarks.cases import a_prompt, decode
from tests.service.worker.tiny import Tiny
from tuning.prompts import Prompt

pytestmark = pytest.mark.slow

PAPER = SamKV(max_kept=1.0, max_recomputed=1.0)


def answers(model: Tiny, prompt: Prompt, *compared: Compared) -> list[Answer]:
    decoder = model.decoder
    facts = ModelFacts(decoder.layers, decoder.heads, decoder.kv_heads)
    return Answerer(decoder, facts, decode, longest=prompt.tokens).measure(prompt, compared)


def of(method: object, block: int = 4, prefix_mode: str = "none") -> Compared:
    return Compared(type(method).__module__, method, block, prefix_mode)  # type: ignore[arg-type]


# -- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_mode", ["none", "system"])
def test_short_documents_are_answered_as_by_full_prefill(model: Tiny, prefix_mode: str) -> None:
    """SamKV computes documents of up to three blocks whole; decoding goes on from there."""
    full, sparse = answers(model, a_prompt(), of(Vanilla()), of(PAPER, prefix_mode=prefix_mode))
    assert len(full.text.split()) > 1
    assert sparse.text == full.text
    assert sparse.kept == sparse.recomputed == full.kept == full.recomputed == 1


def test_a_wide_window_answers_as_pie(model: Tiny) -> None:
    prompt = a_prompt(sizes=(40, 0, 35))
    pie, infllm = answers(model, prompt, of(Pie()), of(MultiInfLLM(4, 4, local=200)))
    assert len(pie.text.split()) > 1
    assert infllm.text == pie.text
    assert infllm.kept == pie.kept == 1
    assert infllm.recomputed == pie.recomputed == 0


def test_shares_of_the_documents(model: Tiny) -> None:
    """By hand: documents of 40 and 35 tokens, whose ends are 4 + 8 and 4 + 7 tokens."""
    prompt = a_prompt(sizes=(40, 0, 35))
    ends = replace(PAPER, selection=False)
    some, none, legolink = answers(
        model,
        prompt,
        of(replace(ends, max_recomputed=0.15)),
        of(replace(ends, recompute=False)),
        of(LegoLink(3, 2)),
    )
    assert some.kept == none.kept == pytest.approx(23 / 75)
    assert some.recomputed == pytest.approx((6 + 5) / 75)
    assert none.recomputed == 0
    assert legolink.kept == 1
    assert legolink.recomputed == pytest.approx(10 / 75)


def test_blocks_of_another_size(model: Tiny) -> None:
    """The same document has a middle in blocks of 4, and none in blocks of 16."""
    prompt = a_prompt(sizes=(40,))
    four, sixteen = answers(model, prompt, of(PAPER), of(PAPER, 16))
    assert four.kept < 1
    assert sixteen.kept == 1


def test_right_answers(model: Tiny) -> None:
    """Exact, in part, and not at all; the best of several counts."""
    [said] = answers(model, a_prompt(), of(Vanilla()))
    words = said.text.split()
    assert not said.right
    for known, right, f1 in (
        ((said.text,), True, 1.0),
        (("zzz", said.text), True, 1.0),
        ((f"{said.text} zzz",), False, 2 * len(words) / (2 * len(words) + 1)),
        (("zzz",), False, 0.0),
        ((), False, 0.0),
    ):
        [again] = answers(model, replace(a_prompt(), answers=known), of(Vanilla()))
        assert again.right is right
        assert again.f1 == pytest.approx(f1)


# -- what is compared -----------------------------------------------------------------------------


def test_configurations_are_told_apart() -> None:
    """One key each; where both tables have a row, it is measured once."""
    first = methods(block=16, document_tokens=128, prefix_mode="system")
    second = [a.compared for a in ablation(block=16, prefix_mode="system")]
    keys = {c.key for c in first}
    assert len(keys) == len(first) == 10
    assert len({c.key for c in second}) == len(second) == 12
    shared = [a.name for a in first if a.key in {b.key for b in second}]
    assert shared == ["Recompute", "SamKV-fusion"]
    others = methods(block=8, document_tokens=128, prefix_mode="system")
    others += methods(block=16, document_tokens=128, prefix_mode="none")
    assert not keys & {c.key for c in others}
    assert isinstance(first[1].method, FullReuse)
    assert first[5].method == LegoLink(10, 10)


# -- tables ---------------------------------------------------------------------------------------


def scored(f1: list[float], kept: float = 0.5) -> Scores:
    made = [Answer(str(i), "c", "", v == 1, v, kept, 0.25, 0.0) for i, v in enumerate(f1)]
    base = [replace(a, f1=1.0, right=True) for a in made]
    return Scores.of(of(PAPER), made, base, ["hop", "single"] * (len(f1) // 2), seed=3)


def test_scores_by_hand() -> None:
    scores = scored([1.0, 0.5, 0.0, 0.5])
    assert scores.by_task["F1"]["hop"].mean == 0.5
    assert (scores.by_task["F1"]["hop"].low, scores.by_task["F1"]["hop"].high) == (0, 1)
    assert scores.by_task["F1"]["single"].mean == 0.5
    assert scores.by_task["F1"]["single"].low == scores.by_task["F1"]["single"].high == 0.5
    assert scores.average["F1"].mean == 0.5
    assert scores.average["exact"].mean == 0.25
    assert scores.difference["F1"].mean == -0.5
    assert scores.difference["exact"].mean == -0.75
    assert scores.kept == 0.5


def test_rows_of_the_tables() -> None:
    scores = scored([1.0, 0.5, 1.0, 0.5])
    head, _, row = methods_table([scores], "F1").splitlines()
    assert head == "| method | hop | single | average | kept | recomputed |"
    assert "| 100.0 [100.0, 100.0] | 50.0 [50.0, 50.0] | 75.0 [" in row
    assert row.endswith("(-25.0) | 50.0 % | 25.0 % |")
    rows = ablation(block=4, prefix_mode="none")
    lines = ablation_table([(a, scores) for a in rows], "exact").splitlines()
    marks = [line.split(" | ")[2:6] for line in lines[2:]]
    assert marks[:7] == [
        ["–", "–", "–", ""],
        ["✗", "–", "✗", ""],
        ["✗", "–", "✓", ""],
        ["✓", "✗", "✗", ""],
        ["✓", "✓", "✗", ""],
        ["✓", "✗", "✓", ""],
        ["✓", "✓", "✓", ""],
    ]
    assert all(note for _, _, _, note in marks[7:])


# -- the command ----------------------------------------------------------------------------------


def test_the_command_writes_its_results_and_goes_on(tmp_path: Path) -> None:
    command = ["--samples", "1", "--tasks", "single", "update", "--out", str(tmp_path)]
    assert main(command) == 0
    record = json.loads((tmp_path / "sparse.json").read_text())
    assert record["seed"] == 1
    assert record["environment"]["commit"]
    assert record["records_made_now"] == 2 * 20
    assert [p["task"] for p in record["prompts"]] == ["single", "update"]
    assert all(len(m["samples"]["text"]) == 2 for m in record["methods"] + record["ablation"])
    full = record["methods"][0]
    assert full["kept"] == full["recomputed"] == 1
    text = (tmp_path / "sparse.md").read_text()
    assert main(command) == 0
    assert json.loads((tmp_path / "sparse.json").read_text())["records_made_now"] == 0
    assert (tmp_path / "sparse.md").read_text() == text


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--samples", "0"])
    assert "at least 1" in capsys.readouterr().err
