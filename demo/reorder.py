"""The passages of an earlier prompt in another order, one of them replaced: a prefix cache has
nothing of them, stored KV has the rest."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from demo.client import Client
from demo.questions import DemoQuestion
from demo.report import say
from demo.scenario import FULL, ask, single_facts


def reorder(
    console: Console, client: Client, titles: Mapping[str, str], first: DemoQuestion
) -> None:
    """Asks `first` until a prefix cache holds its prompt, then about another of its passages, over
    four of them and a new one. `titles` are the documents', by id."""
    before, again = (ask(client, first.question, FULL, prefix_cache=True) for _ in range(2))
    held = dict.fromkeys(before.cited)
    others = [page for page in held if page not in first.documents]
    known = {page: q.question for q in single_facts() for page in q.documents if page in others}
    other = next(iter(known), others[0])
    question = known.get(other, f"What is the capital of {titles[other]}?")
    gone = next(page for page in others if page != other)
    new = next(page for page in titles if page not in held)
    pages = [new, *(page for page in held if page != gone)]
    full = ask(client, question, FULL, documents=pages, prefix_cache=True)
    ours = ask(client, question, None, documents=pages)
    for name, asked, answer in (("first", first.question, before), ("now", question, full)):
        order = ", ".join(titles[page] for page in answer.cited)
        say(console, f"{name:5} “{asked}” {order}")
    for name, source, answer in (
        ("full prefill, the first prompt again", "a prefix cache", again),
        ("full prefill, now", "a prefix cache", full),
        ("kvstitch, now", "stored passages", ours),
    ):
        reused = f"{answer.cached_tokens} of {answer.prompt_tokens} tokens from {source}"
        say(console, f"{name:36}  first word {answer.ttft:5.2f} s, {reused}")
    same = "kvstitch the same" if ours.text == full.text else f"kvstitch: {ours.text}"
    say(console, f"{full.text} ({same})")
