"""A worker whose time does not depend on its neighbours, for comparisons with the simulator.

It is the worker that serves, but for two things: a prefill ends no sooner than its operations
would take at a fixed pace, and neither does a decode step. What is left of that time it sleeps, in
slices between which it decodes. So several of them on few cores are as fast as one, as long as the
pace is slower than the machine. The pace is in PACED_TOKEN_S, PACED_STEP_S.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from kvstitch.service.worker import __main__ as worker
from kvstitch.service.worker.engine.engine import Engine
from kvstitch.service.worker.methods.layer_view import PrefillResult
from kvstitch.service.worker.model.model_facts import full_prefill
from kvstitch.service.worker.sequences.sequence import EngineSequence
from kvstitch.service.worker.server.counters import SAMPLE_TOKENS
from kvstitch.service.worker.steps import Steps

SERVICE = ("benchmarks.fleet.paced_service",)
"""The gateway that starts such workers."""
COMMAND = (sys.executable, "-m", "benchmarks.fleet.paced_worker")
TOKEN_S, STEP_S = "PACED_TOKEN_S", "PACED_STEP_S"
SLICE_S = 0.01


class PacedEngine(Engine):
    """An engine with a pace."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        token_flops = full_prefill(self.decoder, SAMPLE_TOKENS) / SAMPLE_TOKENS
        self._flop_s = float(os.environ[TOKEN_S]) / token_flops
        self._step_s = float(os.environ[STEP_S])
        # As if one prefill had been measured: the first requests are routed by these costs too.
        self.planner.compute.add(token_flops * SAMPLE_TOKENS, self._flop_s * token_flops * 512)
        self._decode_at_once = self.answering.step
        self.answering.step = self._decode_paced  # type: ignore[method-assign]
        self._start_at_once = self.prefilling.start_next
        self.prefilling.start_next = self._start_paced  # type: ignore[method-assign]

    def _start_paced(self) -> None:
        begun = list(self.scheduler.prefilling)
        self._start_at_once()
        for sequence in self.scheduler.prefilling:
            if sequence not in begun and sequence.prefill.steps is not None:
                sequence.prefill.steps = self._paced(sequence, sequence.prefill.steps)

    def _paced(self, sequence: EngineSequence, steps: Steps[PrefillResult]) -> Steps[PrefillResult]:
        """The same steps, and then sleep until their operations' time is over."""
        while True:
            try:
                yield next(steps)
            except StopIteration as end:
                result: PrefillResult = end.value
                break
        whole_s = self._flop_s * (result.flops + sequence.loads.chunk_flops)
        began, spent_s = time.monotonic(), sequence.prefill.computed_s
        while (left_s := whole_s - spent_s) > 0:
            time.sleep(min(SLICE_S, left_s))
            spent_s += time.monotonic() - began
            yield None
            began = time.monotonic()
        return result

    def _decode_paced(self, running: list[EngineSequence]) -> int:
        ends_at = time.monotonic() + self._step_s
        stepped = self._decode_at_once(running)
        time.sleep(max(0.0, ends_at - time.monotonic()))
        return stepped


def main() -> int:
    """Serves as `python -m kvstitch.service.worker` does."""
    vars(worker)["Engine"] = PacedEngine  # what it builds
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
