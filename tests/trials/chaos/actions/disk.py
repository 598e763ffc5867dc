"""The disk: KV files damaged, exchanged, replaced by what is no file, and no room left."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
import time
from pathlib import Path

from tests.trials.chaos.world import World

IN_PLACE = ("flip", "truncate", "garbage", "append", "exchange", "empty")
OTHERS = ("directory", "fifo", "link", "removed", "foreign", "unreadable")


def damage(world: World, chance: random.Random) -> None:
    """Some of the files, each in another way; of those that are not there any more, none."""
    for _ in range(chance.randint(4, 24)):
        files = _chunks(world.kv_dir)
        if not files:
            return
        kind = chance.choice((*IN_PLACE, *IN_PLACE, *OTHERS))
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError, OSError):
            _damage_one(world.kv_dir, chance, kind, chance.choice(files), chance.choice(files))
            world.journal.count(f"damage on disk: {kind}")


def damage_while_stopped(world: World, chance: random.Random) -> None:
    """Killed, damaged, started: it has to look at everything."""
    life = world.ensure_ready(chance)
    world.journal.count("kill of gateway and worker, any moment", life.kill_both())
    time.sleep(0.3)
    for _ in range(3):
        damage(world, chance)
    world.launch(chance)


def full(world: World, chance: random.Random) -> None:
    """No byte is left for a while, with everybody going on."""
    if not world.volume.can_be_filled:
        return
    world.ensure_ready(chance)  # a start without room is refused, as it should be
    world.volume.fill()
    time.sleep(chance.uniform(1, 4))
    world.volume.release()
    world.journal.count("disk full")


def killed_while_full(world: World, chance: random.Random) -> None:
    """No room, and the power goes; there is room again when it comes back."""
    if not world.volume.can_be_filled:
        return
    life = world.ensure_ready(chance)
    world.volume.fill()
    time.sleep(chance.uniform(0.2, 2))
    world.journal.count("kill of gateway and worker, with a full disk", life.kill_both())
    world.volume.release()
    world.journal.count("disk full")
    world.launch(chance)


def put_right(kv_dir: Path) -> None:
    """What the documentation asks of an operator: take away what is no file, and give access."""
    for path in sorted(kv_dir.rglob("*"), reverse=True):
        with contextlib.suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                if path.name.startswith("foreign") or "." in path.name:
                    shutil.rmtree(path, ignore_errors=True)
            elif not stat.S_ISREG(mode):
                path.unlink()
            elif not mode & stat.S_IRUSR:
                path.chmod(0o600)


def _chunks(kv_dir: Path) -> list[Path]:
    return sorted(p for p in kv_dir.glob("??/??/*") if p.is_file() and not p.is_symlink())


def _damage_one(kv_dir: Path, chance: random.Random, kind: str, file: Path, other: Path) -> None:
    """Nothing here creates a file under the name of a chunk that has been deleted."""
    if kind in IN_PLACE:
        content = bytearray(file.read_bytes())
        if kind == "flip" and content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif kind == "truncate":
            del content[chance.randrange(len(content) + 1) :]
        elif kind == "garbage":
            content = bytearray(chance.randbytes(chance.randrange(5000)))
        elif kind == "append":
            content += chance.randbytes(chance.randrange(1, 100))
        elif kind == "exchange":
            _overwrite(other, bytes(content), also=(file, other.read_bytes()))
            return
        else:
            content.clear()
        _overwrite(file, bytes(content))
    elif kind == "directory":
        file.unlink()
        (file / "inside").mkdir(parents=True)
    elif kind == "fifo":
        file.unlink()
        os.mkfifo(file)
    elif kind == "link":
        file.unlink()
        file.symlink_to("/dev/zero")
    elif kind == "removed":
        file.unlink()
    elif kind == "unreadable":
        file.chmod(0)
    else:
        folder = chance.choice((kv_dir, kv_dir / "tmp", file.parent))
        _foreign(folder, chance)


def _overwrite(file: Path, content: bytes, also: tuple[Path, bytes] | None = None) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)  # raises if it was deleted
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
    if also is not None:
        _overwrite(*also)


def _foreign(folder: Path, chance: random.Random) -> None:
    name = chance.randbytes(16).hex()
    kind = chance.randrange(4)
    if kind == 0:
        (folder / f"{name}.safetensors").write_bytes(chance.randbytes(300))
    elif kind == 1:
        (folder / f"foreign-{name}").mkdir(exist_ok=True)
    elif kind == 2:
        os.mkfifo(folder / f"{name}.safetensors")
    else:
        (folder / f"foreign {name} \u00e9\n.txt").write_text("not yours")
