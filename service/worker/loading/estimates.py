"""What reads and computing cost here, learnt from those that happen. Knows no store and no model.

Both are lines: seconds = latency + bytes / bandwidth of a tier, seconds = overhead + FLOPs / rate
of a prefill. Older measurements fade, so that a machine that gets busy or a network that
recovers is believed after a few of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Weight of a measurement against the one after it: about the last ten count.
FADE = 0.9
# Weight of "nothing costs the prior's overhead": settles overhead where all sizes are equal.
ANCHOR = 0.1
# Latency (s) and bandwidth (bytes/s) believed of a tier that was never read.
UNKNOWN_TIER = (2e-4, 300e6)
# Overhead (s) and FLOP/s believed before anything was computed.
UNKNOWN_COMPUTE = {"cpu": (1e-4, 30e9), "cuda": (1e-4, 100e12)}
# A tier that was turned down for its speed is asked again after this.
STALE_S = 30.0


@dataclass
class Line:
    """y = overhead + slope · x by least squares, fading; neither is ever negative."""

    overhead: float
    slope: float
    count: int = 0
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # w, wx, wy, wxx, wxy
    _anchor: float = field(init=False)

    def __post_init__(self) -> None:
        self._anchor = self.overhead

    def add(self, x: float, y: float) -> None:
        self.count += 1
        new = (1.0, x, y, x * x, x * y)
        self._sums = [old * FADE + one for old, one in zip(self._sums, new, strict=True)]
        w, wx, wy, wxx, wxy = self._sums
        w, wy = w + ANCHOR, wy + ANCHOR * self._anchor
        spread = w * wxx - wx * wx
        if spread <= 0:
            return
        slope = (w * wxy - wx * wy) / spread
        overhead = (wy - slope * wx) / w
        if overhead < 0 or slope <= 0:
            overhead, slope = 0.0, wy / max(wx, 1e-30)
        self.overhead, self.slope = overhead, slope

    def at(self, x: float) -> float:
        return self.overhead + self.slope * x


class TierEstimates:
    """Seconds that a tier needs for some bytes. Safe to call from several threads.

    A read that overlaps another of its tier is charged from that one's end: what is learnt is what
    the tier gives to all readers together.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._last_end: dict[str, float] = {}

    def add(self, tier: str, nbytes: int, started: float, ended: float) -> None:
        with self._lock:
            line = self._lines.setdefault(tier, self._unknown())
            begun = max(started, self._last_end.get(tier, started))
            self._last_end[tier] = max(ended, begun)
            line.add(nbytes, max(ended - begun, 1e-6))

    def seconds(self, tier: str, nbytes: float, reads: int = 1) -> float:
        """Of `reads` reads with `nbytes` in all."""
        with self._lock:
            line = self._lines.get(tier) or self._unknown()
            return line.overhead * reads + line.slope * nbytes

    def measured(self, tier: str) -> bool:
        with self._lock:
            return tier in self._lines

    def stale(self, tier: str) -> bool:
        """Measured, but long ago."""
        with self._lock:
            return self._clock() - self._last_end.get(tier, self._clock()) > STALE_S

    def known(self) -> dict[str, tuple[float, float]]:
        """Tier to latency (s) and bandwidth (bytes/s)."""
        with self._lock:
            return {t: (line.overhead, 1 / line.slope) for t, line in self._lines.items()}

    @staticmethod
    def _unknown() -> Line:
        latency, bandwidth = UNKNOWN_TIER
        return Line(latency, 1 / bandwidth)


class ComputeEstimate:
    """Seconds of a prompt's prefill, from the FLOPs and seconds of those that were run."""

    def __init__(self, device: str) -> None:
        overhead, rate = UNKNOWN_COMPUTE.get(device, UNKNOWN_COMPUTE["cuda"])
        self._line = Line(overhead, 1 / rate)

    def add(self, flops: float, seconds: float) -> None:
        if flops > 0:
            self._line.add(flops, seconds)

    @property
    def measured(self) -> bool:
        return self._line.count > 0

    @property
    def overhead_s(self) -> float:
        return self._line.overhead

    @property
    def flop_s(self) -> float:
        """Seconds per operation."""
        return self._line.slope
