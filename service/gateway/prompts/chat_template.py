"""Renders the chat template of a model folder, as transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from service.errors import ModelRefused
from service.gateway.prompts.model_folder import ModelFolder
from service.prompt import FORMAT_FILE

if TYPE_CHECKING:
    from jinja2 import Template

# Some templates write today's date. S must not change from day to day, because stored chunks may
# depend on it. This is the date that such templates fall back to.
_DATE = datetime(2024, 7, 26)


class ChatTemplate:
    """One template.

    Attributes:
        source: Its text.
    """

    def __init__(self, source: str, folder: ModelFolder) -> None:
        self.source = source
        self._folder = folder

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The text of a conversation with a generation prompt at the end.

        Args:
            messages: As OpenAI writes them; arguments of calls are objects.
            tools: Definitions of the functions that may be called; None: none.

        Raises:
            ModelRefused: The template has an error, or refuses these messages.
        """
        from jinja2 import TemplateError

        specials = {
            name: self._folder.special_text(name) or ""
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        try:
            return self._compiled.render(
                messages=messages,
                add_generation_prompt=True,
                tools=tools,
                documents=None,
                enable_thinking=False,
                **specials,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ModelRefused(
                f"the chat template of {self._folder.path} cannot be rendered ({error}): write the "
                f"prompt format into {FORMAT_FILE}"
            ) from error

    @cached_property
    def _compiled(self) -> Template:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _DATE.strftime
        return environment.from_string(self.source)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
