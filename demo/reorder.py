"""The passages of an earlier prompt in another order, one of them replaced: a prefix cache has
nothing of them, stored KV has the rest."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from demo.client import Answer, Client
from demo.scenario import FULL, ask, single_facts


def reorder(
    console: Console, client: Client, titles: Mapping[str, str], earlier: Answer, about: str
) -> None:
    """Asks about another of the passages than `about`, over four of them and a new one.

    Args:
        titles: Of the documents, by id.
        earlier: The answer whose prompt held the passages.
        about: The document that it was about.
    """
    cited = list(dict.fromkeys(earlier.cited))
    others = [page for page in cited if page != about]
    known = {page: q.question for q in single_facts() for page in q.documents if page in others}
    other = next(iter(known), others[0])
    question = known.get(other, f"What is the capital of {titles[other]}?")
    gone = next(page for page in others if page != other)
    new = next(page for page in titles if page not in cited)
    before = ask(client, question, FULL, documents=cited, prefix_cache=True)
    again = ask(client, question, FULL, documents=cited, prefix_cache=True)
    pages = [new, *(page for page in cited if page != gone)]
    full = ask(client, question, FULL, documents=pages, prefix_cache=True)
    ours = ask(client, question, None, documents=pages)
    console.print(f"“{question}”", style="bold", highlight=False)
    for name, answer in (("before", before), ("now", full)):
        order = ", ".join(titles[page] for page in answer.cited)
        console.print(f"passages {name:6} {order}", highlight=False)
    for name, source, answer in (
        ("full prefill, the first prompt again", "a prefix cache", again),
        ("full prefill, now", "a prefix cache", full),
        ("kvstitch, now", "stored passages", ours),
    ):
        reused = f"{answer.cached_tokens} of {answer.prompt_tokens} tokens from {source}"
        console.print(f"{name}: first word {answer.ttft:.2f} s, {reused}", highlight=False)
    console.print(full.text, highlight=False)
    console.print("the same text" if ours.text == full.text else ours.text, highlight=False)
