"""The screens that flows are tried on: a desk's and a phone's, light and dark."""

from __future__ import annotations

from typing import Any

import pytest

WIDE, NARROW = 1440, 390


def _look(width: int, scheme: str, *marks: pytest.MarkDecorator) -> Any:
    look = {"width": width, "color_scheme": scheme}
    return pytest.param(look, id=f"{width}-{scheme}", marks=marks)


# Each width and each theme once.
BOTH = [_look(WIDE, "light"), _look(NARROW, "dark")]
# Of flows that need a service each.
ONE_AT_ONCE = [BOTH[0], _look(NARROW, "dark", pytest.mark.slow)]
ALL = [
    *BOTH,
    _look(WIDE, "dark", pytest.mark.slow),
    _look(NARROW, "light", pytest.mark.slow),
]
Look = dict[str, Any]
