"""Forms that answers must have: made into grammars, and what a grammar cannot hold checked later.

All of it is done in processes with limits, by two queues: what takes long waits only for its like.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from service.errors import InvalidRequest
from service.gateway.schemas.answer import GenerateResponse
from service.gateway.schemas.generate import MAX_GRAMMAR_CHARS, Guided
from service.grammars.forms import Form, WrittenForm
from service.grammars.limits import MAX_QUICK, MAX_SLOW
from service.grammars.processes import GrammarProcesses, TakesTooMuch

REMEMBERED_FORMS = 256


class AnswerForms:
    """The forms of one gateway's answers.

    Args:
        model: Folder with the model's tokenizer.json.
    """

    def __init__(self, model: Path) -> None:
        self._processes = GrammarProcesses(model / "tokenizer.json")
        self._quick = ThreadPoolExecutor(MAX_QUICK, "form")
        self._slow = ThreadPoolExecutor(MAX_SLOW, "slow-form")
        self._remembered: OrderedDict[str, WrittenForm] = OrderedDict()

    async def written(self, guided: Guided | None) -> WrittenForm | None:
        """Return the grammar of what an answer must be, and what it cannot hold; None for None.

        Raises:
            InvalidRequest: It is not valid, cannot be held, or takes too much time or memory.
        """
        if guided is None:
            return None
        form = form_of(guided)
        key = json.dumps(asdict(form))
        if form.kind == "json_schema" and len(key) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(
                f"guided.json_schema has {len(key)} characters, the limit is {MAX_GRAMMAR_CHARS}: "
                "send a shorter one",
                field="guided.json_schema",
            )
        if (known := self._remembered.pop(key, None)) is None:
            known = await self._write(form)
        self._remembered[key] = known
        while len(self._remembered) > REMEMBERED_FORMS:
            self._remembered.popitem(last=False)
        return known

    async def _write(self, form: Form) -> WrittenForm:
        loop = asyncio.get_running_loop()
        field = f"guided.{form.kind}"
        try:
            try:
                return await loop.run_in_executor(
                    self._quick, lambda: self._processes.write(form, quickly=True)
                )
            except TakesTooMuch:
                return await loop.run_in_executor(self._slow, self._processes.write, form)
        except ValueError as error:
            raise InvalidRequest(
                f"{field} is not valid or not supported: {error}", field=field
            ) from error

    async def check(
        self, guided: Guided | None, form: WrittenForm | None, result: GenerateResponse
    ) -> None:
        """Add to the warnings what of its schema an answer was not held to, and whether it matches.

        Args:
            guided: What the answer had to be.
            form: As it was held.
            result: The whole answer.
        """
        if guided is None or form is None or not form.unheld:
            return
        what = "; ".join(form.unheld)
        if guided.json_schema is None or result.finish_reason != "stop":
            result.warnings.append(f"the answer was not held to {what}")
            return
        fault = await asyncio.get_running_loop().run_in_executor(
            self._quick, self._processes.fault, guided.json_schema, result.text
        )
        said = "matches the schema" if fault is None else f"does not match the schema: {fault}"
        result.warnings.append(f"the answer was not held to {what}; it was checked, and {said}")

    def close(self) -> None:
        """End all processes and threads."""
        self._quick.shutdown(cancel_futures=True)
        self._slow.shutdown(cancel_futures=True)
        self._processes.close()


def form_of(guided: Guided) -> Form:
    """Return the form that a request's `guided` asks for."""
    return Form(
        guided.kind,
        getattr(guided, guided.kind),
        strict=guided.strict,
        schemas=guided.schemas,
        strict_schemas=guided.strict_schemas,
    )
