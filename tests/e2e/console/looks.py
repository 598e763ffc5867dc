"""The screens that flows are tried on: a desk's and a phone's, light and dark."""

from __future__ import annotations

from typing import Any

import pytest

WIDE, NARROW = 1440, 390
ALL = [
    pytest.param({"width": width, "color_scheme": scheme}, id=f"{width}-{scheme}")
    for width in (WIDE, NARROW)
    for scheme in ("light", "dark")
]
# Each width and each theme once.
BOTH = [ALL[0], ALL[3]]
Look = dict[str, Any]
