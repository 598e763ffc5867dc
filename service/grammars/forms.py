"""Forms of answers, as requests ask for them, written as grammars in llguidance's form."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from kvstitch.service.grammars.json_schema import held

# Compact: with blanks allowed, small models write little else.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_ERROR_CHARS = 300
_MARK = re.compile(r'@("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True)
class Form:
    """What an answer must be."""

    kind: str  # `json_schema`, `json_object`, `regex`, `choice` or `grammar`
    value: Any  # of that kind
    strict: bool = False  # whether a schema that cannot be held in full is refused
    # Of a grammar, those that stand in it as `%json @NAME`, by name. In such a one `@"TEXT"` is an
    # added token of this name, if there is one, and else the text.
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Names of those that are refused where they cannot be held in full.
    strict_schemas: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WrittenForm:
    """A form's grammar, in llguidance's form; `unheld` are the keywords of its schemas that answers
    may violate, and where they stand."""

    grammar: str
    unheld: list[str] = field(default_factory=list)


def written(form: Form, tokenizer: LLTokenizer) -> WrittenForm:
    """Write a form as a grammar."""
    match form.kind:
        case "json_object":
            return _of_schema({"type": "object"}, strict=False)
        case "json_schema":
            return _of_schema(form.value, strict=form.strict)
        case "regex":
            return WrittenForm(LLMatcher.grammar_from_regex(form.value))
        case "choice":
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in form.value)
            return WrittenForm(LLMatcher.grammar_from_lark(f"start: {texts}"))
    if not form.schemas:
        return WrittenForm(LLMatcher.grammar_from_lark(any_to_lark(form.value)))
    text, unheld = form.value, []
    for name, schema in form.schemas.items():
        try:
            made = _of_schema(schema, strict=name in form.strict_schemas)
        except ValueError as error:
            raise ValueError(f"the schema of {name}: {error}") from error
        rule = json.dumps(json.loads(made.grammar)["grammars"][0]["json_schema"])
        text = text.replace(f"%json @{name}\n", f"%json {rule}\n")
        unheld += [f"{what} of {name}" for what in made.unheld]
    text = _MARK.sub(lambda mark: _token_or_text(mark[1], tokenizer), text)
    return WrittenForm(LLMatcher.grammar_from_lark(text), unheld)


def is_json(grammar: str) -> bool:
    """Whether what a grammar allows is JSON of a schema, or a call with such arguments."""
    return "json_schema" in grammar[:40] or ": %json {" in grammar


def _token_or_text(quoted: str, tokenizer: LLTokenizer) -> str:
    ids = tokenizer.tokenize_str(json.loads(quoted), parse_special=True)
    if len(ids) == 1 and tokenizer.is_special_token(ids[0]):
        return f"<[{ids[0]}]>"
    return quoted


def _of_schema(schema: Any, *, strict: bool) -> WrittenForm:
    if not isinstance(schema, dict):
        raise ValueError("a schema must be an object")
    try:
        rules, unheld = held(schema)
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        # The library says best what is wrong with a schema that is none.
        fault = LLMatcher.validate_grammar(_grammar(schema, lenient=True))
        why = f"a keyword has a value of another type than it should: {error}"
        raise ValueError(short(fault) or why) from None
    if rules is False:
        raise ValueError("no JSON matches it")
    rules = rules if isinstance(rules, dict) else {}
    grammar = _grammar(rules, lenient=False)
    if fault := LLMatcher.validate_grammar(grammar):
        if "nsatisfiable" in fault:
            raise ValueError(f"no JSON matches it: {short(fault)}")
        grammar = _grammar(rules, lenient=True)
        if LLMatcher.validate_grammar(grammar):
            raise ValueError(short(fault))
        unheld.append(short(fault))
    if strict and unheld:
        raise ValueError(
            f"strict: answers cannot be held to {'; '.join(unheld)}: leave that out, or send "
            "strict: false to have it checked afterwards"
        )
    return WrittenForm(grammar, unheld)


def _grammar(schema: dict[str, Any], *, lenient: bool) -> str:
    options = {**_COMPACT, "lenient": lenient}
    return LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": options}))


def short(fault: str) -> str:
    """Return what an error says, which may go on with the whole grammar: its first line, and that
    of a regular expression's own error."""
    lines = [line.strip() for line in fault.splitlines() if line.strip()]
    said = lines[:1] + [line for line in lines[1:] if line.startswith("error:")][:1]
    return " ".join(line[:MAX_ERROR_CHARS] for line in said)
