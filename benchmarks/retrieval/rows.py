"""Questions whose answer is one row of a long table, in CSV, XLSX, PDF and JSON.

    python -m benchmarks.retrieval.rows [--show]

The tables are made here. The search was mended on the 40 questions of the first ones, and what
parts of JSON repeat on four of the other 20, which were made beforehand. Documents go through the
service's parsers and chunks, the search is hybrid. A question counts if one of the first three
passages names its row and holds its answer.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import openpyxl

from benchmarks.quality.tasks.documentation import parsed
from kvstitch.retriever import LocalEmbedder, Retriever
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.settings import Settings
from loadtest.command_line import DEMO_MODEL
from tests.service.gateway.documents.pdfs import Drawn, draw_pdf

PLACES, ROWS_OF_A_PAGE = 3, 44
TOWNS = ["Zanska", "Lorvik", "Ostrander", "Marlowe", "Quastel", "Heronby", "Tolliver", "Brimsdal",
         "Corvane", "Duskmoor", "Elmara", "Fenholt"]  # fmt: skip
_FIRST = ("Quas", "Tolli", "Mar", "Oster", "Bri", "Cor", "Dus", "Elm", "Fen", "Gar", "Hol", "Ive")
_LAST = ("tel", "ver", "lowe", "rand", "smal", "vane", "moor", "holt")
NAMES = [first + last for first in _FIRST for last in _LAST]
LONG = (
    "The unit was inspected on site by two engineers, who found worn seals, a loose bracket and "
    "traces of salt water; parts were ordered and the customer was told to wait for a call. "
)

Table = Sequence[Sequence[object]]


class Asked(NamedTuple):
    """A question; a passage that answers it holds all of `wanted`."""

    file: str
    question: str
    wanted: Sequence[str]


def mended() -> tuple[dict[str, bytes], list[Asked]]:
    """The tables on which the search was mended, and 40 questions."""
    rng = random.Random(58)
    tickets = [
        (f"T-{5100 + i}", NAMES[i % 96], TOWNS[i % 12], LONG * rng.choice([1, 1, 4, 7]),
         f"{200 + i * 13 % 800} crowns", NAMES[(i * 7 + 3) % 96])
        for i in range(80)
    ]  # fmt: skip
    columns = (
        "Part", "Description", "Supplier", "Town", "Weight kg", "Price", "Minimum", "Stock",
        "Shelf", "Material", "Pressure bar", "Thread", "Colour", "Replaces", "Ordered", "Delivered",
        "Warranty", "Remark",
    )  # fmt: skip
    parts = [
        (f"VX-{2000 + i}", f"{rng.choice(['Gate', 'Ball', 'Check', 'Relief', 'Needle'])} valve "
         f"size {i % 9 + 1}", NAMES[i % 96], TOWNS[i * 5 % 12], round(1 + i * 0.37, 2),
         100 + i * 3, i % 7, i % 31, f"{'ABCDEFG'[i % 7]}{i % 40}",
         rng.choice(["bronze", "steel", "brass"]), 10 + i % 60, f"M{8 + i % 12}",
         rng.choice(["red", "grey", "blue"]), f"VX-{1000 + i}", f"2025-0{i % 9 + 1}-1{i % 9}",
         f"2025-1{i % 3}-0{i % 9 + 1}", f"{i % 5 + 1} years", f"Remark {i}: see drawing {7000 + i}")
        for i in range(300)
    ]  # fmt: skip
    orders = [
        {"id": f"ORD-{7300 + i}",
         "customer": {"name": NAMES[i * 3 % 96], "town": TOWNS[i % 12]},
         "items": [{"sku": f"K-{(i * 17 + k) % 997}", "count": k + 1,
                    "note": LONG if k == 1 and i % 5 == 0 else "as ordered"}
                   for k in range(1 + i % 5)],
         "carrier": rng.choice(["Heron Lines", "Tern Post", "Ferry 9"]),
         "delivered": f"2025-0{i % 9 + 1}-{10 + i % 18}", "total": 500 + i * 11}
        for i in range(150)
    ]  # fmt: skip
    boats = [
        (f"Heron {i + 1}", NAMES[i * 5 % 96], TOWNS[i % 12], f"{1 + i % 40 / 10:.1f} m",
         f"{40 + i * 3} kW", f"P{i % 90 + 1}")
        for i in range(200)
    ]  # fmt: skip
    boat_columns = ("Boat", "Owner", "Home port", "Draught", "Engine power", "Berth")
    ticket_columns = ("Ticket", "Customer", "Town", "Report", "Refund", "Closed by")
    asked = []
    for i in (3, 9, 17, 22, 31, 38, 46, 55, 63, 77):
        name, *_, refund, by = tickets[i]
        question = f"Who closed ticket {name}?" if i % 2 else f"refund of ticket {name}"
        asked.append(Asked("tickets.csv", question, (name, by if i % 2 else refund)))
    for i in (5, 33, 71, 90, 128, 150, 177, 204, 260, 290):
        at, name = (10, 8, 16, 13, 5)[i % 5], str(parts[i][0])
        column = columns[at]
        question = f"{column.removesuffix(' bar')} of part {name}"
        asked.append(Asked("stock.xlsx", question, (name, f"{column}: {parts[i][at]}")))
    for i in (2, 15, 40, 55, 61, 80, 99, 110, 125, 140):
        key = ("carrier", "delivered", "total")[i % 3]
        question = {
            "carrier": "Which carrier brought order", "total": "total of order",
            "delivered": "When was it delivered: order",
        }[key]  # fmt: skip
        wanted = f'"{key}": {json.dumps(orders[i][key])}'
        name = str(orders[i]["id"])
        asked.append(Asked("orders.json", f"{question} {name}", (name, wanted)))
    places = [(i, (3, 4, 2, 1, 5)[i % 5]) for i in (4, 30, 52, 60, 88, 101, 130, 145, 170, 190)]
    asked += _asked(
        "boats.pdf", boat_columns, boats,
        {(i, at): f"{boat_columns[at]} of boat {boats[i][0]}" for i, at in places},
    )  # fmt: skip
    files = {
        "tickets.csv": _csv([ticket_columns, *tickets]),
        "stock.xlsx": _xlsx("Stock", [columns, *parts]),
        "orders.json": json.dumps(orders, indent=2).encode(),
        "boats.pdf": _pdf([boat_columns, *boats], (40, 130, 230, 330, 410, 500)),
    }
    return files, asked


def others() -> tuple[dict[str, bytes], list[Asked]]:
    """Other tables, and 20 questions."""
    rng = random.Random(85)
    gauges = [
        (f"Gauge {i + 1}", f"{TOWNS[i * 7 % 12]} {rng.choice(['bridge', 'weir', 'lock'])}",
         f"{rng.randint(100, 999) / 10} km", f"{rng.randint(40, 690)} cm",
         NAMES[rng.randrange(96)], rng.choice(["float", "radar", "pressure cell"]))
        for i in range(160)
    ]  # fmt: skip
    gauge_columns = ("Station", "Place", "River kilometre", "Flood mark", "Keeper", "Sensor")
    people = [
        (i + 301, f"{NAMES[i * 11 % 96]}, {rng.choice(['Ada', 'Bo', 'Cy', 'Di', 'Eva'])}",
         rng.choice(["Harbour office", "Dredging", "Pilots", "Accounts"]),
         f"{rng.randint(1, 4)}.{rng.randint(10, 49)}", 4000 + i, f"{rng.randint(1, 28)} May 2019")
        for i in range(96)
    ]  # fmt: skip
    people_columns = ("Number", "Name", "Department", "Room", "Extension", "Joined on")
    sensors = {
        "site": "north mole",
        "sensors": [
            {"name": f"sensor {i + 1}", "serial": f"{rng.randrange(16**8):08x}",
             "limits": {"low": rng.randint(1, 20), "high": rng.randint(60, 99)},
             "location": {"building": f"B{i % 9 + 1}", "floor": i % 5,
                          "room": f"{rng.randint(100, 599)}"},
             "calibrated": f"2024-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
             "maintainer": NAMES[rng.randrange(96)]}
            for i in range(120)
        ],
    }  # fmt: skip
    flights = [
        (f"{rng.choice(['NA', 'KT', 'OV'])} {100 + i}", TOWNS[i % 12], TOWNS[(i * 5 + 1) % 12],
         f"{i % 24:02}:{i * 7 % 60:02}", f"Gate {rng.choice('ABC')}{rng.randint(1, 30)}",
         f"{rng.choice([737, 320, 190])}")
        for i in range(180)
    ]  # fmt: skip
    flight_columns = ("Flight", "From", "To", "Leaves at", "Gate", "Aircraft")
    asked = _asked("gauges.csv", gauge_columns, gauges, {
        (6, 4): "Who keeps gauge 7?",
        (24, 3): "flood mark at Gauge 25",
        (70, 5): "What kind of sensor has gauge 71?",
        (118, 2): "At which river kilometre is station Gauge 119?",
        (141, 1): "Where is Gauge 142?",
    })  # fmt: skip
    asked += _asked("staff.xlsx", people_columns, people, {
        (10, 3): f"Which room has {_spoken(people[10][1])}?",
        (33, 4): f"phone extension of {_spoken(people[33][1])}",
        (47, 2): "In which department does employee number 348 work?",
        (62, 5): f"When did {_spoken(people[62][1])} join?",
        (90, 1): "Who has extension 4090?",
    })  # fmt: skip
    asked += _asked("flights.pdf", flight_columns, flights, {
        (3, 4): f"From which gate does flight {flights[3][0]} leave?",
        (58, 3): f"departure time of {flights[58][0]}",
        (77, 2): f"Where does flight {flights[77][0]} go?",
        (120, 5): f"aircraft of flight {flights[120][0]}",
        (165, 1): f"Where does {flights[165][0]} come from?",
    })  # fmt: skip
    listed: Any = sensors["sensors"]
    for i, key, question in (
        (11, "serial", "serial number of sensor 12"),
        (42, "maintainer", "Who maintains sensor 43?"),
        (57, "calibrated", "When was sensor 58 calibrated?"),
        (83, "high", "upper limit of sensor 84"),
        (107, "room", "In which room is sensor 108?"),
    ):
        flat = {**listed[i], **listed[i]["limits"], **listed[i]["location"]}
        own = f'"{key}": {json.dumps(flat[key])}'
        asked.append(Asked("sensors.json", question, (f'"{listed[i]["name"]}"', own)))
    files = {
        "gauges.csv": _csv([gauge_columns, *gauges]),
        "staff.xlsx": _xlsx("Staff", [people_columns, *people]),
        "sensors.json": json.dumps(sensors, indent=4).encode(),
        "flights.pdf": _pdf([flight_columns, *flights], (40, 120, 230, 340, 410, 490)),
    }
    return files, asked


def _asked(
    file: str, columns: Sequence[str], rows: Table, asked: dict[tuple[int, int], str]
) -> list[Asked]:
    """Questions by row and column of what answers them."""
    return [
        Asked(file, question, (f"{columns[0]}: {rows[i][0]} |", f"{columns[at]}: {rows[i][at]}"))
        for (i, at), question in asked.items()
    ]


def _spoken(name: object) -> str:
    return " ".join(reversed(str(name).split(", ")))


def _csv(rows: Table) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _xlsx(title: str, rows: Table) -> bytes:
    book, out = openpyxl.Workbook(), io.BytesIO()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    book.save(out)
    return out.getvalue()


def _pdf(rows: Table, left: Sequence[int]) -> bytes:
    """A table over pages, its header on the first alone."""
    head, *body = rows
    pages: list[list[Drawn]] = []
    for first in range(0, len(body), ROWS_OF_A_PAGE):
        shown = [head] * (not first) + list(body[first : first + ROWS_OF_A_PAGE])
        cells = [
            Drawn(x, 780 - 16 * line, str(cell), 9)
            for line, row in enumerate(shown)
            for x, cell in zip(left, row, strict=True)
        ]
        pages.append(cells)
    return draw_pdf(pages)


def missed(retriever: Retriever, asked: Sequence[Asked]) -> Iterator[tuple[Asked, list[str]]]:
    """Questions without an answer in the first passages, which are returned with them."""
    for each in asked:
        found = retriever.search(each.question, PLACES, mode="hybrid")
        texts = [passage.chunk.text for passage in found]
        if not any(all(part in text for part in each.wanted) for text in texts):
            yield each, texts


def opened(folder: Path, files: dict[str, bytes]) -> Retriever:
    """A retriever that holds the files, in pieces as the demo's model has them."""
    chunking = PromptBuilder(DEMO_MODEL, Settings.model_validate({})).chunking()
    retriever = Retriever.in_folder(folder, LocalEmbedder(), chunking)
    retriever.start()
    retriever.ingest(parsed(files.items()))
    return retriever


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", action="store_true", help="what was found in place of the rows")
    args = parser.parse_args()
    for name, (files, asked) in {"mended": mended(), "others": others()}.items():
        with TemporaryDirectory(prefix="kvstitch-") as folder:
            retriever = opened(Path(folder), files)
            without = list(missed(retriever, asked))
            retriever.close()
        for each, texts in without if args.show else ():
            print(each.question, each.wanted, *texts, sep="\n    ")
        lost, most = (Counter(x.file for x in part) for part in ([m for m, _ in without], asked))
        print(f"{name}: {len(asked) - len(without)} of {len(asked)} in the first {PLACES}")
        print(
            *(f"    {file}: {most[file] - lost[file]} of {most[file]}" for file in most), sep="\n"
        )


if __name__ == "__main__":
    main()
