"""LongBench: official prompts and settings, its files, and what truncation leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from benchmarks.quality.longbench import (
    A3_TASKS,
    E_TASKS,
    KVEC_TASKS,
    TASKS,
    load,
    truncated,
)
from benchmarks.quality.sample import TextSample
from benchmarks.quality.scores import METRICS
from service.errors import InvalidRequest, PromptTooLong

# BLAKE2b, 8 bytes, of the prompts in LongBench/config/dataset2prompt.json at commit 2e00731.
OFFICIAL = {
    "narrativeqa": "c42ceedb6a7e1c7e",
    "qasper": "107f09ba95bd2a4b",
    "multifieldqa_en": "c987488dcb306d9d",
    "hotpotqa": "9cd224f2d3d9538d",
    "2wikimqa": "9cd224f2d3d9538d",
    "musique": "9cd224f2d3d9538d",
    "gov_report": "af43629117ed4e59",
    "qmsum": "028460ffa4e0379e",
    "multi_news": "e0c0313267dc5f3a",
    "trec": "b0ce0d49946c4ff4",
    "triviaqa": "cf7b68af2966b2d3",
    "samsum": "4eefe6ee7e0b3a04",
    "passage_count": "b215d7dcf73709ad",
    "passage_retrieval_en": "400fe5c0c1bb0dec",
    "lcc": "1116af3690df2879",
    "repobench-p": "95a448e07ca470c4",
}
# dataset2maxlen.json at the same commit.
LENGTHS = {
    **dict.fromkeys(["narrativeqa", "qasper", "samsum"], 128),
    **dict.fromkeys(["multifieldqa_en", "trec", "lcc", "repobench-p"], 64),
    **dict.fromkeys(["hotpotqa", "2wikimqa", "musique", "triviaqa"], 32),
    **dict.fromkeys(["passage_count", "passage_retrieval_en"], 32),
    **dict.fromkeys(["gov_report", "qmsum", "multi_news"], 512),
}
ROW: dict[str, object] = {
    "input": "Who wrote {it}?",
    "context": "Passage 1:\nAda {context} wrote it.",
    "answers": ["Ada", "Ada L."],
    "length": 9,
    "dataset": "hotpotqa",
    "language": "en",
    "all_classes": None,
    "_id": "7",
}


def written(folder: Path, task: str, *rows: Mapping[str, object] | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / f"{task}.jsonl").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")
    return folder


# -- tasks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", OFFICIAL)
def test_prompts_are_the_official_ones(task: str) -> None:
    prompt = TASKS[task].prompt.encode()
    assert hashlib.blake2b(prompt, digest_size=8).hexdigest() == OFFICIAL[task]


def test_settings_of_the_tasks() -> None:
    assert {name: task.answer_tokens for name, task in TASKS.items()} == LENGTHS
    bare = {name for name, task in TASKS.items() if not task.chat}
    assert bare == {"trec", "triviaqa", "samsum", "lcc", "repobench-p"}
    first = {name for name, task in TASKS.items() if task.metric.endswith("_first_line")}
    assert first == {"trec", "triviaqa", "samsum"}
    assert {name for name, task in TASKS.items() if task.stop} == {"samsum"}
    assert {task.metric for task in TASKS.values()} <= set(METRICS)


def test_sets_of_tasks() -> None:
    assert set(KVEC_TASKS) == set(OFFICIAL)
    assert len(E_TASKS) == 13
    assert {t.removesuffix("_e") for t in E_TASKS} == set(OFFICIAL) - {
        "narrativeqa", "musique", "qmsum",
    }  # fmt: skip
    assert set(E_TASKS) - set(A3_TASKS) == {"passage_retrieval_en_e", "repobench-p_e"}
    assert len(A3_TASKS) == 11


# -- files ----------------------------------------------------------------------------------------


def test_a_line_is_a_sample(tmp_path: Path) -> None:
    [sample] = load(written(tmp_path, "hotpotqa", ROW), "hotpotqa")
    assert sample == TextSample(
        suite="longbench",
        task="hotpotqa",
        number=0,
        instruction=(
            "Answer the question based on the given passages. Only give me the answer and do not "
            "output any other words.\n\nThe following are given passages.\n"
        ),
        context="Passage 1:\nAda {context} wrote it.",
        question=(
            "\n\nAnswer the question based on the given passages. Only give me the answer and do "
            "not output any other words.\n\nQuestion: Who wrote {it}?\nAnswer:"
        ),
        references=("Ada", "Ada L."),
        metric="qa_f1",
        answer_tokens=32,
        details={"length": 9, "dataset": "hotpotqa", "language": "en", "id": "7"},
    )


@pytest.mark.parametrize("task", [*KVEC_TASKS, *E_TASKS])
def test_parts_put_together_are_the_filled_in_prompt(tmp_path: Path, task: str) -> None:
    row = ROW | {"all_classes": ["Ada", "Bob"]}
    [sample] = load(written(tmp_path, task, row), task)
    prompt = TASKS[task.removesuffix("_e")].prompt.format(**row)
    assert sample.instruction + sample.context + sample.question == prompt
    assert sample.task == task
    assert sample.classes == ("Ada", "Bob")


def test_the_first_samples(tmp_path: Path) -> None:
    folder = written(tmp_path, "lcc", *(ROW | {"_id": str(i)} for i in range(5)), "not read")
    assert [s.details["id"] for s in load(folder, "lcc", samples=3)] == ["0", "1", "2"]
    assert [s.number for s in load(folder, "lcc", samples=2)] == [0, 1]


def test_no_such_task(tmp_path: Path) -> None:
    for task in ("dureader", "musique_e"):
        with pytest.raises(InvalidRequest, match=f"'{task}'.*hotpotqa"):
            load(written(tmp_path, task, ROW), task)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"qasper_e\.jsonl is missing.*THUDM/LongBench"):
        load(tmp_path, "qasper_e")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "truncated"),
        (json.dumps({k: v for k, v in ROW.items() if k != "context"}), "`context`"),
        (json.dumps(ROW | {"answers": "Ada"}), "answers"),
        (json.dumps(ROW | {"answers": []}), "no answers"),
        (json.dumps(ROW | {"all_classes": None}), "all_classes"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    folder = written(tmp_path, "trec", ROW | {"all_classes": ["Ada"]}, line)
    with pytest.raises(InvalidRequest) as error:
        list(load(folder, "trec"))
    assert "trec.jsonl, line 2: " in error.value.message
    assert why in error.value.message
    assert "THUDM/LongBench" in error.value.message


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "lcc.jsonl").write_bytes(json.dumps(ROW).encode().replace(b"Ada", b"\xff"))
    with pytest.raises(InvalidRequest, match="line 1"):
        list(load(tmp_path, "lcc"))


# -- truncation -----------------------------------------------------------------------------------


def letters(text: str) -> list[tuple[int, int]]:
    """A token each, but three for a smiley."""
    return [(i, i + 1) for i, x in enumerate(text) for _ in range(3 if x == "☺" else 1)]


def a_sample(context: str) -> TextSample:
    return TextSample("longbench", "qasper", 4, "SSS", context, "QQ", ("x",), "qa_f1", 8)


@pytest.mark.parametrize(
    ("context", "limit", "left"),
    [
        ("abcdefghij", 15, "abcdefghij"),
        ("abcdefghij", 14, "abcdghij"),  # room for 9: 4 of each end
        ("abcdefghij", 13, "abcdghij"),
        ("abcdefghij", 7, "aj"),
        ("abcdefghij", 6, ""),
        ("abcdefghij", 5, ""),
        ("", 5, ""),
        # Half a smiley is a whole one, which is too much: less of both ends.
        ("a☺bc☺d", 12, "ad"),
        ("a☺bc☺d", 13, "a☺☺d"),
        # 8 and 7 tokens reach into three smileys of each end, 18 tokens; 6 are two.
        ("☺" * 20, 21, "☺" * 4),
    ],
)
def test_the_middle_goes(context: str, limit: int, left: str) -> None:
    sample = a_sample(context)
    assert truncated(sample, letters, limit) == replace(sample, context=left)


def test_templates_alone_are_too_long() -> None:
    with pytest.raises(PromptTooLong, match=r"qasper, sample 4: .* 5 tokens and 4 are allowed"):
        truncated(a_sample("abc"), letters, 4)


def test_limits_hold_with_a_real_tokenizer() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=500, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([text], trainer)

    def offsets(text: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = tokenizer.encode(text).offsets
        return found

    context = text[:4000]
    sample = a_sample(context)
    around = len(offsets("SSS")) + len(offsets("QQ"))
    for limit in (*range(300, 340), 700):
        left = truncated(sample, offsets, limit).context
        tokens = around + len(offsets(left))
        assert limit - 8 <= tokens <= limit
        cuts = [i for i in range(len(left) + 1) if context.startswith(left[:i])]
        cuts = [i for i in cuts if context.endswith(left[i:])]
        assert any(len(left) / 3 < i < 2 * len(left) / 3 for i in cuts)
