"""Makes a release of a commit: wheels, source distribution, SBOM, provenance, SHA256SUMS.

    python -m scripts.release [--out dist] [--commit HEAD] [--image TAG]
    python -m scripts.release lock          write serving.lock and docs/dependencies.md anew

Everything is made from what git has of the commit, with tools of an environment of its own
(.venv/release, versions and hashes in requirements.txt). Two runs with the same tools give the same
bytes, in whatever folder and whenever. docs/dependencies.md says how they are verified.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.release import artifacts, licences, lock, provenance, sbom, tools

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("action", nargs="?", choices=("make", "lock"), default="make")
    add("--out", type=Path, default=Path("dist"), help="new folder (default: dist)")
    add("--commit", default="HEAD", help="of which (default: HEAD)")
    add("--image", metavar="TAG", help="also build the CPU image of this checkout; needs Docker, "
        "and is not the same bytes twice")  # fmt: skip
    args = parser.parse_args()
    python = tools.install(ROOT)
    if args.action == "lock":
        lock.write(ROOT, python)
        licences.write(ROOT)
        return 0
    make(args.out.absolute(), commit=args.commit, python=python, image=args.image)
    return 0


def make(out: Path, *, commit: str, python: Path, image: str | None = None) -> None:
    """Write all files of a release into a new folder.

    Args:
        out: The folder.
        commit: Any name that git knows.
        python: Of the tools' environment.
        image: The tag of the image that is to be built, too.
    """
    if out.exists() and any(out.iterdir()):
        sys.exit(f"release: {out} is not empty")
    out.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)  # modes are in the archives
    commit = artifacts.resolved(ROOT, commit)
    with tempfile.TemporaryDirectory(prefix="kvstitch-release-") as folder:
        source = artifacts.exported(ROOT, commit, Path(folder) / "source")
        epoch = artifacts.committed_at(ROOT, commit)
        built = artifacts.build(source, out, python=python, epoch=epoch)
        version = artifacts.version_of(source)
        locked = out / f"kvstitch-{version}.lock"
        shutil.copyfile(source / lock.FILE, locked)
        bill = out / f"kvstitch-{version}.cdx.json"
        sbom.write(bill, source, python=python, epoch=epoch)
        files = [*built, locked, bill]
        images = {image: built_image(image)} if image else {}
        statement = out / f"kvstitch-{version}.provenance.json"
        provenance.write(statement, files, images, commit=commit, source=source, python=python)
    provenance.write_sums(out)
    print((out / provenance.SUMS).read_text(), end="")


def built_image(tag: str) -> str:
    """Build the CPU image from this checkout; return its id, a SHA-256 of its configuration."""
    build = [sys.executable, "-m", "scripts.containers.build", "--target", "service", "-t", tag]
    subprocess.run(build, cwd=ROOT, check=True)
    inspect = ["docker", "image", "inspect", "--format", "{{.Id}}", tag]
    found = subprocess.run(inspect, capture_output=True, text=True, check=True)
    return found.stdout.strip().removeprefix("sha256:")


if __name__ == "__main__":
    sys.exit(main())
