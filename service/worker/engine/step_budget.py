"""Decides how much of each kind of work one engine step does."""

from __future__ import annotations

# Share of a decode step's time that prefill may take before the next decode step. Not all of it,
# because a prefill step may take longer than the one before it.
PREFILL_SHARE = 0.85
# Share of the time that idle work gets while requests keep the engine busy.
IDLE_WORK_SHARE = 0.05


class StepBudget:
    """Divides time between decode steps, prefill steps and idle work.

    While sequences decode, prefill gets about as long as the last decode step took: as many steps
    as fit, but at least one. So a prompt of any length at most doubles their time per output token,
    as long as one prefill step is not longer than a decode step. Idle work gets the time in which
    no request can be worked on, and at least `IDLE_WORK_SHARE` of all time.
    """

    def __init__(self) -> None:
        self._decode_s = 0.0
        self._step_s = 0.0
        self._used_s = 0.0
        self._owed_s = 0.0
        self._idle_step_s = 0.0

    def decoded(self, seconds: float) -> None:
        """Notes how long a decode step took; 0 if there was nothing to decode."""
        self._decode_s = seconds
        self._used_s = 0.0
        self._owe(seconds)

    def prefilled(self, seconds: float) -> None:
        """Notes how long a prefill step took."""
        self._used_s += seconds
        self._step_s = seconds
        self._owe(seconds)

    @property
    def prefill_goes_on(self) -> bool:
        """Whether another prefill step like the last one fits before the next decode step."""
        return self._used_s + self._step_s <= PREFILL_SHARE * self._decode_s

    @property
    def idle_work_is_due(self) -> bool:
        """Whether idle work gets a step even if there are requests to work on."""
        return self._owed_s > 0 and self._owed_s >= self._idle_step_s

    def idle_work_stepped(self, seconds: float) -> None:
        """Notes how long a step of idle work took."""
        self._idle_step_s = seconds
        self._owed_s = max(0.0, self._owed_s - seconds)

    def _owe(self, seconds: float) -> None:
        # Bounded, so that time without any idle work is not saved up.
        self._owed_s = min(self._owed_s + seconds * IDLE_WORK_SHARE, max(self._idle_step_s, 1e-9))
