"""What the console tells assistive technology: every control and every region has a name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.console.browser import Console

pytestmark = pytest.mark.exhaustive

NAMED = {
    *(
        "button",
        "checkbox",
        "combobox",
        "dialog",
        "group",
        "meter",
        "progressbar",
        "radio",
        "region",
    ),
    *("spinbutton", "tab", "tabpanel", "table", "tablist", "textbox", "article", "option"),
}


def nodes(console: Console) -> list[dict[str, Any]]:
    """Chromium's own tree of what it tells a screen reader."""
    session = console.context.new_cdp_session(console.page)
    tree = session.send("Accessibility.getFullAXTree")["nodes"]
    return [node for node in tree if not node["ignored"]]


def value(node: dict[str, Any], name: str) -> str:
    return str(node.get(name, {}).get("value", ""))


@pytest.mark.parametrize("tab", ["chat", "ask", "documents", "jobs", "tiers", "settings"])
def test_everything_has_a_name(console: Console, tab: str) -> None:
    page = console.ready(tab)
    if tab == "ask":
        page.get_by_label("Compare with a second method").check()
        console.ask("Which colour does the family wear?")
        console.open_tokens()
    elif tab == "chat":
        console.chat("Which colour does the family wear?")
    elif tab == "settings":
        page.locator("#service-defaults dd").first.wait_for()
    else:
        page.locator(f"#panel-{tab} tbody tr").first.wait_for()
    found = nodes(console)
    roles = {value(node, "role") for node in found}
    assert {"banner", "main", "tab", "tablist", "tabpanel"} <= roles
    nameless = [
        (value(node, "role"), node["nodeId"])
        for node in found
        if value(node, "role") in NAMED and not value(node, "name").strip()
    ]
    assert nameless == []
    focusable = [
        node
        for node in found
        if any(p["name"] == "focusable" and p["value"]["value"] for p in node.get("properties", []))
    ]
    assert len(focusable) > 5
    unnamed = [value(n, "role") for n in focusable if not value(n, "name").strip()]
    assert unnamed == []


def test_the_counts_are_there_without_colours(console: Console) -> None:
    """A token's fate is in the group's name, in a table, and in the kind of its line."""
    page = console.ready()
    console.ask("Which colour does the family wear?", method="a3")
    (done,) = console.done()
    console.open_tokens()
    first = done["cache"]["documents"][0]
    words = f"{first['tokens'] - first['rows_recomputed']} RAM"
    if first["rows_recomputed"]:
        words += f", {first['rows_recomputed']} recomputed"
    title = done["citations"][0]["title"]
    group = page.get_by_role("group", name=f"Tokens of [1] {title}: {words}.")
    assert group.count() == 1
    styles = page.evaluate(
        """() => [...document.querySelectorAll(".legend .t")].map((mark) => {
            const style = getComputedStyle(mark);
            return [style.borderBottomStyle, style.textDecorationLine].join(" ");
        })"""
    )
    assert len(styles) == len(set(styles)) == 8
    heads = console.panel.get_by_role("table").last.get_by_role("columnheader").all_text_contents()
    assert heads[0] == "Segment" and heads[-2:] == ["Evicted", "KV kept"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(console: Console, scheme: str) -> None:
    """WCAG AA, 4.5 to 1, for the tokens of every kind and for quiet text, in both schemes."""
    console.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page = console.ready()
    console.ask("Which colour does the family wear?", method="a3")
    console.open_tokens()
    ratios: dict[str, float] = page.evaluate(CONTRAST)
    assert set(ratios) >= {"t memory", "t recomputed", "t question", "state", "detail"}
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


CONTRAST = """() => {
    const paint = (color, under) => {
        const canvas = document.createElement("canvas");
        const pen = canvas.getContext("2d", { willReadFrequently: true });
        canvas.width = canvas.height = 1;
        for (const layer of [...under, color]) { pen.fillStyle = layer; pen.fillRect(0, 0, 1, 1); }
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = (rgb) => {
        const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = rgb.map((value) => linear(value / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const out = {};
    const texts = ".t, .state, .detail, .about, .quiet, dt, .counts, thead th, label, .chip";
    for (const node of document.querySelectorAll(texts)) {
        if (!node.offsetParent) continue;
        const layers = [];
        for (let at = node; at; at = at.parentElement) {
            layers.unshift(getComputedStyle(at).backgroundColor);
        }
        const behind = paint("transparent", layers);
        const text = paint(getComputedStyle(node).color, layers);
        const [a, b] = [light(text), light(behind)].sort((x, y) => y - x);
        const name = node.className || node.tagName;
        out[name] = Math.min(out[name] ?? 99, (a + 0.05) / (b + 0.05));
    }
    return out;
}"""
