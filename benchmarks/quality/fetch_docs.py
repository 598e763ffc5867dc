"""Fetches the documentation that the suite `docs` asks about, from the archives of Debian.

    python -m benchmarks.quality.fetch_docs

The packages are those of `data/docs_packages.json`, in these versions and no others: an archive
that has a newer one only is left for the next. Every package is compared with its SHA-256 before it
is opened. Nothing of it is run or installed; files go to PACKAGE/FILE below --out, with the
package's copyright file beside them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import httpx

from benchmarks.quality.tasks.documentation import Package, default_folder, packages

ARCHIVES = (
    "http://deb.debian.org/debian/",
    # Debian's own archive of what its mirrors had, at a time at which all of these were current.
    "https://snapshot.debian.org/archive/debian/20260901T000000Z/",
)
_MAGIC = b"!<arch>\n"
_HEADER = 60
"""Bytes before each member of an ar archive; the 10 from 48 on are its size."""


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.fetch_docs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=default_folder(), help="(default: %(default)s)")
    parser.add_argument("--packages", type=Path, help="another list of them, as the suite's own")
    parser.add_argument("--archives", nargs="+", default=ARCHIVES, help="tried one after the other")
    args = parser.parse_args(given)
    with httpx.Client(follow_redirects=True, timeout=120.0) as http:
        for package in packages() if args.packages is None else packages(args.packages):
            if all((args.out / package.name / file).is_file() for file in package.files):
                continue
            try:
                extract(_fetched(http, args.archives, package), package, args.out)
            except (OSError, ValueError, tarfile.TarError, httpx.HTTPError) as error:
                print(f"{package.name} {package.version}: {error}", file=sys.stderr)
                return 1
            print(f"{package.name} {package.version}: {len(package.files)} files")
    return 0


def extract(deb: bytes, package: Package, folder: Path) -> None:
    """Writes a package's files of the collection, and its copyright file.

    Raises:
        ValueError: it is another package, or lacks a file.
        tarfile.TarError: it cannot be read.
    """
    found = hashlib.sha256(deb).hexdigest()
    if found != package.sha256:
        raise ValueError(f"SHA-256 is {found} instead of {package.sha256}")
    wanted = {str(PurePosixPath(path)): name for name, path in package.files.items()}
    wanted[f"usr/share/doc/{package.name}/copyright"] = "copyright"
    target = folder / package.name
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(_data(deb))) as tar:
        for member in tar:
            name = wanted.get(str(PurePosixPath(member.name)))
            content = tar.extractfile(member) if name is not None and member.isfile() else None
            if name is not None and content is not None:
                (target / name).write_bytes(content.read())
    missing = [name for name in package.files if not (target / name).is_file()]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")


def _fetched(http: httpx.Client, archives: Sequence[str], package: Package) -> bytes:
    for archive in archives:
        answer = http.get(archive + package.path)
        if answer.is_success:
            return answer.content
    raise ValueError(f"none of {', '.join(archives)} has it ({answer.status_code})")


def _data(deb: bytes) -> bytes:
    """The compressed tar archive of the files in a package, which is an ar archive.

    Raises:
        ValueError: it has none.
    """
    if not deb.startswith(_MAGIC):
        raise ValueError("it is no Debian package")
    place = len(_MAGIC)
    while place + _HEADER <= len(deb):
        header = deb[place : place + _HEADER]
        size, start = int(header[48:58]), place + _HEADER
        if header.startswith(b"data.tar"):
            return deb[start : start + size]
        place = start + size + size % 2  # members begin at even places
    raise ValueError("it holds no files")


if __name__ == "__main__":
    sys.exit(main())
