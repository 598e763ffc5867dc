"""Cells of a table, and the grid that they lie on once those that span are laid out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvstitch.service.gateway.documents.parsing.parsed_file import one_line

MAX_COLUMNS = 16_384  # Excel's; spans beyond it are cut


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell, with its text on one line, and over how many rows and columns it is merged."""

    text: str
    rows: int = 1
    columns: int = 1


Row = list[Cell]
NOTHING = Cell("")


def grid(rows: Iterable[Sequence[Cell | str]]) -> Iterator[Row]:
    """Yield rows by column; a cell that spans stands, as the same object, in each of its places."""
    above: dict[int, tuple[Cell, int]] = {}  # column → a cell, and how many rows it still covers
    for given in rows:
        placed: list[tuple[Cell, int]] = []
        waiting = iter(given)
        while True:
            if len(placed) in above:
                cell, left = above.pop(len(placed))
                placed.append((cell, left - 1))
            elif (item := next(waiting, None)) is not None:
                cell = item if isinstance(item, Cell) else Cell(item)
                cell = Cell(one_line(cell.text), cell.rows, cell.columns)
                for number in range(min(max(cell.columns, 1), MAX_COLUMNS - len(placed))):
                    if number and len(placed) in above:
                        break  # two cells claim the place: the one above has it
                    placed.append((cell, cell.rows - 1))
            elif above:
                placed.append((NOTHING, 0))
            else:
                break
        above = {column: one for column, one in enumerate(placed) if one[1] > 0}
        yield [cell for cell, _ in placed]


def distinct(row: Row) -> Row:
    """Return the cells with text, each once."""
    return list({id(cell): cell for cell in row if cell.text}.values())
