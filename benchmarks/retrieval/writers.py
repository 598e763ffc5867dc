"""Who may change what, tried: random writers make random changes, and only theirs may come true.

    python -m benchmarks.retrieval.writers [--pairs 100000] [--documents 5000] [--groups 40]

What a change may do is computed here once more, from the groups that documents and writers were
made with. After each change the document is read back, and after every few thousand all of them:
a change that was not allowed must have changed nothing, and one that was must be there.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.retrieval.permissions import HashedWords, Words
from kvstitch.retriever import ChunkSettings, Document, Retriever, Scope
from kvstitch.retriever.scope import Pen, View, joined_readers, joined_writers
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/writers.json")
SEED = 0
WRITERS = 200
ALL_LOOKED_AT = 5000  # pairs between two looks at all documents
ANYBODY = frozenset({"*"})

Groups = frozenset[str]


@dataclass(frozen=True)
class State:
    """What a document is; no readers: everybody."""

    text: str
    readers: Groups
    writers: Groups
    pinned: bool = False


@dataclass(frozen=True)
class Writer:
    """None: of all groups."""

    reads: Groups | None
    writes: Groups | None
    takes: bool

    @property
    def scope(self) -> Scope:
        """As the service would make it."""
        return Scope(view=View(self.reads), pen=Pen(self.writes, self.takes))

    def refused(self, had: State, wanted: State) -> str:
        """Return why a change is not allowed; "": it is."""
        if self.reads is not None and had.readers and not had.readers & self.reads:
            return "not read"
        if self.writes is not None and had.writers != ANYBODY and not had.writers & self.writes:
            return "not written"
        if self.reads is not None and wanted.readers - had.readers - self.reads:
            return "readers given"
        given = wanted.writers - had.writers - ANYBODY
        if self.writes is not None and given - self.writes:
            return "writers given"
        fewer_readers = wanted.readers and (not had.readers or had.readers - wanted.readers)
        fewer_writers = wanted.writers != ANYBODY and had.writers - wanted.writers
        return "taken" if not self.takes and (fewer_readers or fewer_writers) else ""


class Trial:
    """Documents in a retriever, and what they have to be."""

    def __init__(self, retriever: Retriever, rng: random.Random, groups: list[str]) -> None:
        self._retriever, self._rng, self._groups = retriever, rng, groups
        self.states: dict[str, State] = {}
        self.outcomes: Counter[str] = Counter()
        self.violations: list[str] = []
        self._versions = 0

    def some(self, least: int, most: int) -> Groups:
        """Return so many random groups."""
        return frozenset(self._rng.sample(self._groups, self._rng.randint(least, most)))

    def writer(self) -> Writer:
        """Return a random writer."""
        reads = None if self._rng.random() < 0.05 else self.some(0, 6)
        own = self._groups if reads is None else sorted(reads)
        fewer = frozenset(group for group in own if self._rng.random() < 0.5)
        writes = fewer if self._rng.random() < 0.4 else reads
        return Writer(reads, writes, self._rng.random() < 0.5)

    def new_state(self) -> State:
        """Return what a new document is."""
        self._versions += 1
        readers = frozenset() if self._rng.random() < 0.2 else self.some(1, 4)
        chosen = self._rng.random()
        writers = ANYBODY if chosen < 0.1 else frozenset() if chosen < 0.2 else self.some(1, 3)
        if chosen > 0.6 and readers:
            writers = readers
        return State(f"version {self._versions} of a text", readers, writers)

    def hides(self, who: Writer, name: str) -> bool:
        """Return whether somebody may not read a document, as it is now."""
        return who.refused(self.states[name], self.states[name]) == "not read"

    def store(self, names: dict[str, State]) -> None:
        """Store documents as whoever may do everything."""
        self._retriever.ingest([_document(name, state) for name, state in names.items()])
        self.states |= names

    def change(self, who: Writer, name: str) -> None:
        """Let somebody try a change of a document."""
        kinds: list[Callable[[Writer, str, State], tuple[str, str]]] = [
            self._send, self._send, self._send, self._delete, self._pin, self._rename
        ]  # fmt: skip
        had = self.states[name]
        kind, refused = self._rng.choice(kinds)(who, name, had)
        self.outcomes[f"{kind}: {refused or 'done'}"] += 1
        self._look_at(name, kind)
        if name not in self.states:
            self.store({name: self.new_state()})

    def _send(self, who: Writer, name: str, had: State) -> tuple[str, str]:
        readers, writers = had.readers, had.writers
        what = self._rng.choice(["same", "text", "readers", "writers", "both"])
        if what in ("readers", "both"):
            readers = self._varied(readers, who.reads)
        if what in ("writers", "both"):
            writers = self._varied(writers - ANYBODY, who.writes)
            writers = ANYBODY if self._rng.random() < 0.1 else writers
        text = had.text if what == "same" else self.new_state().text
        named = self._rng.random() < 0.5 or writers != had.writers
        wanted = replace(had, text=text, readers=readers, writers=writers)
        document = _document(name, wanted)
        if not named:
            document.writers = None
        refused = who.refused(had, wanted)
        [result] = self._retriever.ingest([document], scope=who.scope)
        if (result.error is not None) != bool(refused):
            self.violations.append(f"{name}: {refused or 'allowed'}, but {result}")
        if not refused:
            self.states[name] = wanted
        return f"send {what}", refused

    def _varied(self, groups: Groups, own: Groups | None) -> Groups:
        """Return groups, a few of them left out, and some of one's own or others' added."""
        left = frozenset(group for group in groups if self._rng.random() < 0.7)
        added = self._groups if own is None or self._rng.random() < 0.2 else sorted(own)
        return left | frozenset(self._rng.sample(added, min(len(added), self._rng.randint(0, 1))))

    def _delete(self, who: Writer, name: str, had: State) -> tuple[str, str]:
        refused = who.refused(had, had)
        self._retriever.delete([name], scope=who.scope)
        if not refused:
            del self.states[name]
        return "delete", refused

    def _pin(self, who: Writer, name: str, had: State) -> tuple[str, str]:
        refused = who.refused(had, had)
        self._retriever.catalog.set_pinned([name], not had.pinned, scope=who.scope)
        if not refused:
            self.states[name] = replace(had, pinned=not had.pinned)
        return "pin", refused

    def _rename(self, who: Writer, name: str, had: State) -> tuple[str, str]:
        refused = who.refused(had, had)
        other = f"{name}-renamed"
        if self._retriever.catalog.rename(name, other, scope=who.scope):
            if refused:
                self.violations.append(f"{name} was renamed")
            self._retriever.catalog.rename(other, name)
        elif not refused:
            self.violations.append(f"{name} was not renamed")
        return "rename", refused

    def _look_at(self, name: str, kind: str) -> None:
        found = self._retriever.catalog.get(name)
        there = None
        if found is not None:
            there = State(
                found.text or "", frozenset(found.readers), frozenset(found.writers), found.pinned
            )
        if there != self.states.get(name):
            self.violations.append(f"{name} after {kind}: {there}, not {self.states.get(name)}")

    def look_at_all(self) -> None:
        """Compare all documents with what they have to be."""
        for name in self.states:
            self._look_at(name, "all")
        stored = self._retriever.catalog.counts().documents
        if stored != len(self.states):
            self.violations.append(f"{stored} documents are stored, not {len(self.states)}")


def main() -> None:
    """Tries, prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    rng = random.Random(SEED)
    groups = [f"group-{number}" for number in range(arguments.groups)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        retriever = Retriever.in_folder(Path(folder), HashedWords(), ChunkSettings(Words(), 64))
        retriever.start()
        trial = Trial(retriever, rng, groups)
        trial.store({f"d{n}": trial.new_state() for n in range(arguments.documents)})
        writers = [trial.writer() for _ in range(WRITERS)]
        for turn in range(1, arguments.pairs + 1):
            who, name = rng.choice(writers), f"d{rng.randrange(arguments.documents)}"
            while rng.random() < 0.8 and trial.hides(who, name):  # as most is
                name = f"d{rng.randrange(arguments.documents)}"
            trial.change(who, name)
            if turn % ALL_LOOKED_AT == 0 or turn == arguments.pairs:
                trial.look_at_all()
                print(f"{turn} pairs, {len(trial.violations)} violations", flush=True)
        retriever.close()
    done = sum(count for name, count in trial.outcomes.items() if name.endswith(": done"))
    result = {
        "documents": arguments.documents, "groups": arguments.groups, "writers": WRITERS,
        "pairs": arguments.pairs, "done": done, "refused": arguments.pairs - done,
        "violations": len(trial.violations), "first_violations": trial.violations[:10],
        "outcomes": dict(sorted(trial.outcomes.items())),
        "seconds": round(time.monotonic() - began, 1), "seed": SEED, "made": describe(),
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if trial.violations:
        raise SystemExit(1)


def _document(name: str, state: State) -> Document:
    return Document(
        name, state.text, readers=joined_readers(state.readers),
        writers=joined_writers(state.writers),
    )  # fmt: skip


if __name__ == "__main__":
    main()
