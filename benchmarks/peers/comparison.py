"""Asks every server every prompt, in turns that rotate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.peers.asking import Sample, ask
from benchmarks.peers.processes import Ended
from benchmarks.peers.prompts import Prompt
from benchmarks.peers.servers.peer import Peer


@dataclass(frozen=True)
class Comparison:
    """One closed loop over all servers: one prompt at a time on the whole machine.

    Attributes:
        peers: all run.
        max_tokens: of an answer.
    """

    peers: Sequence[Peer]
    max_tokens: int

    def asked(self, prompt: Prompt, turn: int) -> Iterator[Sample]:
        """Asks all servers, a different one first at every turn.

        The next one is asked when the one before is at rest: some still work after an answer.

        Raises:
            Ended: a server is gone.
        """
        first = turn % len(self.peers)
        for place, peer in enumerate([*self.peers[first:], *self.peers[:first]]):
            before = peer.cpu_s()
            sample = ask(
                peer.url, peer.dialect, prompt, self.max_tokens, contestant=peer.name, place=place
            )
            try:
                peer.rest()
            except Ended as error:
                raise Ended(f"{peer.name} ended: {error}") from error
            yield replace(sample, work_s=peer.cpu_s() - before)
