"""serving.lock: what serving installs, by version and hash. It is the image's, with its extras.

torch is not in it: whoever installs chooses its index (CPU or CUDA), and installs it before.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

FILE = Path("scripts/release/serving.lock")
# torch, and what its build for CUDA brings.
_TORCH = ("torch", "triton", "nvidia-", "cuda-")
_HEAD = """\
# What serving installs beside torch, made by `python -m scripts.release lock` for Linux:
#   pip install torch==…            from the index of your choice
#   pip install --require-hashes --no-deps -r {name}
#   pip install --no-deps kvstitch-*.whl
"""


def write(root: Path, python: Path) -> None:
    """Resolve the requirements within constraints.txt, and write the file anew."""
    extras = [argument for extra in extras_of_the_image(root) for argument in ("--extra", extra)]
    options = ["--generate-hashes", "--no-header", "--no-annotate", "--quiet", "--native-tls"]
    target = ["--python-version", "3.11.4", "--python-platform", "x86_64-unknown-linux-gnu"]
    done = subprocess.run(
        [python, "-m", "uv", "pip", "compile", "pyproject.toml", *extras, *options, *target,
         "-c", "constraints.txt"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    entries = [entry for entry in _entries(done.stdout) if not entry.startswith(_TORCH)]
    (root / FILE).write_text(_HEAD.format(name=FILE.name) + "".join(entries), encoding="utf-8")


def extras_of_the_image(root: Path) -> list[str]:
    """Return the extras that the Dockerfile installs whatever it is told."""
    text = (root / "docker" / "Dockerfile").read_text(encoding="utf-8")
    (found,) = re.findall(r"(?m)^ +([a-z0-9 ]+) \$\{EXTRAS\}", text)
    return str(found).split()


def pinned(text: str) -> dict[str, str]:
    """Return the versions in a lock by their names."""
    found = {}
    for entry in _entries(text):
        name, _, version = entry.split()[0].partition("==")
        found[name] = version
    return found


def hashes(text: str) -> dict[str, int]:
    """Return how many hashes each name in a lock has."""
    return {entry.split("==")[0]: entry.count("--hash=sha256:") for entry in _entries(text)}


def _entries(text: str) -> list[str]:
    """Return a lock's requirements, each with its lines of hashes."""
    entries: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("#"):
            continue
        if line[:1].isspace() and entries:
            entries[-1] += line
        elif line.strip():
            entries.append(line)
    return entries
