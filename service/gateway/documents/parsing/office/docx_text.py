"""The text of a Word paragraph as it stands once changes are accepted, and what else it holds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from docx.oxml.ns import qn

from kvstitch.service.gateway.documents.parsing.formulas import formula
from kvstitch.service.gateway.documents.parsing.office.docx_styles import Styles, switched_on, value
from kvstitch.service.gateway.documents.parsing.parsed_file import lowered, one_line, raised, struck

PAGE_BREAK = "\f"
_COMPATIBILITY = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}chart"
_DIAGRAM = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}relIds"
_PICTURES = (
    "{http://schemas.openxmlformats.org/drawingml/2006/picture}pic",
    "{urn:schemas-microsoft-com:vml}imagedata",
)
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_REMOVED = {qn("w:del"), qn("w:moveFrom"), qn("w:pPr"), qn("w:rPr")}
_CHARACTERS = {
    qn("w:tab"): "\t", qn("w:ptab"): "\t", qn("w:br"): "\n", qn("w:cr"): "\n",
    qn("w:noBreakHyphen"): "-", qn("w:lastRenderedPageBreak"): PAGE_BREAK,
}  # fmt: skip
_NOTES = {qn(f"w:{kind}Reference"): kind for kind in ("footnote", "endnote", "comment")}
_WRAPPERS = {
    qn("w:sdt"), qn("w:sdtContent"), qn("w:customXml"), qn("w:smartTag"), qn("w:ins"),
    qn("w:moveTo"), _COMPATIBILITY + "AlternateContent", _COMPATIBILITY + "Choice",
}  # fmt: skip
MAX_COUNTING = 12  # letters beside the number of a page: "page 3 of 9"


@dataclass
class Found:
    """What a paragraph, or the cells of a table, hold besides their text."""

    notes: list[tuple[str, str]] = field(default_factory=list)
    boxes: list[Any] = field(default_factory=list)
    charts: list[str] = field(default_factory=list)
    diagrams: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    address: Callable[[str, Any], str] = lambda text, link: ""
    """What stands behind the words of a link."""

    def count(self, code: str) -> None:
        self.left_out[code] = self.left_out.get(code, 0) + 1


def join_paragraphs(root: Any) -> None:
    """Accept that ends of paragraphs are deleted or moved away: these go on in the next one."""
    for mark in [*root.iter(qn("w:del"), qn("w:moveFrom"))]:
        properties = mark.getparent().getparent()
        if mark.getparent().tag != qn("w:rPr") or properties.tag != qn("w:pPr"):
            continue
        paragraph = properties.getparent()
        following = next(paragraph.itersiblings(qn("w:p"), qn("w:tbl"), qn("w:sdt")), None)
        if following is None or following.tag != qn("w:p"):
            continue
        at = 0 if following.find(qn("w:pPr")) is None else 1
        following[at:at] = [child for child in paragraph if child is not properties]
        paragraph.getparent().remove(paragraph)


def unwrapped(parent: Any) -> Iterator[Any]:
    """Yield the children of an element; those in content controls and the like stand for these."""
    stack = [iter(_choice(parent))]
    while stack:
        element = next(stack[-1], None)
        if element is None:
            stack.pop()
        elif element.tag not in _WRAPPERS:
            yield element
        elif not _is_placeholder(element):
            stack.append(iter(_choice(element)))


def _choice(element: Any) -> Any:
    """Return the children to read: of two versions of the same only the newer."""
    if element.tag != _COMPATIBILITY + "AlternateContent":
        return element
    chosen = element.find(_COMPATIBILITY + "Choice")
    return element.find(_COMPATIBILITY + "Fallback") if chosen is None else chosen


def _is_placeholder(element: Any) -> bool:
    """Return whether a content control only shows what to enter."""
    properties = element.find(qn("w:sdtPr"))
    return bool(switched_on(properties, "w:showingPlcHdr"))


def paragraph_text(paragraph: Any, styles: Styles, found: Found) -> str:
    """Return a paragraph's text, with inserted and without deleted or hidden words."""
    hidden_paragraph = styles.of(paragraph)[0].hidden
    out: list[str] = []
    stack = [iter(paragraph)]
    links: list[tuple[int, int, Any]] = []  # (depth of the stack, place in the text, link)
    while stack:
        element = next(stack[-1], None)
        if element is None:
            stack.pop()
            while links and links[-1][0] > len(stack):
                _, start, link = links.pop()
                out.append(found.address("".join(out[start:]), link))
            continue
        tag = element.tag
        if tag == qn("w:t"):
            out.append(_as_seen("".join(out[-9:]), element))
        elif tag == qn("w:hyperlink"):
            stack.append(iter(element))
            links.append((len(stack), len(out), element))
        elif tag in _CHARACTERS:
            out.append(_CHARACTERS[tag])
        elif tag in _REMOVED or not isinstance(tag, str):
            continue
        elif tag == qn("w:r") and _is_hidden(element, styles, hidden_paragraph):
            if any(text.text for text in element.iter(qn("w:t"))):
                found.count("hidden_text")
        elif tag in _NOTES:
            found.notes.append((_NOTES[tag], element.get(qn("w:id"), "")))
        elif tag in (_MATH + "oMath", _MATH + "oMathPara"):
            out.append(formula(element))
        elif tag == qn("w:ruby"):
            found.count("readings_left_out")
            stack.append(iter(element.findall(qn("w:rubyBase"))))
        elif tag == qn("w:sym"):
            out.append(_symbol(element))
        elif tag == qn("w:ffData"):
            out.append(_field(element))
        elif tag == qn("w:txbxContent"):
            found.boxes.append(element)
        elif tag == _CHART:
            found.charts.append(element.get(_RELATION + "id", ""))
        elif tag == _DIAGRAM:
            found.diagrams.append(element.get(_RELATION + "dm", ""))
        elif tag in _PICTURES:
            found.count("pictures")
        elif tag == "{urn:schemas-microsoft-com:vml}textpath":
            out.append(element.get("string", ""))
        elif tag == "{urn:schemas-microsoft-com:office:office}OLEObject":
            found.count("embedded_objects")
        elif not (tag == qn("w:sdt") and _is_placeholder(element)):
            stack.append(iter(_choice(element)))
    return "".join(out).replace("~~~~", "")


def _as_seen(before: str, element: Any) -> str:
    """Return the text of a run with signs for what is struck through, raised or lowered."""
    text = element.text or ""
    properties = element.getparent().find(qn("w:rPr"))
    if properties is None:
        return text
    place = value(properties, "w:vertAlign")
    if place in ("superscript", "subscript"):
        text = raised(before, text) if place == "superscript" else lowered(before, text)
    off = switched_on(properties, "w:strike") or switched_on(properties, "w:dstrike")
    return struck(text) if off else text


def _is_hidden(run: Any, styles: Styles, paragraph: bool | None) -> bool:
    properties = run.find(qn("w:rPr"))
    own = switched_on(properties, "w:vanish")
    if own is None and (key := value(properties, "w:rStyle")):
        own = styles.named(key).hidden
    return bool(paragraph if own is None else own)


def _symbol(element: Any) -> str:
    """Return a character of a symbol font; which it is, is known of the usual boxes only."""
    code = element.get(qn("w:char"), "")
    try:
        number = int(code, 16)
    except ValueError:
        return ""
    if 0xE000 <= number <= 0xF8FF:
        return {0xF0FE: "\u2612", 0xF0A8: "\u2610", 0xF0FD: "\u2612", 0xF06F: "\u2610",
                0xF0FC: "\u2713", 0xF0E0: "\u2192"}.get(number, "\u2022")  # fmt: skip
    return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else ""


def _field(data: Any) -> str:
    """Return what is chosen in a form field of old: a box with a cross, an entry of a list."""
    if (box := data.find(qn("w:checkBox"))) is not None:
        checked = switched_on(box, "w:checked")
        return "[x]" if (switched_on(box, "w:default") if checked is None else checked) else "[ ]"
    if (choices := data.find(qn("w:ddList"))) is not None:
        entries = [entry.get(qn("w:val"), "") for entry in choices.iterchildren(qn("w:listEntry"))]
        chosen = value(choices, "w:result") or value(choices, "w:default") or "0"
        if chosen.isdecimal() and int(chosen) < len(entries):
            return str(entries[int(chosen)])
    return ""


def edge_text(root: Any, styles: Styles) -> str:
    """Return the text of a header or footer; "" if it only counts pages."""
    texts = (paragraph_text(p, styles, Found()) for p in root.iter(qn("w:p")))
    text = one_line(" ".join(texts).replace(PAGE_BREAK, " "))
    fields = [e.text or "" for e in root.iter(qn("w:instrText"))]
    fields += [e.get(qn("w:instr"), "") for e in root.iter(qn("w:fldSimple"))]
    counts = any("PAGE" in field for field in fields)
    return text if sum(map(str.isalpha, text)) > (MAX_COUNTING if counts else 0) else ""
