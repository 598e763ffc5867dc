"""Writes kvstitch/client/sync_client.py, the twin of async_client.py without async and await.

python scripts/sync_client.py            writes it
python scripts/sync_client.py --check    fails if it is not up to date
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "kvstitch" / "client"
REPLACED = (
    (r'"""The client for coroutines.*', '"""The client for blocking code: see async_client.py."""'),
    (
        "A service, for coroutines. ",
        "A service, for blocking code. Any number of threads may use it.\n    ",
    ),
    (r"\ban `async with`", "a `with`"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(AnswerStream|Client|Iterator)\b", r"\1"),
    (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
    (r"\ba(close|read|iter_lines)\b", r"\1"),
    (r"\basync_read_files\b", "read_files"),
    (r"\basyncio\b", "time"),
    (r"for item in (.+):\n +yield item", r"yield from \1"),
)


def generated() -> str:
    """Return the blocking client, formatted."""
    text = (FOLDER / "async_client.py").read_text(encoding="utf-8")
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    for arguments in (("check", "--fix", "--quiet", "--select", "F401,I"), ("format", "--quiet")):
        command = ["ruff", *arguments, "--stdin-filename", str(FOLDER / "sync_client.py"), "-"]
        done = subprocess.run(
            [sys.executable, "-m", *command], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


def main() -> int:
    file = FOLDER / "sync_client.py"
    if "--check" not in sys.argv:
        file.write_text(generated(), encoding="utf-8")
        return 0
    if file.read_text(encoding="utf-8") == generated():
        return 0
    print(f"{file} is not up to date: python scripts/sync_client.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
