"""What Office's files keep in parts of their own: the texts of SmartArt, the values of charts."""

from collections.abc import Iterator
from typing import Any

from lxml import etree

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_C = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_TITLE = f"{_C}title"
_DIAGRAM = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}"
_PARSER = etree.XMLParser(resolve_entities=False, no_network=True)


def xml_of(part: bytes) -> Any:
    return etree.fromstring(part, _PARSER)


def smartart_lines(data: Any) -> Iterator[str]:
    """Yield the texts of a diagram, one per shape, in the order in which they were entered."""
    for point in data.iter(f"{_DIAGRAM}pt"):
        # "pres" points repeat what others hold, for the layout.
        if point.get("type", "node") in ("node", "asst"):
            paragraphs = (
                "".join(t.text or "" for t in p.iter(f"{_A}t")) for p in point.iter(f"{_A}p")
            )
            if line := " ".join(text for text in paragraphs if text.strip()):
                yield line


def chart_title(chart: Any) -> str:
    """Return the titles of a chart and of its axes, as they were entered, a line for each."""
    titles = ("".join(t.text or "" for t in title.iter(f"{_A}t")) for title in chart.iter(_TITLE))
    return "\n".join(title.strip() for title in titles if title.strip())


def chart_rows(chart: Any) -> Iterator[list[str]]:
    """Yield the values of a chart as a table: a column per series, a row per category."""
    names: list[str] = []
    columns: list[dict[int, str]] = []
    categories: dict[int, str] = {}
    for number, series in enumerate(chart.iter(f"{_C}ser"), 1):
        name = [v.text or "" for v in series.iterfind(f"{_C}tx//{_C}v")]
        names.append(" ".join(name) or f"Series {number}")
        for tag in ("cat", "xVal"):
            categories = categories or _points(series.find(f"{_C}{tag}"))
        for tag in ("val", "yVal"):
            if found := _points(series.find(f"{_C}{tag}")):
                columns.append(found)
                break
        else:
            columns.append({})
    rows = sorted({index for column in (categories, *columns) for index in column})
    if rows:
        yield ["Category", *names]
    for index in rows:
        yield [categories.get(index, ""), *(column.get(index, "") for column in columns)]


def _points(values: Any) -> dict[int, str]:
    if values is None:
        return {}
    return {
        int(point.get("idx", "0")): point.findtext(f"{_C}v") or ""
        for point in values.iter(f"{_C}pt")
        if point.get("idx", "0").isdecimal()
    }
