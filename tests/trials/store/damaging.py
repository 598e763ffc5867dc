"""Rounds of damages: store everything, damage some of it, read everything."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kvstitch.kvstore import RedisTier, SsdTier, TieredStore
from kvstitch.kvstore.format.chunk_identity import is_chunk_key
from tests.kvstore.places import check
from tests.trials.store.contents import EXTRA, Entry, make_entries
from tests.trials.store.damage import Damage, Effect
from tests.trials.store.file_damages import FILE_DAMAGES, FOREIGN, Files
from tests.trials.store.redis_damages import REDIS_DAMAGES, Values

KEYS = 16
AT_ONCE = 6  # damages in a round, each of another chunk
CAPACITY = 1 << 30
_OURS = ("corrupt", "refused", "rejected")


class Expected:
    """What may be read of every key after the damages of one round."""

    def __init__(self) -> None:
        self.chunk = [Effect.KEPT] * KEYS
        self.extra = [Effect.KEPT] * KEYS
        self.silent: set[int] = set()

    def note(self, damage: Damage[Files] | Damage[Values], number: int, other: int) -> None:
        self.chunk[number], self.extra[number] = damage.chunk, damage.extra
        if damage.other is not Effect.KEPT:
            self.chunk[other], self.extra[other] = damage.other, Effect.UNSURE
        if damage.silent:
            self.silent |= {number, other}


class Round:
    """One round on one store: the reads after the damages, and what they must find."""

    def __init__(
        self, store: TieredStore, entries: Sequence[Entry], expected: Expected, rng: random.Random
    ) -> None:
        self._store = store
        self._entries = entries
        self._expected = expected
        self._rng = rng
        self.unexplained = 0  # losses that no read reported

    def read_everything(self) -> None:
        for number in self._rng.sample(range(KEYS), KEYS):
            self._read(number)
        stats = self._store.stats().tiers[0]
        wrong = {op: n for op, n in stats.ops.items() if n and op[1] in ("error", "unavailable")}
        assert stats.healthy and not wrong, f"the tier is blamed for its content: {wrong}"

    def store_everything(self) -> None:
        """Everything can be stored again, and read."""
        for entry in self._entries:
            self._store.put(entry.key, entry.chunks[0])
        assert self._store.flush(30)
        for entry in self._entries:
            self._store.put_extra(entry.key, EXTRA, 1, entry.extras[1])
        assert self._store.flush(30)

    def _read(self, number: int) -> None:
        entry, spec = self._entries[number], self._entries[number].chunks[0].spec
        effect = self._expected.chunk[number]
        problems: list[tuple[str, str]] = []
        if self._rng.random() < 0.4:
            wanted = {layer: range(spec.blocks) for layer in range(spec.layers)}
            blocks = self._store.read_blocks(entry.key, wanted, spec)
            problems += blocks.problems
            if blocks.blocks is not None and not blocks.missing:
                check(blocks, entry.chunks[0], wanted)
        self._read_extra(number)
        outcome = self._store.read(entry.key, spec)
        problems += outcome.problems
        found = entry.variant_of(outcome) is not None
        assert not (found and effect is Effect.LOST), f"key {number} was damaged and is read"
        assert found or effect is not Effect.KEPT, f"key {number} is lost: {problems}"
        if not found and not problems and number not in self._expected.silent:
            self.unexplained += 1

    def _read_extra(self, number: int) -> None:
        entry, effect = self._entries[number], self._expected.extra[number]
        extra = self._store.read_extra(entry.key, EXTRA, 1)
        if extra is not None:
            entry.check_extra(extra, 1)
            assert effect is not Effect.LOST, f"extra of key {number} was damaged and is read"
        else:
            assert effect is not Effect.KEPT, f"extra of key {number} is lost"


def damage_files(folder: Path, damages: int, seed: int) -> Counter[str]:
    """Damage files of an SSD tier, while it runs and while it does not; counts by kind.

    Raises:
        AssertionError: damaged or foreign bytes were read, something undamaged was lost, a loss was
            not counted, or the books are wrong.
    """
    rng = random.Random(seed)
    entries = make_entries(KEYS)
    counts: Counter[str] = Counter()
    while counts["damages"] < damages:
        tier = SsdTier(folder, CAPACITY, fsync=False)
        store = TieredStore([tier])
        store.start()
        now = Round(store, entries, Expected(), rng)
        now.store_everything()
        now.read_everything()
        restarted = rng.random() < 0.5
        if restarted:
            store.close()
        done: list[str] = []
        expected = Expected()
        for number, other in _pairs(rng):
            damage = rng.choice(FILE_DAMAGES)
            damage.apply(Files(rng, folder, entries[number], entries[other]))
            expected.note(damage, number, other)
            done.append(damage.name)
        before = _not_regular(folder)
        try:
            if restarted:
                store = TieredStore([tier])
                store.start()
            now = Round(store, entries, expected, rng)
            now.read_everything()
            counted = sum(tier.scan_counts().values()) if restarted else 0
            assert now.unexplained <= counted, f"{now.unexplained} losses, {counted} counted"
            assert _not_regular(folder) == before, "something that is not ours was touched"
            _clear(folder)
            store.delete([entry.key for entry in entries])
            usage = tier.usage()
            assert usage.used_bytes == usage.entries == 0, usage
            assert not list(folder.glob("??/??/*.safetensors")), "files outlive their deletion"
        except Exception as error:
            where = f"seed {seed}, after {counts['damages']}, restarted {restarted}, {done}"
            raise AssertionError(f"{where}: {error!r}") from error
        store.close()
        counts.update(done)
        counts["damages"] += len(done)
    return counts


def damage_redis(url: str, damages: int, seed: int) -> Counter[str]:
    """Damage values of a Redis tier, as `damage_files` does; counts by kind."""
    import redis

    rng = random.Random(seed)
    entries = make_entries(KEYS)
    counts: Counter[str] = Counter()
    with redis.Redis.from_url(url) as client:
        while counts["damages"] < damages:
            client.flushall()
            with TieredStore([RedisTier(url, timeout_s=10, deadline_s=30)]) as store:
                now = Round(store, entries, Expected(), rng)
                now.store_everything()
                now.read_everything()
                done: list[str] = []
                expected = Expected()
                for number, other in _pairs(rng):
                    damage = rng.choice(REDIS_DAMAGES)
                    damage.apply(Values(rng, client, entries[number], entries[other]))
                    expected.note(damage, number, other)
                    done.append(damage.name)
                try:
                    now = Round(store, entries, expected, rng)
                    now.read_everything()
                    assert not now.unexplained, f"{now.unexplained} losses are not counted"
                    assert all(map(is_chunk_key, store.keys())), store.keys()
                    now.store_everything()
                    Round(store, entries, Expected(), rng).read_everything()
                except Exception as error:
                    where = f"seed {seed}, after {counts['damages']}, {done}"
                    raise AssertionError(f"{where}: {error!r}") from error
            counts.update(done)
            counts["damages"] += len(done)
    return counts


def _pairs(rng: random.Random) -> list[tuple[int, int]]:
    """Pairs of keys with one spec, not the first one, whose chunk is longer than any other."""
    pairs = [(n, n + 1) for n in range(2, KEYS, 2)] + [(1, 1)]
    chosen = rng.sample(pairs[:-1], AT_ONCE)
    return [pair if rng.random() < 0.5 else pair[::-1] for pair in chosen]


def _not_regular(folder: Path) -> set[tuple[Path, int]]:
    """What is no file and no directory of ours, by inode."""
    names = [Path(at) / name for at, folders, files in os.walk(folder) for name in folders + files]
    return {
        (path, path.lstat().st_ino)
        for path in names
        if path.is_symlink()
        or path.is_fifo()
        or path.is_socket()
        or (path.is_dir() and len(path.name) > 3)
    }


def _clear(folder: Path) -> None:
    """Remove what the damages put there and the tier left alone, as an operator would."""
    for path, _ in _not_regular(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()
    for path in folder.rglob(f"{FOREIGN}*"):  # regular files
        path.unlink()
