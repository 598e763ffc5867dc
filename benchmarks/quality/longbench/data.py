"""Samples from the official files, one JSON object a line, named `<task>.jsonl`.

    {"input": "…", "context": "…", "answers": ["…"], "length": 9149, "dataset": "hotpotqa",
     "language": "en", "all_classes": null, "_id": "…"}

The files are not downloaded: a folder with them must be given.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from benchmarks.quality.longbench.tasks import E_TASKS, TASKS, Task
from benchmarks.quality.sample import TextSample
from service.errors import InvalidRequest

SOURCE = "https://huggingface.co/datasets/THUDM/LongBench"


class _Row(msgspec.Struct):
    input: str
    context: str
    answers: list[str]
    length: int
    dataset: str
    language: str
    all_classes: list[str] | None
    id: str = msgspec.field(name="_id")


def load(folder: Path, task: str, *, samples: int | None = None) -> Iterator[TextSample]:
    """The first `samples` samples of the task's file in `folder`, or all.

    Returns:
        Samples; the file's other fields, such as `length`, are in their details.

    Raises:
        InvalidRequest: the task is unknown, its file is missing or a line is not as expected.
    """
    name = task.removesuffix("_e") if task in E_TASKS else task
    if name not in TASKS:
        raise InvalidRequest(
            f"LongBench has no task {task!r} here: take one of {', '.join([*TASKS, *E_TASKS])}",
            field="task",
        )
    file = folder / f"{task}.jsonl"
    if not file.is_file():
        raise InvalidRequest(
            f"{file} is missing: unpack data.zip of {SOURCE} and give the folder of its files",
            field="folder",
        )
    return _samples(file, task, TASKS[name], samples)


def _samples(file: Path, name: str, task: Task, samples: int | None) -> Iterator[TextSample]:
    instruction, _, question = task.prompt.partition("{context}")
    with file.open("rb") as lines:
        for number, line in enumerate(islice(lines, samples)):
            row = _row(file, number, line, classes=task.metric.startswith("classification"))
            yield TextSample(
                suite="longbench",
                task=name,
                number=number,
                instruction=instruction,
                context=row.context,
                question=question.replace("{input}", row.input),
                references=tuple(row.answers),
                metric=task.metric,
                answer_tokens=task.answer_tokens,
                stop=task.stop,
                chat=task.chat,
                details={
                    "length": row.length,
                    "dataset": row.dataset,
                    "language": row.language,
                    "id": row.id,
                },
                classes=tuple(row.all_classes or ()),
            )


def _row(file: Path, number: int, line: bytes, *, classes: bool) -> _Row:
    try:
        row = msgspec.json.decode(line, type=_Row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad(file, number, str(error)) from error
    if not row.answers:
        raise _bad(file, number, "it has no answers")
    if classes and not row.all_classes:
        raise _bad(file, number, "a classification needs all_classes")
    return row


def _bad(file: Path, number: int, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{file}, line {number + 1}: {why}; the official file is in data.zip of {SOURCE}",
        field="folder",
    )
