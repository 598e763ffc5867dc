"""Starts every server that is installed, and stops them all at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.peers.processes import Absent
from benchmarks.peers.servers.kvstitch import METHODS, KvstitchServer
from benchmarks.peers.servers.llama import LlamaServer
from benchmarks.peers.servers.peer import Conditions, Peer
from benchmarks.peers.servers.vllm import VllmServer

Say = Callable[[str], None]


@contextmanager
def started(
    conditions: Conditions, only: Sequence[str] | None, say: Say, *, changing: bool = False
) -> Iterator[tuple[list[Peer], dict[str, str]]]:
    """Servers that run until the end of the block.

    Args:
        conditions: the same for all.
        only: the beginnings of their names; none: all.
        changing: whether one that reuses earlier turns is among them.
        say: tells what is started.

    Yields:
        Those that run, in the order of the table, and why the others do not.
    """
    peers = [
        peer
        for peer in all_peers(conditions, changing=changing)
        if not only or peer.name.startswith(tuple(only))
    ]
    try:
        yield start_all(peers, say)
    finally:
        for peer in peers:
            peer.stop()


def all_peers(conditions: Conditions, *, changing: bool = False) -> list[Peer]:
    """Every server, in the order of the table; `changing`: also one that reuses earlier turns."""
    return [
        VllmServer(conditions),
        LlamaServer(conditions),
        *(KvstitchServer(method, conditions) for method in METHODS),
        *([KvstitchServer("question_scout", conditions, "reuse")] if changing else []),
    ]


def start_all(peers: Sequence[Peer], say: Say) -> tuple[list[Peer], dict[str, str]]:
    """Starts the servers one after another.

    Returns:
        Those that run, and why the others do not.
    """
    running: list[Peer] = []
    absent: dict[str, str] = {}
    for peer in peers:
        say(f"starting {peer.name}")
        try:
            peer.start()
            running.append(peer)
        except Absent as error:
            absent[peer.name] = str(error)
            say(f"{peer.name} is left out: {error}")
    return running, absent
