"""Rows: serving format, fixed-size chunks, and who sees whom under each view."""

import random

import torch

from demo.language.tasks import TASKS, chunks
from demo.language.vocabulary import BOS_ID, EOS_ID, QUESTION, SYSTEM, build_tokenizer
from demo.training.rows import FIRST_QUESTION, TASK_CHUNK_TOKENS, Packer, Part, Row
from demo.training.samples import View, attention_mask

TOKENIZER = build_tokenizer()


def _row(questions: int) -> Row:
    rng = random.Random(1)
    story = TASKS["pronoun"].write(rng, False, 4)
    return Packer(TOKENIZER).row(rng, [Part("pronoun", story, list(story.asked[:questions]))])


def test_questions_of_a_row_start_right_behind_the_context() -> None:
    row = _row(4)
    questions = [i for i, s in enumerate(row.segments) if s >= FIRST_QUESTION]
    end = questions[0]
    starts = [i for i in questions if row.segments[i] != row.segments[i - 1]]
    assert len(starts) == 4
    assert all(row.positions[i] == end for i in starts)
    assert sum(row.first) == 3, "the first fact of a document is not behind a pronoun"
    assert row.ids.count(EOS_ID) == 4


def test_a_row_is_the_serving_prompt() -> None:
    rng = random.Random(1)
    story = TASKS["pronoun"].write(rng, False, 4)
    row = Packer(TOKENIZER).row(rng, [Part("pronoun", story, [story.asked[0]])])
    prompt = [BOS_ID, *TOKENIZER.encode(SYSTEM).ids]
    for chunk in chunks(TOKENIZER, story.context, TASK_CHUNK_TOKENS):
        prompt += chunk
    prompt += TOKENIZER.encode(QUESTION.format(question=story.asked[0].question)).ids
    assert row.ids[: len(prompt)] == prompt
    answer = row.ids[len(prompt) : -1]
    assert TOKENIZER.decode(answer).strip() == story.asked[0].answer


def test_views_differ_in_what_chunks_see_only() -> None:
    segments = torch.tensor([[0, 1, 2, FIRST_QUESTION, FIRST_QUESTION + 1]])
    asks = [[1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]
    expected = {
        View.FULL: [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], *asks],
        View.SYSTEM: [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], *asks],
        View.BARE: [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], *asks],
    }
    for view, visible in expected.items():
        assert (attention_mask(segments, view)[0, 0] == 0).int().tolist() == visible


def test_hints_stand_where_the_story_says() -> None:
    for task in ("list", "hop", "chain"):
        story = TASKS[task].write(random.Random(3), False, 4)
        row = Packer(TOKENIZER).row(random.Random(1), [Part(task, story, [])])
        assert len(row.hints) == len(story.hints) > 4
        for hint, (_, place, token) in zip(story.hints, row.hints, strict=True):
            assert TOKENIZER.decode(row.ids[: place + 1]).endswith(hint.at)
            assert hint.tells.startswith(TOKENIZER.decode([token]).strip())
