from __future__ import annotations

import threading
import time

from kvstitch.retriever.index.vector_index import ReadWriteLock


def test_readers_share_and_a_writer_is_alone() -> None:
    lock = ReadWriteLock()
    inside = {"readers": 0, "writers": 0}
    most_readers = 0
    broken: list[dict[str, int]] = []
    guard = threading.Lock()

    def reader() -> None:
        nonlocal most_readers
        for _ in range(20):
            with lock.read():
                with guard:
                    inside["readers"] += 1
                    most_readers = max(most_readers, inside["readers"])
                    if inside["writers"]:
                        broken.append(dict(inside))
                time.sleep(0.001)
                with guard:
                    inside["readers"] -= 1

    def writer() -> None:
        for _ in range(20):
            with lock.write():
                with guard:
                    inside["writers"] += 1
                    if inside != {"readers": 0, "writers": 1}:
                        broken.append(dict(inside))
                time.sleep(0.0005)
                with guard:
                    inside["writers"] -= 1

    threads = [threading.Thread(target=target) for target in [reader] * 4 + [writer] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert broken == []
    assert most_readers > 1


def test_a_failed_block_gives_the_lock_back() -> None:
    lock = ReadWriteLock()
    for block in (lock.write, lock.read, lock.write):
        try:
            with block():
                raise KeyError
        except KeyError:
            pass
