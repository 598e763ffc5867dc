"""The result of a run as a file that is written again after every round."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.asking import OK, Sample
from benchmarks.peers.prompts import Prompt
from benchmarks.peers.servers.peer import About
from benchmarks.peers.workloads import USUAL


@dataclass
class Result:
    """What a run has measured so far.

    Attributes:
        conditions: machine, commit, model, threads, seed and sizes.
        about: versions and settings of the servers that ran, in the order of the table.
        absent: servers that were left out, and why.
        stored_s: seconds that a server took for the corpus beforehand.
        memory_mib: of the servers after the last round.
        prompts: asked so far.
        samples: of all prompts and servers.
        load: machine's load average before every round, one minute's.
        ended: why there is no further round, if a server ended; its last round is not counted.
    """

    conditions: dict[str, Any]
    about: dict[str, About] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    stored_s: dict[str, float] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)
    prompts: list[Prompt] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    ended: str = ""

    @property
    def names(self) -> list[str]:
        """The contestants, in the order of the table."""
        return list(self.about)

    @property
    def workloads(self) -> list[str]:
        """What a round asks, in the order of the table."""
        return list(self.conditions.get("workloads", USUAL))

    def note_load(self) -> None:
        self.load.append(round(os.getloadavg()[0], 2))

    def of(self, contestant: str, workload: str) -> dict[str, Sample]:
        """Good samples by prompt."""
        wanted = {prompt.key for prompt in self.prompts if prompt.workload == workload}
        return {
            sample.prompt: sample
            for sample in self.samples
            if sample.contestant == contestant and sample.prompt in wanted and sample.outcome == OK
        }

    def failures(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.outcome != OK]

    def to_json(self) -> dict[str, Any]:
        return {
            "what": "kvstitch beside other servers over HTTP, one prompt at a time",
            **self.conditions,
            "servers": {name: about.to_json() for name, about in self.about.items()},
            "left_out": self.absent,
            "stored_before_s": _rounded(self.stored_s),
            "memory_mib": _rounded(self.memory_mib),
            "load_average": self.load,
            "ended": self.ended,
            "prompts": [
                {
                    "key": p.key,
                    "workload": p.workload,
                    "tokens": len(p.ids),
                    "documents": [d.doc_id for d in p.documents],
                }
                for p in self.prompts
            ],
            "samples": [sample.to_json() for sample in self.samples],
        }

    @classmethod
    def read(cls, path: Path) -> Result:
        """What `write` has written; of the prompts only their length.

        Raises:
            OSError: there is no such file.
        """
        raw = json.loads(path.read_text(encoding="utf-8"))
        prompts = [
            Prompt(p["key"], p["workload"], (), (), (0,) * p["tokens"]) for p in raw.pop("prompts")
        ]
        about = {name: About(**each) for name, each in raw.pop("servers").items()}
        samples = [Sample(**{"place": 0, **each}) for each in raw.pop("samples")]
        del raw["what"]
        return cls(
            about=about,
            absent=raw.pop("left_out"),
            stored_s=raw.pop("stored_before_s"),
            memory_mib=raw.pop("memory_mib"),
            prompts=prompts,
            samples=samples,
            load=raw.pop("load_average"),
            ended=raw.pop("ended", ""),
            conditions=raw,
        )

    def write(self, path: Path) -> None:
        """Replaces the file at once, one sample a line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(_lines(self.to_json()), encoding="utf-8")
        new.replace(path)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in values.items()}


def _lines(content: dict[str, Any]) -> str:
    """JSON with one line for every entry of the long lists."""
    parts = [f"{json.dumps(name)}: {_value(value)}" for name, value in content.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return _list(json.dumps(each, ensure_ascii=False) for each in value)
    return json.dumps(value, ensure_ascii=False, indent=1)


def _list(lines: Iterable[str]) -> str:
    return "[\n" + ",\n".join(lines) + "\n]"
