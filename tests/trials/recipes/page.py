"""What a page says to run.

A section (`## …`) is a recipe; its fenced blocks are, by the words behind the three backticks:

    sh              commands; a `text` block behind them is what they print (… is anything)
    sh server:WHERE commands that go on running; WHERE is a port or URL that answers then
    sh installs     commands that need package registries, run once, before the others
    sh untried      commands that nobody runs here, as the page says
    NAME            a file, whose name stands behind the comment sign of its first line
"""

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.S | re.M)
MARK = "@@ block"


@dataclass(frozen=True)
class Block:
    kind: str
    word: str
    text: str


@dataclass(frozen=True)
class Recipe:
    title: str
    blocks: tuple[Block, ...]

    def commands(self, word: str) -> list[str]:
        return [one.text for one in self.blocks if one.kind == "sh" and one.word.startswith(word)]

    def files(self) -> dict[str, str]:
        shown = [one.text for one in self.blocks if one.kind not in ("sh", "text")]
        return {text.partition("\n")[0].lstrip("# "): text for text in shown}

    def programs(self) -> set[str]:
        """What serves, besides what the section itself installs."""
        first = [text.splitlines()[-1].split()[0] for text in self.commands("server:")]
        return {name for name in first if "/" not in name and "=" not in name}

    def script(self) -> str:
        """All commands in one shell, so that later ones see the variables of earlier ones."""
        parts = ["set -euo pipefail"]
        for number, block in enumerate(self.blocks):
            if block.kind == "sh" and block.word not in ("installs", "untried"):
                parts.append(f"echo '{MARK} {number}'")
                parts.append(_served(block, number) if block.word else block.text)
        return "\n".join(parts)


def recipes(page: Path) -> list[Recipe]:
    sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.M)[1:]
    blocks = [tuple(Block(*found) for found in BLOCK.findall(section)) for section in sections]
    return [Recipe(s.partition("\n")[0], b) for s, b in zip(sections, blocks, strict=True)]


def printed(output: str) -> dict[int, str]:
    """What each block of a script printed."""
    parts = re.split(rf"^{MARK} (\d+)\n", output, flags=re.M)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def shows(expected: str, found: str) -> bool:
    pattern = re.escape(expected.strip()).replace("…", ".*?")
    return re.fullmatch(pattern, found.strip(), re.S) is not None


def _served(block: Block, number: int) -> str:
    where, log = block.word.removeprefix("server:"), f"server-{number}.log"
    answers = f"curl -sfo /dev/null {where}"
    if where.isdigit():
        answers = f"(: </dev/tcp/localhost/{where}) 2>/dev/null"
    ended = f"{{ tail {log} >&2; exit 1; }}"
    return f"""({block.text}) >{log} 2>&1 &
for ((n = 0; n < 300; n++)); do {answers} && break; kill -0 $! || {ended}; sleep 1; done
{answers} || {ended}"""
