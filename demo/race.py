"""One question, two streams side by side with a clock: full prefill, then the service's default.

They run one after the other, because at the same time each would slow the other down. The streams
are live: the clocks are those of the request.
"""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from demo.client import Answer, Client
from demo.report import is_plain, say
from demo.scenario import FULL, ask


class Lane:
    """One stream and its clock."""

    def __init__(self, title: str, method: str | None) -> None:
        self.title, self.method = title, method
        self.began = self.first = self.ended = 0.0
        self.text = ""

    def take(self, text: str) -> None:
        self.first = self.first or time.perf_counter()
        self.text += text

    def run(self, client: Client, question: str) -> Answer:
        self.began = time.perf_counter()
        answer = ask(client, question, self.method, on_text=self.take)
        self.ended = time.perf_counter()
        return answer

    @property
    def times(self) -> str:
        """When the first word and the last one came, as far as they have."""
        if not self.first:
            return "waiting for the first word"
        first = f"first word {self.first - self.began:.2f} s"
        return f"{first}, all {self.ended - self.began:.2f} s" if self.ended else first

    def __rich__(self) -> Panel:
        clock = (self.ended or time.perf_counter()) - self.began if self.began else 0.0
        shown = Group(Text(f"{clock:5.2f} s", style="bold"), Text(self.text.strip() or " "))
        return Panel(shown, title=self.title, subtitle=self.times, height=8)


def race(console: Console, client: Client, question: str) -> Answer:
    """Shows both streams, in a terminal as they come; returns full prefill's answer."""
    lanes = Lane("full prefill", FULL), Lane("kvstitch", None)
    say(console, f"“{question}”", "bold")
    if is_plain(console):
        full, _ = [lane.run(client, question) for lane in lanes]
        for lane in lanes:
            say(console, f"{lane.title:12}  {lane.times}: {lane.text.strip()}")
        return full
    table = Table.grid(expand=True)
    for _ in lanes:
        table.add_column(ratio=1)
    table.add_row(*lanes)
    with Live(table, console=console, refresh_per_second=20):
        full, _ = [lane.run(client, question) for lane in lanes]
    return full
