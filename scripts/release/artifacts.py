"""Wheels and source distribution of a commit, the same bytes whenever and wherever they are built.

The wheel for this machine has the kernels in C; beside it is one for all machines without them
(`py3-none-any`), which says so in its description. What would differ is fixed: files are those of
git, with the commit's time, one owner and one order; paths of the build folder are kept out of the
kernels.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

CALL = (
    "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
)
KERNELS = re.compile(
    r"(?ms)^# [^\n]*kernels[^\n]*\n\[\[tool\.setuptools\.ext-modules\]\].*?(?=^\[)"
)
NOTE = """
This is the wheel for all machines: it has no compiled kernels, and PyTorch's operations are used in
their place. The wheel for Linux on x86-64 has them.
"""


def resolved(root: Path, commit: str) -> str:
    """Return the full hash of a commit."""
    return _git(root, "rev-parse", f"{commit}^{{commit}}").decode().strip()


def committed_at(root: Path, commit: str) -> int:
    """Return the time of a commit in Unix seconds."""
    return int(_git(root, "show", "-s", "--format=%ct", commit))


def exported(root: Path, commit: str, to: Path) -> Path:
    """Write the files of a commit into a new folder, and return it."""
    to.mkdir(parents=True)
    archive = _git(root, "archive", commit)
    subprocess.run(["tar", "-x"], cwd=to, input=archive, check=True)
    return to


def version_of(source: Path) -> str:
    """Return the project's version."""
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def build(source: Path, out: Path, *, python: Path, epoch: int) -> list[Path]:
    """Build into `out`; return the files.

    Args:
        source: The exported commit; the builds leave files in it.
        out: Gets the files.
        python: With setuptools, for which the wheel is.
        epoch: The time that all files get.
    """
    environment = {
        **{
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CFLAGS", "LDFLAGS"))
        },
        "SOURCE_DATE_EPOCH": str(epoch),
        "LC_ALL": "C",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "CFLAGS": f"-g0 -ffile-prefix-map={source}=.",
        "CC": "gcc",
        "LDSHARED": "gcc -shared",  # an interpreter's own may name the folder that it is in
        "LDFLAGS": "-Wl,--build-id=none,--strip-all",
    }
    _call("build_sdist", source, out, python, environment)
    _call("build_wheel", source, out, python, environment)
    compiled = next(out.glob("*.whl"), None)
    if compiled is None or compiled.name.endswith("-any.whl"):
        raise SystemExit("release: the kernels were not built; see the compiler's messages above")
    for left in ("build", *(path.name for path in source.glob("*.egg-info"))):
        subprocess.run(["rm", "-rf", source / left], check=True)
    without_kernels(source)
    _call("build_wheel", source, out, python, environment)
    for plugin in sorted(source.glob("plugins/*/pyproject.toml")):
        _call("build_wheel", plugin.parent, out, python, environment)
    (archive,) = out.glob("*.tar.gz")
    normalise(archive, epoch)
    return sorted([archive, *out.glob("*.whl")])


def without_kernels(source: Path) -> None:
    """Change an exported commit so that its wheel is for all machines."""
    project = source / "pyproject.toml"
    text, found = KERNELS.subn("", project.read_text(encoding="utf-8"))
    assert found == 1, "pyproject.toml has no table of kernels"
    project.write_text(text, encoding="utf-8")
    with (source / "README.md").open("a", encoding="utf-8") as readme:
        readme.write(NOTE)


def normalise(archive: Path, epoch: int) -> None:
    """Write a .tar.gz again: sorted, with one time and one owner, and without a name in it."""
    with tarfile.open(archive) as before:
        members = sorted(before.getmembers(), key=lambda member: member.name)
        made = archive.with_suffix(".new")
        with (
            made.open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
        ):
            for member in members:
                member.mtime, member.uid, member.gid = epoch, 0, 0
                member.uname = member.gname = ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                after.addfile(member, before.extractfile(member) if member.isreg() else None)
    made.replace(archive)


def _call(hook: str, source: Path, out: Path, python: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [python, "-c", CALL, hook, out], cwd=source, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"release: {hook} failed\n{(done.stdout + done.stderr)[-4000:]}")


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout
