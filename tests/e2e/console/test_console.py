"""The console's Ask tab in a browser: it shows what the API says, streams, compares, and can be
used without a mouse and without eyes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.console.browser import Console, tallies
from tests.e2e.service import Service

pytestmark = pytest.mark.exhaustive

QUESTION = "Which colour does the family wear?"
STOP_WHEN_IT_HAS_BEGUN = """() => new MutationObserver((_, observer) => {
    const answers = [...document.querySelectorAll(".answer")];
    if (!answers.some(each => each.textContent.length >= 5)) return;
    observer.disconnect();
    document.getElementById("stop").click();
}).observe(document.body, {subtree: true, childList: true, characterData: true})"""
SOURCES = ("memory", "ssd", "redis", "s3", "recomputed", "cold", "question")


def expected(done: dict[str, Any]) -> list[dict[str, int]]:
    """Counts per segment, from the report alone: not from what the page is made of."""
    out = []
    cache = done["cache"]
    for segment in (cache["system"], *cache["documents"]):
        counts = dict.fromkeys(SOURCES, 0) | {"tokens": segment["tokens"]}
        if segment["tier"] == "cold":
            counts["cold"] = segment["tokens"]
        else:
            counts["recomputed"] = segment["rows_recomputed"]
            counts[segment["tier"]] = segment["tokens"] - segment["rows_recomputed"]
        out.append(counts)
    asked = done["usage"]["prompt_tokens"] - sum(counts["tokens"] for counts in out)
    out.append(dict.fromkeys(SOURCES, 0) | {"tokens": asked, "question": asked})
    return out


def check_counts(result: Any, done: dict[str, Any]) -> None:
    """Table and marked tokens of one answer against its report."""
    *shown, total = tallies(result).values()
    evicted = [counts.pop("evicted") for counts in shown]
    assert shown == expected(done)
    prompt = done["usage"]["prompt_tokens"]
    assert total.pop("evicted") == sum(evicted) == round((1 - done["cache"]["coverage"]) * prompt)
    assert total == {name: sum(counts[name] for counts in shown) for name in total}
    rows = result.locator(".segment")
    assert rows.count() == len(shown)
    for number, counts in enumerate(shown):
        row = rows.nth(number)
        marked = {name: row.locator(f".tokens .t.{name}").count() for name in SOURCES}
        assert marked == {name: counts[name] for name in SOURCES}
        assert row.locator(".tokens .t.evicted").count() == evicted[number]


@pytest.mark.parametrize("method", ["a3", "cacheblend", "infoflow", "pie", "vanilla"])
def test_counts_on_the_page_are_the_apis(console: Console, method: str) -> None:
    page = console.ready()
    console.ask(QUESTION, method=method)
    (done,) = console.done()
    assert done["fusion"]["method"] == method
    assert console.panel.get_by_role("combobox", name="Method").input_value() == method
    result = page.locator(".result")
    check_counts(result, done)
    assert result.locator(".answer").text_content() == done["text"]
    for passage, citation in enumerate(done["citations"], 1):
        text = result.locator(".segment").nth(passage).locator(".tokens").text_content()
        assert text is not None and citation["text"] in text.replace("↵", "\n")
    stages = result.locator(".waterfall tr[data-stage]")
    names = [stages.nth(i).get_attribute("data-stage") for i in range(stages.count())]
    # Beside a full prefill stands no other one.
    assert names[-1] == ("ttft" if method == "vanilla" else "full")
    assert {"embed", "retrieve", "queue", "load", "prefill", "first_token"} <= set(names)


def test_evicted_tokens_are_shown(console: Console) -> None:
    page = console.ready()
    console.ask(QUESTION, method="a3", eviction="streaming_llm", budget="64")
    (done,) = console.done()
    assert done["cache"]["coverage"] < 1
    check_counts(page.locator(".result"), done)


def test_every_field_reaches_the_service(console: Console) -> None:
    console.ready()
    console.panel.get_by_label("Collection").fill("default")
    console.panel.get_by_label("Retrieval").select_option("sparse")
    console.panel.get_by_label("Missing KV").select_option("as stored")
    console.panel.get_by_label("Exact below").fill("0.25")
    console.panel.get_by_label("Passages").fill("2")
    console.panel.get_by_label("Answer tokens").fill("5")
    console.ask(QUESTION, method="a3", ratio="0.4", eviction="snapkv", budget="77")
    streamed, *dry = console.asked  # one, and another where an answer takes long
    chosen = {
        "question": QUESTION,
        "collection": "default",
        "retrieval": "sparse",
        "cold": "as_stored",
        "exact_below": 0.25,
        "top_k": 2,
        "max_tokens": 5,
        "fusion": {"method": "a3", "ratio": 0.4},
        "eviction": {"method": "snapkv", "budget": 77},
    }
    watched = {"stream": True, "include_text": True, "include_tokens": True}
    assert streamed == {**chosen, **watched}
    assert dry and all(each == {**chosen, "explain": True} for each in dry)
    (done,) = console.done()
    assert len(done["citations"]) == 2 and done["usage"]["completion_tokens"] == 5


def test_the_answer_streams(console: Console) -> None:
    """The text grows on the page, citations stand there before it."""
    page = console.ready()
    page.evaluate(
        """() => {
            window.seen = [];
            new MutationObserver(() => {
                const answer = document.querySelector(".answer");
                if (!answer) return;
                const cited = document.querySelectorAll("#results .citations button").length;
                window.seen.push([answer.textContent, cited, answer.getAttribute("aria-busy")]);
            }).observe(document.getElementById("results"), {
                childList: true, subtree: true, characterData: true,
            });
        }"""
    )
    console.panel.get_by_label("Answer tokens").fill("400")
    console.ask(QUESTION)
    (done,) = console.done()
    seen: list[tuple[str, int, str]] = page.evaluate("window.seen")
    growing = list(dict.fromkeys(text for text, _, busy in seen if busy == "true" and text))
    assert len(growing) > 3
    assert all(done["text"].startswith(text) for text in growing)
    assert growing == sorted(growing, key=len)
    assert all(cited == 3 for text, cited, _ in seen if text)


def test_an_answer_can_be_stopped(console: Console) -> None:
    page = console.ready()
    console.panel.get_by_label("Answer tokens").fill("700")
    page.get_by_label("Question", exact=True).fill(QUESTION)
    # In the page, because a short answer has ended before a test has seen that it began.
    page.evaluate(STOP_WHEN_IT_HAS_BEGUN)
    page.get_by_role("button", name="Ask", exact=True).click()
    console.panel.get_by_text("stopped").wait_for()
    console.wait_for_answers()
    console.ask(QUESTION)  # and the next one is answered
    assert len(console.done()) == 1


def test_two_methods_side_by_side(console: Console) -> None:
    page = console.ready()
    page.get_by_label("Compare with a second method").check()
    console.choose(page.get_by_role("group", name="Method B"), "method", "full_reuse")
    console.ask(QUESTION, method="a3")
    done = console.done()
    assert [answer["fusion"]["method"] for answer in done] == ["a3", "full_reuse"]
    results = page.locator(".result")
    assert results.count() == 2
    for number, answer in enumerate(done):
        check_counts(results.nth(number), answer)
    left, right = (results.nth(i).bounding_box() for i in range(2))
    assert left is not None and right is not None
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
    verdict = "the same answer" if done[0]["text"] == done[1]["text"] else "different answers"
    page.get_by_text(f"A and B gave {verdict}.").wait_for()


def test_no_estimate_stands_beside_what_was_measured(console: Console) -> None:
    """Both are asked by name; the second is the full prefill that the first is compared with."""
    page = console.ready()
    console.ask(QUESTION, method="fastest")
    full = page.locator(".waterfall tr[data-stage=full]")
    assert "≈" in (full.text_content() or "") and "explain" in console.asked[-1]
    page.get_by_label("Compare with a second method").check()
    console.ask(QUESTION, method="balanced")
    chosen = [of["fusion"]["method"] for of in console.asked[2:]]
    assert chosen == ["balanced", "exact"]  # and nothing is asked for an estimate
    assert full.count() == 1
    shown = full.text_content() or ""
    taken = page.locator(".waterfall tr[data-stage=ttft] td.number").last.text_content() or "?"
    assert shown.startswith("Full prefill (measured)") and shown.endswith(taken)
    assert "≈" not in (page.locator("#results").text_content() or "")
    assert [of["fusion"]["method"] for of in console.done()][1:] == ["question_scout", "vanilla"]
    console.ask(QUESTION, method="fastest")  # it stays known for this question
    assert "≈" not in (page.locator("#results").text_content() or "")


def test_an_error_is_said(console: Console) -> None:
    page = console.ready()
    console.panel.get_by_label("Collection").fill("x" * 200)
    console.ask(QUESTION)
    assert "collection" in (page.locator(".result .state").text_content() or "")
    # The browser notes the refusal by itself; nothing else may be noted.
    assert console.wrong and all("status of 4" in line for line in console.wrong)
    console.wrong.clear()


def test_without_a_mouse(console: Console) -> None:
    """Tabs by arrows, the question sent by Enter, a citation opened, tokens gone through."""
    page = console.ready()
    keyboard = page.keyboard

    def focused() -> str:
        text: str = page.evaluate("document.activeElement.id || document.activeElement.textContent")
        return text

    page.evaluate("document.activeElement.blur()")
    keyboard.press("Tab")
    assert focused() == "Skip to the panel"
    keyboard.press("Tab")
    assert focused() == "tab-ask"
    for key, tab in (("ArrowRight", "documents"), ("End", "settings"), ("ArrowRight", "chat")):
        keyboard.press(key)
        assert focused() == f"tab-{tab}"
        page.get_by_role("tabpanel").wait_for()
        assert page.get_by_role("tabpanel").get_attribute("id") == f"panel-{tab}"
    keyboard.press("ArrowRight")
    page.get_by_label("Question", exact=True).focus()
    keyboard.type(QUESTION)
    keyboard.press("Enter")
    page.locator(".tallies").wait_for(state="attached")
    console.wait_for_answers()
    tokens_shown = page.locator(".prompt .rows")
    assert not tokens_shown.is_visible()  # until they are asked for
    chip = page.get_by_role("button", name="Show passage 2")
    chip.focus()
    keyboard.press("Enter")
    assert tokens_shown.is_visible()
    row = page.locator(".segment").nth(2)
    assert "lit" in (row.get_attribute("class") or "")
    assert chip.get_attribute("aria-pressed") == "true"
    assert page.evaluate("document.activeElement.getAttribute('role')") == "group"
    (done,) = console.done()
    tokens = done["cache"]["documents"][1]["tokens"]
    scores = done["cache"]["tokens"]["documents"][1]["scores"]
    for key, number in (("ArrowRight", 1), ("ArrowRight", 2), ("End", tokens), ("Home", 1)):
        keyboard.press(key)
        told = page.locator(".detail").text_content() or ""
        assert told.startswith(f"Token {number} of {tokens}: ")
        assert float(told.rpartition("question_scout score ")[2]) == scores[number - 1]


def test_scores_on_hover(console: Console) -> None:
    page = console.ready()
    console.ask(QUESTION, method="cacheblend")
    (done,) = console.done()
    console.open_tokens()
    page.locator(".segment").nth(2).locator(".t").nth(3).hover()
    told, _, score = (page.locator(".detail").text_content() or "").rpartition(" ")
    assert told.endswith("cacheblend score")
    assert float(score) == done["cache"]["tokens"]["documents"][1]["scores"][3] > 0


def test_nothing_else_may_run(console: Console, service: Service) -> None:
    """The policy holds: a script or a style in the page itself, or markup from text, is refused."""
    page = console.ready()
    headers = service.http.get("/ui/").headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    refused = page.evaluate(
        """async () => {
            const heard = [];
            const hear = (event) => heard.push(event.effectiveDirective);
            document.addEventListener("securitypolicyviolation", hear);
            const style = document.createElement("style");
            style.textContent = "body { display: none }";
            document.head.append(style);
            try {
                document.body.innerHTML = "<p>mine</p>";
            } catch (error) {
                heard.push(error.name);
            }
            await fetch("https://example.com/").catch(() => {});
            await new Promise((resolve) => setTimeout(resolve, 100));
            return heard;
        }"""
    )
    assert {"style-src-elem", "TypeError", "connect-src"} <= set(refused)
    assert console.wrong  # what the other tests look at does see it
    console.wrong.clear()
    assert service.http.get("/ui/nothing.js").status_code == 404
    for path in (
        "/ui/../gateway.py",
        "/ui/%2e%2e/api.py",
        "/ui/lib/..%2f..%2f..%2fapi.py",
        "/ui/lib",
    ):
        assert service.http.get(path).status_code == 404, path
