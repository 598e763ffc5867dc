"""Damages of the files of an SSD tier."""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvstitch.kvstore.format.chunk_header import VERSION, parse_header
from kvstitch.kvstore.format.safetensors_header import header_bytes
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path, extra_path
from tests.kvstore.format.test_chunk_header import reseal
from tests.trials.store.contents import EXTRA, Entry
from tests.trials.store.damage import Damage, Effect

KEPT, UNSURE, LOST = Effect.KEPT, Effect.UNSURE, Effect.LOST
FOREIGN = "foreign-"  # names of what is nobody's begin with this


@dataclass(frozen=True)
class Files:
    """The files of one chunk, and of another one with the same spec."""

    rng: random.Random
    root: Path
    entry: Entry
    neighbour: Entry

    @property
    def chunk(self) -> Path:
        return chunk_path(self.root, self.entry.key)

    @property
    def extra(self) -> Path:
        return extra_path(self.root, self.entry.key, EXTRA)

    @property
    def other(self) -> Path:
        return chunk_path(self.root, self.neighbour.key)

    @property
    def other_extra(self) -> Path:
        return extra_path(self.root, self.neighbour.key, EXTRA)


Change = Callable[[Files], object]


def flip(region: str) -> Change:
    """Flip one bit of a region of the chunk file."""

    def apply(files: Files) -> None:
        content = bytearray(files.chunk.read_bytes())
        start = header_bytes(content)
        first, last = {
            "length": (0, 8),
            "header": (8, start),
            "data": (start, len(content)),
            "last byte": (len(content) - 1, len(content)),
        }[region]
        content[files.rng.randrange(first, last)] ^= 1 << files.rng.randrange(8)
        files.chunk.write_bytes(content)

    return apply


def cut(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size
    os.truncate(path, rng.choice([0, 1, 7, 8, 64, size // 2, size - 1, rng.randrange(size)]))


def zeros(files: Files) -> None:
    files.chunk.write_bytes(bytes(files.chunk.stat().st_size))


def hole(files: Files) -> None:
    """Lose a sector: half a KiB of zeros in the data."""
    content = bytearray(files.chunk.read_bytes())
    at = files.rng.randrange(header_bytes(content), len(content) - 600)
    content[at : at + 512] = bytes(512)
    files.chunk.write_bytes(content)


def noise(files: Files) -> None:
    files.chunk.write_bytes(files.rng.randbytes(files.chunk.stat().st_size))


def append(files: Files) -> None:
    with files.chunk.open("ab") as file:
        file.write(files.rng.randbytes(files.rng.randint(1, 5000)))


def swap(one: Path, two: Path) -> None:
    aside = one.with_suffix(".aside")
    os.rename(one, aside)
    os.rename(two, one)
    os.rename(aside, two)


def graft(files: Files) -> None:
    """The header of one chunk before the data of another."""
    content = files.chunk.read_bytes()
    foreign = files.other.read_bytes()
    files.chunk.write_bytes(
        content[: header_bytes(content)] + foreign[header_bytes(foreign) :],
    )


def rewritten(old: str, new: str) -> Change:
    """An intact header that says something else, as another program or release would write it."""

    def apply(files: Files) -> None:
        content = files.chunk.read_bytes()
        raw = parse_header(content).raw
        files.chunk.write_bytes(reseal(raw, old, new) + content[len(raw) :])

    return apply


def other_key(files: Files) -> None:
    rewritten(f'"key":"{files.entry.key}"', f'"key":"{files.neighbour.key}"')(files)


def no_key(files: Files) -> None:
    rewritten(f',"key":"{files.entry.key}"', "")(files)


def instead(make: Callable[[Path], None]) -> Change:
    """Something that is not a regular file in the place of the chunk file."""

    def apply(files: Files) -> None:
        files.chunk.unlink()
        make(files.chunk)

    return apply


def make_directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("somebody's")


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def foreign(files: Files) -> None:
    """Something that is nobody's, somewhere."""
    folder = files.rng.choice([files.root, files.root / "tmp", files.chunk.parent])
    name = files.rng.choice(
        ["x", "x.safetensors", "x.extra", f"{files.entry.key}.0", "ab.safetensors"]
    )
    path = folder / f"{FOREIGN}{files.rng.randrange(10**9)}-{name}"
    make = files.rng.choice(
        [make_directory, os.mkfifo, make_socket, lambda p: p.symlink_to(p.name), _some_file]
    )
    make(path)


def _some_file(path: Path) -> None:
    path.write_bytes(os.urandom(100))


def flip_extra(files: Files) -> None:
    content = bytearray(files.extra.read_bytes())
    content[files.rng.randrange(len(content))] ^= 1 << files.rng.randrange(8)
    files.extra.write_bytes(content)


def aged(files: Files) -> None:
    """Modification times that no clock of ours gave."""
    when = files.rng.choice([-(10**9), 0, 2**33])
    os.utime(files.chunk, (when, when))


def linked(files: Files) -> None:
    files.chunk.unlink()
    files.chunk.symlink_to(files.other)


def hard_linked(files: Files) -> None:
    files.chunk.unlink()
    files.chunk.hardlink_to(files.other)


ENORMOUS = 1 << 40  # bytes of a sparse file

FILE_DAMAGES: list[Damage[Files]] = [
    Damage("flip in the length", flip("length")),
    Damage("flip in the header", flip("header")),
    Damage("flip in the data", flip("data")),
    Damage("flip of the last byte", flip("last byte")),
    Damage("truncated", lambda files: cut(files.chunk, files.rng)),
    Damage("zeros", zeros),
    Damage("a lost sector", hole),
    Damage("noise", noise),
    Damage("header of one, data of another", graft),
    Damage("a copy of another chunk", lambda f: shutil.copyfile(f.other, f.chunk)),
    Damage("two files swapped", lambda f: swap(f.chunk, f.other), other=LOST, extra=UNSURE),
    Damage("moved over another", lambda f: os.rename(f.chunk, f.other), other=LOST, silent=True),
    Damage("another key, well sealed", other_key),
    Damage("no key, well sealed", no_key),
    Damage("an older version", rewritten(f'"version":"{VERSION}"', '"version":"2"')),
    Damage("a later version", rewritten(f'"version":"{VERSION}"', '"version":"99"')),
    Damage("another model", rewritten('"fingerprint":"model-a"', '"fingerprint":"model-b"')),
    Damage("an absurd spec", rewritten('"head_dim":"8"', '"head_dim":"800000000000"')),
    Damage("a negative spec", rewritten('"layers":"3"', '"layers":"-3"')),
    Damage("unlinked", lambda files: files.chunk.unlink(), silent=True),
    Damage("a directory instead", instead(make_directory)),
    Damage("a FIFO instead", instead(lambda path: os.mkfifo(path))),
    Damage("a socket instead", instead(make_socket)),
    Damage("a loop of links instead", instead(lambda path: path.symlink_to(path.name))),
    Damage("a link to another", linked),
    Damage("a hard link to another", hard_linked),
    Damage("not readable", lambda files: files.chunk.chmod(0), chunk=UNSURE),
    Damage("grown", append, chunk=UNSURE),
    Damage("grown enormously", lambda f: os.truncate(f.chunk, ENORMOUS), chunk=UNSURE),
    Damage("something foreign", foreign, chunk=KEPT, extra=KEPT),
    Damage("another time", aged, chunk=KEPT, extra=KEPT),
    Damage("extra: flip", flip_extra, chunk=KEPT, extra=LOST),
    Damage("extra: truncated", lambda f: cut(f.extra, f.rng), chunk=KEPT, extra=LOST),
    Damage("extra: enormous", lambda f: os.truncate(f.extra, ENORMOUS), chunk=KEPT, extra=LOST),
    Damage("extra: unlinked", lambda f: f.extra.unlink(), chunk=KEPT, extra=LOST),
    Damage(
        "extra: another's",
        lambda f: shutil.copyfile(f.other_extra, f.extra),
        chunk=KEPT,
        extra=LOST,
    ),
]
