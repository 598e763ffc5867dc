"""What a chunk repeats of what stands before it: columns, paths, headings of lists."""

from __future__ import annotations

import json

import pytest

from kvstitch.retriever.boundaries import TextBoundaries
from kvstitch.retriever.chunking import ChunkSettings, middle_cut
from kvstitch.retriever.outline import Outline
from tests.fakes.models import WordCounter

LONG = " ".join(f"Sentence {n} says that the seal was worn." for n in range(12))


def pieces(text: str, max_tokens: int = 48) -> list[str]:
    spans = ChunkSettings(WordCounter(), max_tokens).split(text)
    assert "".join(text[span.start : span.end] for span in spans) == text
    assert all(WordCounter().count_tokens(span.text(text)) <= max_tokens for span in spans)
    return [span.text(text) for span in spans]


@pytest.mark.parametrize(
    ("row", "lead"),
    [
        (f"Ticket: T-1 | Text: {LONG} | Refund: 731", "Ticket: T-1 | "),
        (f"Ticket: T-1 | Owner: Q | Town: Z | Day: 4 | Text: {LONG} | Refund: 731",
         "Ticket: T-1 | Owner: Q"),
        (f"Text: {LONG} | Ticket: T-1 | Refund: 731", "Ticket: T-1 | "),
        (f"T-1 | {LONG} | 731", "T-1 | "),
        (" | ".join(f"Column {n}: value {n}" for n in range(40)), "Column 0: value 0 | "),
    ],
)  # fmt: skip
def test_a_row_longer_than_a_chunk_names_itself_in_each_part(row: str, lead: str) -> None:
    others = ["Ticket: T-0 | Text: fine | Refund: 9", "Ticket: T-2 | Text: fine | Refund: 4"]
    found = pieces("\n".join([others[0], row, others[1]]))
    inner = found[1:-1]
    assert others[0] in found[0] and others[1] in found[-1]
    assert len(inner) > 1 and not any("T-0" in piece or "T-2" in piece for piece in inner)
    assert all(lead in piece or piece.startswith(row[:20]) for piece in inner)


def test_rows_are_cut_between_cells() -> None:
    row = " | ".join(f"Column {n}: value {n}" for n in range(40))
    assert all(piece.rstrip().endswith(("|", "39")) for piece in pieces(row)), pieces(row)


PLACES = ("test", "live")
ORDERS = [
    {"id": f"T-{n}", "customer": {"name": "Q", "town": "Z"},
     "items": [{"sku": f"K-{n}-{k}", "note": "as ordered by the customer"} for k in range(n % 4)],
     "total": 100 + n}
    for n in range(12)
]  # fmt: skip


@pytest.mark.parametrize("indent", [1, 2, 4])
def test_objects_of_json_are_not_cut_and_carry_their_id(indent: int) -> None:
    text = json.dumps(ORDERS, indent=indent)
    found = pieces(text, 64)
    for order in ORDERS:
        own = [piece for piece in found if f'"total": {order["total"]}' in piece]
        assert len(own) == 1 and f'"id": "{order["id"]}"' in own[0]
    small = json.dumps([{"id": f"T-{n}", "refund": n} for n in range(40)], indent=1)
    assert all(piece.count('"id"') == piece.count('"refund"') for piece in pieces(small))


def test_parts_of_a_long_object_carry_what_it_is_called() -> None:
    """Not what only opens the list, nor the first value of what holds all."""
    sensors = [
        {"name": f"sensor {n}", "limits": {"low": n, "high": 90 + n}, "place": {"room": f"R{n}"}}
        for n in range(30)
    ]
    text = json.dumps({"site": "north mole", "sensors": sensors}, indent=4)
    found = pieces(text, 60)
    for sensor in sensors:
        own = [piece for piece in found if f'"room": "{sensor["place"]["room"]}"' in piece]  # type: ignore[index]
        assert len(own) == 1 and f'"name": "{sensor["name"]}"' in own[0]
    assert sum("north mole" in piece for piece in found) == 1


def branch(depth: int, service: int) -> str:
    pad = "  " * depth
    return (
        f"{pad}service_{service}:\n{pad}  image: heron/{service}\n{pad}  memory: {64 * service}Mi\n"
    )


def branches(depth: int) -> str:
    return "".join(branch(depth, number) for number in range(12))


NESTED = {place: {f"service_{n}": {"memory": f"{64 * n}Mi"} for n in range(12)} for place in PLACES}
LISTED = "".join(f"- name: service_{n}\n  memory: {64 * n}Mi\n" for n in range(12))


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"{place}:\n{branches(1)}" for place in PLACES),
        "all:\n" + "".join(f"  {place}:\n{branches(2)}" for place in PLACES),
        "---\n# of piers\n" + "".join(f"{p}:\n  services:\n{branches(2)}" for p in PLACES),
        "".join(f"{place}:\n{LISTED}" for place in PLACES),
        json.dumps(NESTED, indent=2),
    ],
)
def test_branches_carry_their_path(text: str) -> None:
    found = [piece for piece in pieces(text, 40) if "memory" in piece and "704Mi" in piece]
    assert len(found) == 2 and "service_11" in found[0] and "service_11" in found[1]
    assert "test" in found[0] and "live" in found[1]


ITEMS = [f"item {n} which hangs behind the third door on the left" for n in range(12)]


@pytest.mark.parametrize(
    ("text", "lead"),
    [
        ("You need:\n\n" + "".join(f"- {item}\n" for item in ITEMS), "You need:\n"),
        ("Some text.\n\n## Tools\n\n" + "".join(f"* {item}\n" for item in ITEMS), "## Tools\n"),
        ("Steps:\n" + "".join(f"{n}. {item}\n" for n, item in enumerate(ITEMS)), "Steps:\n"),
        ("In the shed:\n- left\n" + "".join(f"  - {item}\n" for item in ITEMS),
         "In the shed:\n- left\n"),
        ("必要な物：\n" + "".join(f"- {item}\n" for item in ITEMS), "必要な物：\n"),
    ],
)  # fmt: skip
def test_parts_of_lists_carry_what_stands_above(text: str, lead: str) -> None:
    found = pieces(text)
    assert len(found) > 2 and all(piece.startswith(lead) for piece in found[1:] if "item" in piece)


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        "def a():\n" + "    x = 1\n" * 60,
        "From: Q\nTo: Z\n\n" + LONG,
        "# Notes\n\n" + "Key: value of this.\n" * 40,
        "Words without a list\n\n" + "    code that is indented\n" * 40,
    ],
)
def test_other_texts_repeat_nothing(text: str) -> None:
    assert "".join(pieces(text)) == text and not Outline(text, TextBoundaries(text)).is_data


@pytest.mark.parametrize(
    ("title", "cut"),
    [
        ("Fees of the harbour of Lorvik for boats below nine metres, valid from May 2025",
         "May 2025"),
        ("Manual of pump P7 " + "and its many parts " * 9 + "(revision C)", "(revision C)"),
        ("規則" * 40 + "第二版", "第二版"),
        ("a" * 90 + "-v2", "-v2"),
        ("Short", "Short"),
    ],
)  # fmt: skip
def test_titles_keep_their_end(title: str, cut: str) -> None:
    short = middle_cut(title, lambda text: len(text) <= 40) if len(title) > 40 else title
    assert len(short) <= 40 and short.endswith(cut) and short.startswith(title[:5])
