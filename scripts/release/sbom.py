"""The SBOM (CycloneDX 1.6): what serving.lock names, with hashes and licences, and torch."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from scripts.release import licences, lock


def write(path: Path, source: Path, *, python: Path, epoch: int) -> None:
    """Write the SBOM of an exported commit.

    Args:
        path: The file.
        source: The exported commit.
        python: Of an environment with cyclonedx-py.
        epoch: The time that it says it was made at.
    """
    listed = (source / lock.FILE).read_text(encoding="utf-8")
    (torch,) = re.findall(
        r"(?m)^torch==\S+", (source / "constraints.txt").read_text(encoding="utf-8")
    )
    done = subprocess.run(
        [python, "-m", "cyclonedx_py", "requirements", "-", "--pyproject",
         source / "pyproject.toml", "--output-reproducible", "--of", "JSON", "--sv", "1.6"],
        input=f"{torch}\n{listed}", capture_output=True, text=True, check=True,
    )  # fmt: skip
    bill: dict[str, Any] = json.loads(done.stdout)
    known = licences.listed(source)
    for component in bill["components"]:
        del component["description"]  # the line that it stands in
        component["licenses"] = [{"expression": known[component["name"].lower()]}]
    bill["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).isoformat()
    content = json.dumps(bill, sort_keys=True)
    bill["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, content)}"
    path.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n", encoding="utf-8")
