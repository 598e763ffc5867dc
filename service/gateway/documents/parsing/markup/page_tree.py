"""The tree of a page as its reader sees it: without what is hidden, with formulas as text.

Of words with small readings above them (ruby) the words are kept.
"""

import html
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator

from lxml import etree
from selectolax.lexbor import LexborHTMLParser, LexborNode

from kvstitch.service.gateway.documents.parsing.formulas import formula

BLOCKS = frozenset(
    ["address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt",
     "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6",
     "header", "hr", "li", "main", "ol", "p", "pre", "section", "summary", "table", "tr", "ul"]
)  # fmt: skip
_DOCTYPE = re.compile(
    r"<!DOCTYPE[^\[>]*(\[(?:[^\]\"'<]|<!--.*?-->|<[^>]*>|\"[^\"]*\"|'[^']*')*\]\s*)?>", re.I | re.S
)
_ENTITY = re.compile(r"""<!ENTITY\s+([\w.-]+)\s+(?:"([^"&<]{0,200})"|'([^'&<]{0,200})')\s*>""")
_REFERENCE = re.compile(r"&([A-Za-z][\w.-]*);")
_OF_XML = ("amp", "lt", "gt", "quot", "apos")
_SELF_CLOSED = re.compile(r"<([A-Za-z][\w:-]*)((?:\s[^<>]*?)?)/>")
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track",
     "wbr", "mspace", "image"]
)  # fmt: skip
_XML_SPACE = 'xmlns="http://www.w3.org/1999/xhtml"'
_HIDING = re.compile(
    r"(?:^|[;{\s])(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)"
    r"|opacity\s*:\s*0(?:\.0+)?(?![\d.])|font-size\s*:\s*0(?:px|pt|em|%)?(?![\d.])"
    r"|mso-hide\s*:\s*all)",
    re.I,
)
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_RULE = re.compile(r"([^{}@;]+)\{([^{}]*)\}")
_AT_BLOCK = re.compile(
    r"@(?:media|supports|keyframes|-\w+-keyframes)[^{}]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}"
)
# What programs that write documentation put around each page: Sphinx, DocBook.
_NAVIGATION = "[role=navigation], .sphinxsidebar, .navheader, .navfooter"
MAX_RULES = 2000  # of style sheets, that are looked at
MATH_PARSER = etree.XMLParser(recover=True, resolve_entities=False, no_network=True)


def page_tree(text: str) -> tuple[LexborHTMLParser, Counter[str]]:
    """Parse a page; returns what is seen of it, and how much is left out by the warning's code."""
    is_xml = text.lstrip()[:5] == "<?xml" or _XML_SPACE in text[:2000]
    tree = LexborHTMLParser(_as_html(text) if is_xml else _DOCTYPE.sub("", text, count=1))
    left_out: Counter[str] = Counter()
    for node in _outermost(tree.css("math")):
        _write_formula(node)
    for node in _outermost(tree.css(".katex-html, .MathJax_Preview")):  # says a formula again
        node.decompose()
    for node in _outermost([*tree.css(_NAVIGATION), *_permalinks(tree)]):
        node.decompose()
    for node in _outermost(tree.css("ruby rt, ruby rp")):
        left_out["readings_left_out"] += node.tag == "rt"
        node.decompose()
    for node in _outermost(_hidden(tree)):
        # Search boxes and menus that scripts open are no text that anybody misses.
        if node.text().strip() and node.css_first("form, input, button, select") is None:
            left_out["hidden_text"] += 1
        node.decompose()
    return tree, left_out


def _as_html(text: str) -> str:
    declared: dict[str, str] = {}
    if found := _DOCTYPE.search(text):
        declared = {m[1]: m[2] or m[3] or "" for m in _ENTITY.finditer(found[0])}
        text = text[: found.start()] + text[found.end() :]

    def character(match: re.Match[str]) -> str:
        if match[1] in _OF_XML:
            return match[0]
        said = declared.get(match[1])
        if said is None:
            said = html.unescape(match[0])
        return html.escape(said, quote=False)

    text = _REFERENCE.sub(character, text)
    try:
        parser = etree.XMLParser(resolve_entities=False, no_network=True)
        root = etree.fromstring(text.lstrip().encode("utf-8", "replace"), parser)
    except (etree.XMLSyntaxError, ValueError):  # readers of books show such chapters all the same
        return _SELF_CLOSED.sub(
            lambda m: m[0] if m[1].lower() in _VOID else f"<{m[1]}{m[2]}></{m[1]}>", text
        )
    return str(etree.tostring(root, method="html", encoding="unicode"))


def _write_formula(node: LexborNode) -> None:
    try:
        root = etree.fromstring(node.html or "", MATH_PARSER)
    except (etree.XMLSyntaxError, ValueError):
        root = None
    text = "" if root is None else formula(root)
    # Wikipedia shows a picture, and hides the formula that the picture is made of.
    parent = node.parent
    if parent is not None and "mwe-math" in (parent.attributes.get("class") or ""):
        node = parent
    node.replace_with(f" {text} " if text else "")


def _permalinks(tree: LexborHTMLParser) -> Iterator[LexborNode]:
    """Yield the links to headings beside these, which are seen under the mouse: ¶, #, §."""
    for node in tree.css('a.headerlink, a[href^="#"]'):
        text = node.text().strip()
        if len(text) == 1 and not text.isalnum():
            yield node


def _hidden(tree: LexborHTMLParser) -> list[LexborNode]:
    found = [
        *(n for n in tree.css("[hidden]") if n.attributes.get("hidden") != "until-found"),
        *tree.css("dialog:not([open])"),
        *(n for n in tree.css("[style]") if _HIDING.search(n.attributes.get("style") or "")),
    ]
    by_sheet = _outermost(_hidden_by_sheets(tree))
    body = tree.body
    # A page that hides most of itself shows it by a script.
    if body is not None and sum(len(node.text()) for node in by_sheet) * 2 <= len(body.text()):
        found += by_sheet
    return [node for node in found if node.tag not in ("html", "body")]


def _outermost(nodes: Iterable[LexborNode]) -> list[LexborNode]:
    """Return nodes that are in no other of them: with an element goes all that is in it."""
    of_id = {node.mem_id: node for node in nodes}
    return [node for node in of_id.values() if not _is_within(node, of_id)]


def _is_within(node: LexborNode, others: Container[int]) -> bool:
    above = node.parent
    while above is not None:
        if above.mem_id in others:
            return True
        above = above.parent
    return False


def _hidden_by_sheets(tree: LexborHTMLParser) -> Iterator[LexborNode]:
    sheets = _COMMENT.sub("", "\n".join(node.text() for node in tree.css("style")))
    rules = _RULE.findall(_AT_BLOCK.sub("", sheets))[:MAX_RULES]
    for selectors, declarations in rules:
        if _HIDING.search(declarations):
            for selector in selectors.split(","):
                if ":" not in selector:
                    yield from _select(tree, selector.strip())


def _select(tree: LexborHTMLParser, selector: str) -> list[LexborNode]:
    try:
        return tree.css(selector) if selector else []
    except Exception:  # selectors that the library does not know
        return []


def walk(root: LexborNode) -> Iterator[tuple[bool, LexborNode]]:
    """Yield (True, node) before its children, (False, node) after them; text nodes only once."""
    node: LexborNode | None = root
    depth = 0
    while node is not None:
        yield True, node
        if node.tag != "-text" and (child := node.child) is not None:
            node, depth = child, depth + 1
            continue
        if node.tag != "-text":
            yield False, node
        while depth and node is not None and node.next is None:
            node, depth = node.parent, depth - 1
            if node is not None:
                yield False, node
        if not depth or node is None:
            return
        node = node.next
