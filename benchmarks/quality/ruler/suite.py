"""RULER's tasks by name, and their samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.quality.ruler import counting, qa, vt
from benchmarks.quality.ruler.draft import Draft, Drafter, Setting, fitting
from benchmarks.quality.ruler.niah import Niah
from benchmarks.quality.ruler.words import ENGLISH, Words
from benchmarks.quality.sample import TextSample
from benchmarks.quality.tasks.essays import Haystack, built_in
from service.errors import InvalidRequest


@dataclass(frozen=True)
class Task:
    prepare: Callable[[Setting], Drafter]
    answer_tokens: int
    metric: str = "string_match_all"


def _niah(task: Niah) -> Task:
    return Task(task.prepare, 128)


TASKS = {
    "niah_single_1": _niah(Niah("noise")),
    "niah_single_2": _niah(Niah("essay")),
    "niah_single_3": _niah(Niah("essay", value="uuid")),
    "niah_multikey_1": _niah(Niah("essay", keys=4)),
    "niah_multikey_2": _niah(Niah("needles")),
    "niah_multikey_3": _niah(Niah("needles", key="uuid", value="uuid")),
    "niah_multivalue": _niah(Niah("essay", values=4)),
    "niah_multiquery": _niah(Niah("essay", keys=4, queries=4)),
    "vt": Task(vt.prepare, 30),
    "cwe": Task(counting.prepare_cwe, 120),
    "fwe": Task(counting.prepare_fwe, 50),
    "qa_1": Task(partial(qa.prepare, qa.SQUAD, qa.squad), 32, "string_match_part"),
    "qa_2": Task(partial(qa.prepare, qa.HOTPOTQA, qa.hotpotqa), 32, "string_match_part"),
}


def tasks() -> tuple[str, ...]:
    return tuple(TASKS)


def drafts(task: str, setting: Setting, *, samples: int, seed: int) -> Iterator[Draft]:
    """Drafts of the samples.

    Needles, names and answers depend only on seed, task and number, so they are the same at every
    length.
    """
    draw = TASKS[task].prepare(setting)
    return (draw(n, random.Random(f"{seed}/{task}/{n}")) for n in range(samples))


def generate(
    task: str,
    *,
    count: Callable[[str], int],
    length: int,
    samples: int,
    seed: int = 42,
    words: Words = ENGLISH,
    haystack: Haystack | None = None,
    data: Path | None = None,
) -> Iterator[TextSample]:
    """Samples that fill a length: the largest prompts that fit with their answers.

    Asking for more samples keeps the first ones.

    Args:
        task: name of the task.
        count: number of tokens of a text.
        length: tokens of prompt and answer, without a chat template.
        samples: how many.
        seed: of the random numbers.
        words: for keys and lists.
        haystack: of the tasks with essays; by default the built-in text.
        data: folder with the files that qa_1 and qa_2 are made from.

    Returns:
        Samples; their details have the length, the tokens of the prompt and the size.

    Raises:
        InvalidRequest: there is no such task, a file or words are missing, or the length is too
            short.
    """
    if task not in TASKS:
        raise InvalidRequest(f"no task {task!r}; there are {', '.join(TASKS)}", field="task")
    answer_tokens = TASKS[task].answer_tokens
    setting = Setting(count, length, answer_tokens, words, haystack or built_in(), data)
    made = drafts(task, setting, samples=samples, seed=seed)
    return (_sample(task, number, draft, setting) for number, draft in enumerate(made))


def _sample(task: str, number: int, draft: Draft, setting: Setting) -> TextSample:
    size = fitting(draft, setting.count, setting.length - setting.answer_tokens)
    details: dict[str, str | float] = {
        "length": setting.length,
        "tokens": draft.tokens(size, setting.count),
        "size": size,
    }
    if draft.haystack:
        details["haystack"] = draft.haystack
    return TextSample(
        suite="ruler",
        task=task,
        number=number,
        instruction=draft.instruction,
        context=draft.context(size),
        question=draft.question,
        references=draft.references,
        metric=TASKS[task].metric,
        answer_tokens=setting.answer_tokens,
        answer_prefix=draft.answer_prefix,
        details=details,
    )
