"""Formulas of Office (OMML) and of pages (MathML) as one line of text: Q=(a+b)/2, x_i^2, √(x)."""

import re
from collections.abc import Callable, Sequence
from typing import Any

_SIMPLE = re.compile(r"\w*|[\d.,]+")


def formula(element: Any) -> str:
    """Return the text of an element of OMML or MathML, of lxml."""
    return " ".join(_text(element).split())


def _name(element: Any) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _text(element: Any) -> str:
    name = _name(element)
    if name in _WRITTEN:
        return _WRITTEN[name](element)
    children = "".join(map(_text, element))
    if name in _LEAVES:
        return (element.text or "") + children
    return children


_LEAVES = ("t", "mi", "mn", "mo", "mtext", "ms")


def _group(text: str) -> str:
    text = text.strip()
    return text if len(text) == 1 or _SIMPLE.fullmatch(text) else f"({text})"


def _part(element: Any, name: str) -> str:
    """Return the text of a child; "" without one."""
    return next((_text(child) for child in element if _name(child) == name), "")


def _property(element: Any, name: str) -> str | None:
    """Return a value of OMML's properties, e.g. the sign of a sum; None if it is not given."""
    for properties in element:
        if _name(properties).endswith("Pr"):
            for child in properties:
                if _name(child) == name:
                    return next((v for k, v in child.attrib.items() if k.endswith("val")), "")
    return None


def _scripts(base: str, below: str, above: str) -> str:
    low = f"_{_group(below)}" if below.strip() else ""
    high = f"^{_group(above)}" if above.strip() else ""
    return _group(base) + low + high if low or high else base


def _root(inside: str, degree: str = "") -> str:
    return f"\u221a[{degree}]({inside})" if degree.strip() else f"\u221a({inside})"


def _office_scripts(element: Any) -> str:
    return _scripts(_part(element, "e"), _part(element, "sub"), _part(element, "sup"))


def _office_limit(element: Any) -> str:
    limit = _part(element, "lim")
    below = _name(element) == "limLow"
    return _scripts(_part(element, "e"), limit if below else "", "" if below else limit)


def _large_operator(element: Any) -> str:
    sign = _property(element, "chr") or "\u222b"
    inside = _part(element, "e")
    return _scripts(sign, _part(element, "sub"), _part(element, "sup")) + f" {_group(inside)} "


def _delimited(element: Any) -> str:
    begin, end = _property(element, "begChr"), _property(element, "endChr")
    parts = [_text(child) for child in element if _name(child) == "e"]
    between = _property(element, "sepChr") or "|"
    return f"{'(' if begin is None else begin}{between.join(parts)}{')' if end is None else end}"


def _rows(element: Any, row: str, cell: str) -> str:
    rows = [
        ", ".join(_text(c).strip() for c in child if _name(c) == cell)
        for child in element
        if _name(child) == row
    ]
    return f"[{'; '.join(rows)}]"


def _children(element: Any) -> Sequence[str]:
    """Return the texts of MathML's arguments; missing ones are empty."""
    found = [_text(child) for child in element if isinstance(child.tag, str)]
    return [*found, "", "", ""]


def _page_fraction(element: Any) -> str:
    above, below, *_ = _children(element)
    return f"{_group(above)}/{_group(below)}"


def _page_scripts(element: Any) -> str:
    name = _name(element)
    base, first, second, *_ = _children(element)
    if name in ("msup", "mover"):
        return _scripts(base, "", first)
    return _scripts(base, first, second)


def _fence(element: Any) -> str:
    parts = [_text(child) for child in element]
    return f"{element.get('open', '(')}{', '.join(parts)}{element.get('close', ')')}"


def _first(element: Any) -> str:
    """Of `semantics` the first child is the formula, the others say the same again."""
    return next((_text(child) for child in element if isinstance(child.tag, str)), "")


_WRITTEN: dict[str, Callable[[Any], str]] = {
    # Office
    "f": lambda e: f"{_group(_part(e, 'num'))}/{_group(_part(e, 'den'))}",
    "sSup": _office_scripts, "sSub": _office_scripts, "sSubSup": _office_scripts,
    "sPre": lambda e: _scripts("", _part(e, "sub"), _part(e, "sup")) + _part(e, "e"),
    "rad": lambda e: _root(_part(e, "e"), _part(e, "deg")),
    "nary": _large_operator, "d": _delimited,
    "limLow": _office_limit, "limUpp": _office_limit,
    "m": lambda e: _rows(e, "mr", "e"),
    "eqArr": lambda e: "; ".join(_text(child) for child in e if _name(child) == "e"),
    "func": lambda e: f"{_part(e, 'fName')}({_part(e, 'e')})",
    "rPr": lambda e: "", "ctrlPr": lambda e: "",
    # Pages
    "mfrac": _page_fraction,
    "msup": _page_scripts, "msub": _page_scripts, "msubsup": _page_scripts,
    "munder": _page_scripts, "mover": _page_scripts, "munderover": _page_scripts,
    "msqrt": lambda e: _root("".join(map(_text, e))),
    "mroot": lambda e: _root(*_children(e)[:2]),
    "mtable": lambda e: _rows(e, "mtr", "mtd"),
    "mfenced": _fence, "mspace": lambda e: " ", "semantics": _first,
    "annotation": lambda e: "", "annotation-xml": lambda e: "", "mphantom": lambda e: "",
}  # fmt: skip
