"""What a release was made of and by what: an in-toto statement with SLSA provenance, and checksums.

It is not signed: whoever publishes a release signs it with a key that its users know.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.release import lock, tools

SUMS = "SHA256SUMS"
BUILD_TYPE = "urn:kvstitch:scripts-release:v1"


def write(
    path: Path,
    files: Sequence[Path],
    images: Mapping[str, str],
    *,
    commit: str,
    source: Path,
    python: Path,
) -> None:
    """Write the statement. It has no times, because it is the same for the same bytes.

    Args:
        path: The file.
        files: What was made.
        images: Ids of images by their tags.
        commit: Of which.
        source: The exported commit.
        python: That built it.
    """
    subjects = [{"name": file.name, "digest": {"sha256": sha256(file)}} for file in sorted(files)]
    subjects += [{"name": tag, "digest": {"sha256": id}} for tag, id in images.items()]
    statement: dict[str, Any] = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"commit": commit, "images": sorted(images)},
                "internalParameters": _machine(python),
                "resolvedDependencies": [
                    {"uri": "git:kvstitch", "digest": {"gitCommit": commit}},
                    *_tools(),
                    {"uri": f"file:{lock.FILE}", "digest": {"sha256": sha256(source / lock.FILE)}},
                ],
            },
            "runDetails": {"builder": {"id": BUILD_TYPE, "version": {"python": _version(python)}}},
        },
    }
    path.write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS of all files of a folder, as `sha256sum -c` reads it."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    lines = [f"{sha256(path)}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(lines))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tools() -> list[dict[str, Any]]:
    """Return the packages that it was built with; each has the hashes that were accepted."""
    names = lock.pinned(tools.REQUIREMENTS.read_text(encoding="utf-8"))
    found = [{"uri": f"pkg:pypi/{name}@{version}"} for name, version in sorted(names.items())]
    accepted = {"sha256": sha256(tools.REQUIREMENTS)}
    return [*found, {"uri": "file:scripts/release/requirements.txt", "digest": accepted}]


def _machine(python: Path) -> dict[str, str]:
    compiler = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=True)
    return {
        "platform": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "compiler": compiler.stdout.splitlines()[0],
        "python": _version(python),
    }


def _version(python: Path) -> str:
    said = "import platform; print(platform.python_implementation(), platform.python_version())"
    return subprocess.run(
        [python, "-c", said], capture_output=True, text=True, check=True
    ).stdout.strip()
