"""The environment that a release is built with: only what requirements.txt names, by hash."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def install(root: Path) -> Path:
    """Return the interpreter of .venv/release, which is made anew when other tools are named."""
    folder = root / ".venv" / "release"
    mark = folder / ".installed"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not mark.is_file() or mark.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q"]
        wanted_only = ["install", "--require-hashes", "--no-deps", "-r", str(REQUIREMENTS)]
        subprocess.run([*pip, *wanted_only], check=True)
        mark.write_text(wanted)
    return folder / "bin" / "python"
