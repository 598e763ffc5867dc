"""Builds the prompts of one model, and turns its answers back into text."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kvstitch.retriever import Chunk, ChunkSettings
from kvstitch.service.errors import PromptTooLong
from kvstitch.service.gateway.prompts.conversation import conversation_format, turn_places
from kvstitch.service.gateway.prompts.detokenizer import AnswerText
from kvstitch.service.gateway.prompts.model_folder import ModelFolder, load_format, without_bos
from kvstitch.service.gateway.prompts.tokenizer import SegmentIdCache, ServingTokenizer
from kvstitch.service.gateway.prompts.tool_conversation import WrittenText, tool_conversation
from kvstitch.service.gateway.schemas.generate import GenerateRequest
from kvstitch.service.gateway.tool_calls.tools import ToolForm, ToolSet
from kvstitch.service.messages.requests import ChunkTokens
from kvstitch.service.prompt import Turn, system_ids
from kvstitch.service.settings import Settings

CHARS_PER_TOKEN_ESTIMATE = 3
MAX_CHARS_PER_TOKEN = 32
"""A text with more characters per token of context cannot fit, and is refused unencoded."""
CONTEXT_TOKENS = 4
"""Of a text that is continued: by these its tokens are decoded as they stand within it."""


class PromptBuilder:
    """Turns chunks and conversations into segments of token ids.

    Args:
        path: The model folder.
        settings: Override the folder's chunk_tokens, top_k and prefix_mode where they are set.

    Raises:
        ModelRefused: The tokenizer or the prompt format cannot be used.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        folder = ModelFolder(path)
        fmt = load_format(folder)
        self.tokenizer = ServingTokenizer(folder, bos=fmt.bos)
        overrides: dict[str, Any] = {
            name: value
            for name in ("chunk_tokens", "top_k", "prefix_mode")
            if (value := getattr(settings, name)) is not None
        }
        self.format = replace(without_bos(fmt, self.tokenizer.bos_text), **overrides)
        self.model = settings.model_name
        self.created = folder.created
        self.end_ids = folder.end_ids
        self.system = system_ids(self.format, self.tokenizer)
        self._conversations = conversation_format(self.format, folder)
        self._with_tools = tool_conversation(
            self._conversations, folder, self.tokenizer.added_texts, settings.tool_form
        )
        self._segment_ids = SegmentIdCache()

    @property
    def prefix_mode(self) -> str:
        return self.format.prefix_mode

    def chunking(self) -> ChunkSettings:
        """Return how the retriever must cut documents so that their rendered segments fit."""
        bos_tokens = self.format.prefix_mode == "bos_keep" and self.tokenizer.bos is not None
        return ChunkSettings(
            tokenizer=self.tokenizer,
            max_tokens=self.format.chunk_tokens - bos_tokens,
            render=self.format.render_document,
        )

    def segment(self, chunk: Chunk) -> list[int]:
        """Return the token ids of a chunk, the same when it is precomputed and at every request."""
        encode = partial(self.document_ids, chunk.title, chunk.text)
        if chunk.chunk_id < 0:  # of an inline document: the id means another text next time
            return encode()
        return self._segment_ids.get(chunk.chunk_id, chunk.revision, encode)

    def document_ids(self, title: str, text: str) -> list[int]:
        """Return the token ids of a chunk with this title and text."""
        ids = self.tokenizer.encode_text(self.format.render_document(title, text))
        bos = self.tokenizer.bos
        return [bos, *ids] if self.format.prefix_mode == "bos_keep" and bos is not None else ids

    @property
    def tool_form(self) -> ToolForm:
        """The form in which the model writes calls of tools."""
        return self._with_tools.form

    def encode_question(
        self, turns: Sequence[Turn], tools: ToolSet | None = None, *, begin_answer: bool = True
    ) -> list[int]:
        """Return Q of a normalised conversation, as token ids.

        The words that the format begins answers with follow, unless tools may be called: an answer
        may begin with a call. Raises InvalidRequest if the chat template cannot write it.
        """
        written = self._write_template(turns, tools)
        template = written.template
        if begin_answer and tools is None and turns[-1].role != "assistant":
            template += self.format.answer_prefix
        return self.tokenizer.encode_template(template, **written.texts)

    def history_tokens(
        self, turns: Sequence[Turn], tools: ToolSet | None, question: Sequence[int]
    ) -> int:
        """Return how many first tokens of Q are the turns before the last one, of a conversation in
        which the assistant has spoken; `question` is what `encode_question` returned for it."""
        written = self._write_template(turns, tools)
        places = turn_places(written.template)
        # What is to be done now, and what the answer continues, stand behind the last turn.
        follows = turns[-1].role in ("system", "assistant") and len(places) > 1
        answered = places[-2 if follows else -1]
        before = written.template[: written.template.find(f"{{t{answered}}}")]
        ids = self.tokenizer.encode_template(before, **written.texts)
        # The tokens at the border may have been joined with what follows.
        pairs = enumerate(zip(ids, question, strict=False))
        return next((i for i, (own, whole) in pairs if own != whole), min(len(ids), len(question)))

    def _write_template(self, turns: Sequence[Turn], tools: ToolSet | None) -> WrittenText:
        """Return the template of Q, and the texts in it."""
        if tools is not None or any(turn.calls or turn.role == "tool" for turn in turns):
            return self._with_tools.question(turns, tools)
        template = self._conversations.template(tuple(turn.role for turn in turns))
        return WrittenText(template, {f"t{n}": turn.text for n, turn in enumerate(turns)})

    def encode_alone(self, turns: Sequence[Turn], tools: ToolSet | None) -> list[int] | None:
        """Return the whole prompt, to which no S belongs, of a conversation with tools and without
        documents; None where the prompt is S and Q as usual. Raises as `encode_question`."""
        if tools is None and not any(turn.calls or turn.role == "tool" for turn in turns):
            return None
        written = self._with_tools.alone(turns, tools)
        if written is None:
            return None
        ids = self.tokenizer.encode_template(written.template, **written.texts)
        bos = self.tokenizer.bos
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def check_length(
        self,
        documents: Sequence[ChunkTokens],
        question: list[int],
        *,
        max_context: int,
        alone: bool = False,
        inline: bool = False,
    ) -> int:
        """Count the tokens of a prompt. `alone`: the question is the whole prompt, from
        `encode_alone`; `inline`: the documents came with the request, there is no top_k to lower.
        Raises PromptTooLong: the context would have no room for even one token of the answer."""
        system = 0 if alone else len(self.system)
        tokens = system + sum(len(d.ids) for d in documents) + len(question)
        if tokens < max_context:
            return tokens
        field = "question" if len(question) >= max_context else "top_k"
        remedy = (
            f"lower top_k (now {len(documents)}) or shorten the question ({len(question)} tokens)"
        )
        if inline:
            remedy, field = "send less text in inline_documents", "inline_documents"
        sizes = f"{context_length(max_context)} and the prompt has {tokens}"
        raise PromptTooLong(f"{sizes}: {remedy}", field=field)

    def estimate(self, question_chars: int, top_k: int, inline_chars: int) -> int:
        """Return about how many tokens a prompt will have, known before any work is done."""
        question = question_chars // CHARS_PER_TOKEN_ESTIMATE
        documents = top_k * self.format.chunk_tokens + inline_chars // CHARS_PER_TOKEN_ESTIMATE
        return len(self.system) + documents + question

    def answer_text(
        self, request: GenerateRequest, question: Sequence[int] = (), *, begun: bool = True
    ) -> AnswerText:
        """Return what collects the text of the answer; it may continue the ids of `question`.
        begun: whether the prompt begins it, where it may."""
        # An answer of a given form ends where its form says, and the prompt has not begun it.
        free, tools = request.guided is None, request.tools
        goes_on = request.continue_final_message
        own = self.format.stop if free and not request.ignore_eos else ()
        decode = self.tokenizer.decode if free else self.tokenizer.decode_bytes
        return AnswerText(
            decode if tools is None else self.tokenizer.decoder(self.tool_form.opens),
            self.end_ids,
            [*own, *request.stop] if free else (),
            prefix=self.format.answer_prefix
            if begun and free and tools is None and not goes_on
            else "",
            min_tokens=request.min_tokens,
            before=question[-CONTEXT_TOKENS:] if goes_on else (),
            exact=not free,
            piece=self.tokenizer.piece,
        )


def context_length(max_context: int) -> str:
    """Return how errors name the model's context: clients look for these words of OpenAI's."""
    return f"this model's maximum context length is {max_context} tokens, an answer included,"
