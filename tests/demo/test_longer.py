"""Stories joined to long contexts: filled, without shared names, every question still in place."""

import random
import re

from demo.language.grammar import open_names
from demo.language.tasks import TASKS
from demo.language.vocabulary import build_tokenizer
from demo.training.longer import WHOLE, long_parts
from demo.training.rows import FIRST_QUESTION, Packer, Part
from demo.training.samples import collate

TOKENIZER = build_tokenizer()
PACKER = Packer(TOKENIZER)


def _parts(seed: int, target: int) -> list[Part]:
    rng = random.Random(seed)

    def draw() -> Part:
        task = rng.choice(list(TASKS))
        story = TASKS[task].write(rng, False, 4)
        return Part(task, story, list(story.asked[:3]))

    return long_parts(draw, PACKER.tokens, target)


def _length(parts: list[Part]) -> int:
    return sum(PACKER.tokens(part.story.context) for part in parts)


def test_contexts_are_filled_and_not_above() -> None:
    for seed in range(4):
        length = _length(_parts(seed, 2000))
        assert 1500 < length <= 2000


def test_no_target_is_one_story() -> None:
    assert len(_parts(0, 0)) == 1


def test_stories_share_no_name_and_no_question_of_the_whole() -> None:
    names = set(open_names(False))
    parts = _parts(1, 3500)
    assert len(parts) > 8
    seen: set[str] = set()
    for part in parts:
        own = names & set(re.findall(r"\w+", part.story.context))
        assert not own & seen
        seen |= own
    for tasks in WHOLE:
        assert sum(part.task in tasks for part in parts) <= 1


def test_a_row_of_several_stories_keeps_tasks_answers_and_links_apart() -> None:
    parts = _parts(2, 1500)
    row = PACKER.row(random.Random(0), parts)
    asked = [(part.task, each) for part in parts for each in part.asked]
    assert row.tasks == [task for task, _ in asked]
    for segment, (_, each) in enumerate(asked, FIRST_QUESTION):
        ids = [i for i, s in zip(row.ids, row.segments, strict=True) if s == segment]
        assert TOKENIZER.decode(ids).strip().endswith(f"Answer: {each.answer}")
    assert max(row.positions) < 1600
    owners = [row.segments[place] for _, place, _ in row.links]
    assert len(set(owners)) > 5
    assert all(row.segments[source] < FIRST_QUESTION for _, _, source in row.links)
    batch = collate([row])
    assert batch.ids.shape[1] % 8 == 0
