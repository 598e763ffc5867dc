"""How much of each kind of work one engine step does."""

from __future__ import annotations

# Share of a decode step's time that prefill may take before the next decode step. Not all of it,
# because a prefill step may take longer than the one before it.
PREFILL_SHARE = 0.85
# Share of the time that idle work gets while requests keep the engine busy.
IDLE_WORK_SHARE = 0.05


class StepBudget:
    """While sequences decode, prefill gets about as long as the decode step took: the steps that
    fit, but at least one. So a prompt of any length at most doubles their TPOT, as long as one step
    of it is no longer than a decode step. Idle work gets the time that is spare, and
    `IDLE_WORK_SHARE` of all time where none ever is.
    """

    def __init__(self) -> None:
        self._decode_s = 0.0
        self._step_s = 0.0
        self._used_s = 0.0
        self._owed_s = 0.0
        self._idle_step_s = 0.0

    def decoded(self, seconds: float) -> None:
        """A decode step is over; 0: nobody decodes."""
        self._decode_s = seconds
        self._used_s = 0.0
        self._owe(seconds)

    def prefilled(self, seconds: float) -> None:
        """A step of a prefill is over."""
        self._used_s += seconds
        self._step_s = seconds
        self._owe(seconds)

    @property
    def prefill_goes_on(self) -> bool:
        """Whether another step like the last one fits before the next decode step."""
        return self._used_s + self._step_s <= PREFILL_SHARE * self._decode_s

    @property
    def idle_work_is_due(self) -> bool:
        return self._owed_s > 0 and self._owed_s >= self._idle_step_s

    def idle_work_stepped(self, seconds: float) -> None:
        self._idle_step_s = seconds
        self._owed_s = max(0.0, self._owed_s - seconds)

    def _owe(self, seconds: float) -> None:
        # Bounded: time in which there was no idle work is not saved up.
        self._owed_s = min(self._owed_s + seconds * IDLE_WORK_SHARE, max(self._idle_step_s, 1e-9))
