"""What is known of a form is not found out again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvstitch.service.errors import InvalidRequest, Overloaded
from kvstitch.service.gateway.answers.forms import AnswerForms
from kvstitch.service.gateway.schemas.generate import Guided
from kvstitch.service.grammars.forms import Form, WrittenForm
from kvstitch.service.grammars.processes import GrammarProcesses, TooBusy
from tests.service.grammars.forms import TOKENIZER
from tests.service.grammars.test_limits import MULTIPLES


class Counting(GrammarProcesses):
    """Counts what is written, and may be too busy."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER)
        self.asked: list[str] = []
        self.busy = False

    def write(self, form: Form, *, quickly: bool = False) -> WrittenForm:
        self.asked.append("quickly" if quickly else "slowly")
        if self.busy:
            raise TooBusy("too busy")
        return super().write(form, quickly=quickly)


@asynccontextmanager
async def answer_forms() -> AsyncIterator[tuple[AnswerForms, Counting]]:
    processes = Counting()
    forms = AnswerForms(processes)
    try:
        yield forms, processes
    finally:
        await asyncio.to_thread(forms.close)


async def test_a_form_that_was_written_is_remembered() -> None:
    async with answer_forms() as (forms, processes):
        made = await forms.written(Guided(choice=["yes", "no"]), "a")
        assert await forms.written(Guided(choice=["yes", "no"]), "b") is made
        assert processes.asked == ["quickly"]


@pytest.mark.parametrize(
    ("guided", "why", "asked"),
    [
        (Guided(json_schema={"anyOf": MULTIPLES}), "to compile", ["quickly", "slowly"]),
        (Guided(regex="("), "not valid", ["quickly"]),
    ],
)
async def test_one_that_is_refused_is_tried_once(
    guided: Guided, why: str, asked: list[str]
) -> None:
    """Quickly, then slowly where it takes long, and never again: the same one costs nothing."""
    async with answer_forms() as (forms, processes):
        for _ in range(3):
            with pytest.raises(InvalidRequest, match=why) as refused:
                await forms.written(guided, "a")
            assert refused.value.field == f"guided.{guided.kind}"
        assert processes.asked == asked


async def test_a_busy_machine_says_nothing_about_the_form() -> None:
    async with answer_forms() as (forms, processes):
        processes.busy = True
        with pytest.raises(Overloaded) as refused:
            await forms.written(Guided(choice=["a"]), "a")
        assert refused.value.retry_after_s
        processes.busy = False
        assert await forms.written(Guided(choice=["a"]), "a")


async def test_a_process_that_others_have_ended_is_not_held_against_it_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvstitch.service.gateway.answers.forms.REFUSED_FOR_S", -1.0)
    async with answer_forms() as (forms, processes):
        for _ in range(2):
            with pytest.raises(InvalidRequest):
                await forms.written(Guided(regex="("), "a")
        assert processes.asked == ["quickly", "quickly"]
