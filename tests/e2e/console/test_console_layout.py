"""What every page has to keep to, on a desk and on a phone, light and dark: nothing is wider than
the screen, what one touches is large enough, focus can be seen, axe-core finds nothing serious."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload

from tests.e2e.console.browser import Console
from tests.e2e.console.looks import ALL, NARROW, Look
from tests.e2e.service import Service

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[3]
TABS = ("chat", "ask", "documents", "jobs", "tiers", "settings")
MARKDOWN = """# Head

Some *text* with `code`, a [link](https://b.example), and [1].

| a | b | c | d | e | f | g | h |
|---|---|---|---|---|---|---|---|
| a long cell | a long cell | a long cell | a long cell | a long cell | a long cell | b | c |

```
a line of code that is much too long for a telephone and therefore is scrolled by itself
```

1. one
2. two with averyverylongwordthatcannotbebrokenanywhereatallaveryverylongwordthatcannotbebroken
"""


@pytest.fixture(scope="module")
def axe() -> str:
    found = sorted(ROOT.glob("build/axe/*/axe.min.js"))
    if not found:
        raise RuntimeError("axe-core is not installed: scripts/install-axe.sh")
    return found[-1].read_text()


def filled(console: Console, tab: str) -> None:
    """The tab with as much on it as there can be."""
    page = console.ready(tab)
    if tab == "chat":
        console.chat("Which colour does the family wear?")
        (kept,) = json.loads(page.evaluate("sessionStorage.getItem('kvstitch.chat')"))
        kept["answer"] |= {"text": MARKDOWN, "attributions": []}
        page.evaluate("kept => sessionStorage.setItem('kvstitch.chat', kept)", json.dumps([kept]))
        page.reload()
        console.wait_until_served()
        page.locator("#chat-method optgroup").first.wait_for(state="attached")
        page.locator(".exchange .cite").click()
        page.locator(".passage").wait_for()
    elif tab == "ask":
        page.get_by_label("Compare with a second method").check()
        console.ask("Which colour does the family wear?", method="a3", eviction="snapkv")
        console.open_tokens()
    elif tab == "settings":
        page.locator("#service-defaults dd").first.wait_for()
    else:
        page.locator(f"#panel-{tab} tbody tr").first.wait_for()
    if tab == "documents":
        broken = FilePayload(name="broken.pdf", mimeType="application/pdf", buffer=b"%PDF-1.4")
        page.locator("#files").set_input_files(broken)
        page.get_by_role("button", name="Send broken.pdf again").wait_for()


@pytest.mark.parametrize("place", [*TABS, "reader", "confirm", "empty chat"])
@pytest.mark.parametrize("look", ALL)
def test_every_place_fits_and_axe_finds_nothing_serious(
    browser: Browser, service: Service, look: Look, place: str, axe: str
) -> None:
    """With the policy off, because axe is no script of this origin. No other test does that."""
    console = Console(browser, service, bypass_csp=True, **look)
    if place in TABS:
        filled(console, place)
    elif place == "empty chat":
        console.ready("chat")
    else:
        console.ready("documents")
        console.page.locator("#documents tr").first.wait_for()
        names = {"reader": "th button", "confirm": "button.danger"}
        console.page.locator("#documents tr").first.locator(names[place]).click()
        console.page.get_by_role("dialog").wait_for()
        if place == "reader":
            console.page.locator(".document-text").wait_for()
    page = console.page
    assert page.evaluate("document.documentElement.scrollWidth") <= look["width"]
    if look["width"] == NARROW:
        assert page.evaluate(TOO_SMALL) == []
    if place in TABS:  # a dialog takes the focus from everything else
        assert page.evaluate(UNSEEN_FOCUS) == []
    page.add_script_tag(content=axe)
    found: list[dict[str, Any]] = page.evaluate("axe.run().then((r) => r.violations)")
    serious = [
        (rule["id"], [node["html"] for node in rule["nodes"]][:3])
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]
    console.close()
    assert serious == []
    assert console.wrong == []


def test_motion_is_reduced_where_that_is_wanted(console: Console) -> None:
    console.page.emulate_media(reduced_motion="reduce")
    page = console.ready("chat")
    moving = """() => [...document.querySelectorAll("*")].filter((node) => {
        const style = getComputedStyle(node);
        return style.animationName !== "none" || !/^(0s(, )?)+$/.test(style.transitionDuration);
    }).map((node) => node.outerHTML.slice(0, 80))"""
    assert page.evaluate(moving) == []
    css = "".join(
        console.service.http.get(f"/ui/{path}").text
        for path in re.findall(r'href="(styles/[^"]+)"', console.service.http.get("/ui/").text)
    )
    assert "prefers-reduced-motion" in css and "@keyframes" not in css


# Links in running text may be as high as their line (WCAG 2.5.8).
TOO_SMALL = """() => [...document.querySelectorAll(
    "button, input, select, textarea, summary, [role=tab], a:not(p a)",
)].filter((node) => node.checkVisibility({ visibilityProperty: true })).map((node) => {
    const box = (node.matches("[type=checkbox], [type=radio]") ? node.closest("label") : node)
        .getBoundingClientRect();
    return [node.outerHTML.slice(0, 90), Math.round(box.width), Math.round(box.height)];
}).filter(([, width, height]) => height < 40 || width < 40)"""

# The field of the chat shows its focus by the frame around it.
UNSEEN_FOCUS = """() => {
    const out = [];
    const kinds = "a, button, input, select, textarea, summary, [tabindex='0']";
    for (const node of document.querySelectorAll(kinds)) {
        if (!node.checkVisibility({ visibilityProperty: true }) || node.disabled) continue;
        node.focus({ focusVisible: true, preventScroll: true });
        const style = getComputedStyle(node);
        const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
        if (document.activeElement !== node || (!seen && !node.closest(".composer:focus-within"))) {
            out.push(node.outerHTML.slice(0, 90));
        }
    }
    return out;
}"""
