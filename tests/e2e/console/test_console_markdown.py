"""Answers are Markdown, and nothing else: no markup of theirs becomes the page's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.console.browser import Console
from tests.e2e.service import Service

RENDER = """async (text) => {
    const { markdown } = await import("/ui/markdown/markdown.js");
    const node = document.createElement("div");
    const mark = (n) => Object.assign(document.createElement("b"), { textContent: n });
    markdown(node, (n) => (n <= 2 ? mark(n) : null)).show(text);
    return node.innerHTML;
}"""


@pytest.fixture(scope="module")
def rendering(browser: Browser, service: Service) -> Iterator[Page]:
    """A page of all tests that only make elements."""
    console = Console(browser, service)
    yield console.open("chat")
    console.close()
    assert console.wrong == []


@pytest.fixture
def render(rendering: Page) -> Any:
    return lambda text: rendering.evaluate(RENDER, text)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
        ("**a** *b* __c__ _d_ ~~e~~", "<p><strong>a</strong> <em>b</em> <strong>c</strong> "
         "<em>d</em> <del>e</del></p>"),
        ("***both*** and **a *b* c**", "<p><strong><em>both</em></strong> and "
         "<strong>a <em>b</em> c</strong></p>"),
        ("snake_case_name 2 * 3 * 4 **", "<p>snake_case_name 2 * 3 * 4 **</p>"),
        ("`a*b*` and ``c`d``", "<p><code>a*b*</code> and <code>c`d</code></p>"),
        (r"\*not\* \[1]", "<p>*not* [1]</p>"),
        ("## Head ##\ntext", "<h4>Head</h4><p>text</p>"),
        ("---", "<hr>"),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
        ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("It is [1], not [3].", "<p>It is <b>1</b>, not [3].</p>"),
    ],
)  # fmt: skip
def test_what_it_makes(render: Any, text: str, html: str) -> None:
    assert render(text) == html


def test_code_and_tables(render: Any) -> None:
    code = render("```python\nif a < b:\n    pass\n```")
    assert ">if a &lt; b:\n    pass</code></pre>" in code and 'aria-label="Code, python"' in code
    assert render("```\nopen").endswith("<code>open</code></pre>")  # while it streams
    table = render("| a | b |\n|---|--:|\n| 1 | `x|y` |\n| 2 |")
    assert '<th class="to-start" scope="col">a</th>' in table
    assert '<td class="to-end"><code>x|y</code></td>' in table
    assert table.count("<tr>") == 3


def test_links_lead_to_the_web_only(render: Any) -> None:
    rel = 'target="_blank" rel="noopener noreferrer"'
    assert render("[a](https://b.example/c?d=(e))") == (
        f'<p><a href="https://b.example/c?d=(e)" {rel}>a</a></p>'
    )
    assert render("see https://b.example/x.") == (
        f'<p>see <a href="https://b.example/x" {rel}>https://b.example/x</a>.</p>'
    )
    assert "<img" not in render("![alt](https://b.example/p.png)")
    for url in (
        *("javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "//b.example"),
        *("data:text/html,<script>x</script>", "vbscript:x", "file:///etc/passwd", "/admin/jobs"),
        *("&#106;avascript:alert(1)", "https:alert(1)", "blob:https://b.example/1"),
    ):
        made = render(f"[a]({url})")
        assert "<a " not in made or 'href="https://b.example' in made, made


EVIL = [
    "<script>window.evil = 1</script>",
    "<img src=x onerror='window.evil = 1'>",
    "**<svg onload='window.evil = 1'>**",
    "[<img src=x onerror='window.evil = 1'>](https://b.example)",
    "`<iframe srcdoc='<script>parent.evil = 1</script>'>`",
    "| <script>window.evil = 1</script> | b |\n|---|---|\n| <b>c</b> | d |",
    '[a](https://b.example "onmouseover=window.evil=1")',
    "[a](https://b.example/\"onmouseover='window.evil=1')",
    "```<script>\n</code></pre><script>window.evil = 1</script>\n```",
]


@pytest.mark.parametrize("text", EVIL)
def test_markup_stays_text(rendering: Page, render: Any, text: str) -> None:
    made = render(text)
    for tag in ("script", "img", "svg", "iframe", "b"):
        assert f"<{tag}" not in made, made
    assert rendering.evaluate("window.evil") is None


@pytest.mark.parametrize("text", ["*a" * 40_000, "[" * 40_000, "`" * 39_999, "_ **a" * 9000,
                                  "> " * 20_000, "- " * 20_000, "[a](" * 9000, "# " + " " * 40_000,
                                  "| " * 20_000 + "\n" + "|-" * 20_000])  # fmt: skip
def test_no_text_takes_long(render: Any, text: str) -> None:
    """A time that grows with the square of a text would be minutes."""
    started = time.monotonic()
    render(text)
    assert time.monotonic() - started < 20


def test_what_is_unchanged_keeps_its_elements(console: Console) -> None:
    page = console.open("chat")
    same = page.evaluate(
        """async () => {
            const { markdown } = await import("/ui/markdown/markdown.js");
            const node = document.createElement("div");
            const view = markdown(node);
            view.show("# One\\n\\ntwo\\n\\nthr");
            const before = [...node.children];
            view.show("# One\\n\\ntwo\\n\\nthree\\n\\n- four");
            return [...node.children].map((child, i) => child === before[i]);
        }"""
    )
    assert same == [True, True, False, False]


def test_markup_in_titles_and_answers_is_shown_as_text(console: Console, service: Service) -> None:
    """From the service to every place that shows it: list, preview, passages, answers."""
    title = "<b>&amp;</b>"
    text = "</p><script>window.evil = 1</script> The goat is green."
    metadata = {"<i>kind</i>": "<script>window.evil = 1</script>"}
    document = {"doc_id": "<u>evil</u>", "title": title, "text": text, "metadata": metadata}
    service.ingest([{**document, "collection": "evil"}])
    try:
        page = console.ready("documents")
        page.locator("#documents-collection option[value=evil]").wait_for(state="attached")
        page.locator("#documents-collection").select_option("evil")
        page.get_by_role("button", name=title).click()
        reader = page.get_by_role("dialog")
        reader.locator(".document-text").wait_for()
        assert reader.locator("h2").text_content() == title
        assert reader.locator(".document-text").text_content() == text
        assert "<script>window.evil = 1</script>" in reader.locator(".facts").all_text_contents()[0]
        page.keyboard.press("Escape")
        console.choose_tab("Chat")
        page.locator("#chat-collection").select_option("evil")
        exchange = console.chat("Which colour is the goat?")
        (chip,) = exchange.locator(".chip").all_text_contents()
        assert chip.removesuffix(" ✓ used") == f"[1] {title}"
        exchange.locator(".chip").click()
        shown = exchange.locator(".passage blockquote").text_content() or ""
        assert shown and shown in text
        # An answer as the model might have given it, restored from the tab's storage.
        said = "\n\n".join(EVIL)
        (kept,) = json.loads(page.evaluate("sessionStorage.getItem('kvstitch.chat')"))
        kept["answer"] |= {"text": said, "attributions": []}
        page.evaluate("kept => sessionStorage.setItem('kvstitch.chat', kept)", json.dumps([kept]))
        page.reload()
        page.locator(".exchange .markdown p").first.wait_for()
        assert page.locator(".exchange").locator("script, img, svg, iframe").count() == 0
        page.wait_for_timeout(200)
        assert page.evaluate("window.evil") is None
    finally:
        service.http.delete("/admin/collections/evil")
