"""What a page shows in other ways than by its text: small raised digits, addresses of links,
pictures' texts, what is in controls, and what is struck through. Each becomes text in its place;
the numbers of lists become attributes, as `MARKER`."""

import re
from collections import Counter

from selectolax.lexbor import LexborHTMLParser, LexborNode

from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Addresses,
    lowered,
    one_line,
    raised,
    struck,
)

MAX_OPTIONS = 40  # of a list; countries and years are no text of a page
MIN_LABEL_WORDS = 3  # of a button that says something, as questions that open their answers
MARKER = "kvstitch-marker"  # of an item: its number as it is seen
_KIND = re.compile(r"\b(lower|upper)-?(alpha|latin|roman)\b|list-style(?:-type)?\s*:[^;]*\bnone\b")
_TYPES = {"a": "lower-alpha", "A": "upper-alpha", "i": "lower-roman", "I": "upper-roman"}
_NO_VALUE = ("hidden", "password", "reset", "image", "file")


def write_parts(tree: LexborHTMLParser, left_out: Counter[str]) -> None:
    """Write into a page what is not its text, and count what is left out."""
    for node in tree.css("nav, script, style, template, noscript, svg"):
        node.decompose()
    for node in tree.css("sup, sub"):
        _small(node)
    for node in tree.css("s, strike, del"):
        if text := one_line(node.text()):
            node.replace_with(struck(text))
    for node in tree.css("img[alt]"):
        # One word is a logo's or a face's.
        alt = one_line(node.attributes.get("alt") or "")
        node.replace_with(f" {alt} " if len(alt.split()) > 1 or not alt.isalpha() else " ")
    for node in tree.css("ol"):
        _number(node)
    for node in tree.css("select, textarea, input, button"):
        node.replace_with(_control(node, left_out))
    addresses = Addresses()
    for node in tree.css("a[href]"):
        if said := addresses.behind(node.text(), node.attributes.get("href") or ""):
            node.insert_after(said)


def _small(node: LexborNode) -> None:
    before, above = node.prev, node.parent
    while before is None and above is not None and above.tag in ("a", "span", "b", "i", "em"):
        before, above = above.prev, above.parent
    said = "" if before is None else before.text(deep=True)
    text = one_line(node.text())
    if node.tag == "sub":
        new = lowered(said, text)
    else:
        note = node.parent is not None and node.parent.tag == "a"
        follows = "" if node.next is None else node.next.text(deep=True)
        new = raised(said, text, follows, note=note or node.css_first("a[href^='#']") is not None)
    if new != text:
        node.replace_with(new)


def _control(node: LexborNode, left_out: Counter[str]) -> str:
    """Return what a control shows."""
    said, text = node.attributes, one_line(node.text())
    kind = (said.get("type") or "text").lower() if node.tag == "input" else node.tag
    if kind == "select":
        texts = [
            one_line(option.text()) + (" (chosen)" if "selected" in option.attributes else "")
            for option in node.css("option")
            if one_line(option.text())
        ]
        left_out["controls"] += max(0, len(texts) - MAX_OPTIONS)
        text = ", ".join(texts[:MAX_OPTIONS])
    elif kind in ("submit", "button"):
        text = text or one_line(said.get("value") or "")
        if len(text.split()) < MIN_LABEL_WORDS and not text.endswith("?"):
            left_out["controls"] += bool(text)
            text = ""
    elif kind in ("checkbox", "radio"):
        text = "[x]" if "checked" in said else "[ ]"
    elif kind != "textarea":
        text = "" if kind in _NO_VALUE else one_line(said.get("value") or "")
    return f" {text} "


def _number(ordered: LexborNode) -> None:
    """Give the items of a list their numbers; one that begins with its number has it already."""
    items = [item for item in ordered.iter() if item.tag == "li"]
    said, step = ordered.attributes, -1 if "reversed" in ordered.attributes else 1
    number = _whole(ordered, "start", len(items) if step < 0 else 1)
    for item in items:
        own = item.attributes
        number = _whole(item, "value", number)
        kind = _TYPES.get(own.get("type") or said.get("type") or "", "")
        found = _KIND.search(f"{kind} {said.get('style')} {own.get('style')} {said.get('class')}")
        if found is None or found[1]:
            marker = f"{_written(number, *found.groups()) if found and number > 0 else number}."
            if not item.text().lstrip().startswith(marker):
                item.attrs[MARKER] = marker
        number += step


def _written(number: int, case: str, kind: str) -> str:
    from openpyxl.utils import get_column_letter  # counts as browsers do: Z, AA, AB

    from kvstitch.service.gateway.documents.parsing.office.docx_styles import written_number

    roman = kind == "roman"
    out = written_number(number, "upperRoman") if roman else get_column_letter(min(number, 18_278))
    return out if case == "upper" else out.lower()


def _whole(node: LexborNode, name: str, otherwise: int) -> int:
    found = re.match(r"\s*([+-]?\d{1,9})", node.attributes.get(name) or "")
    return int(found[1]) if found else otherwise
