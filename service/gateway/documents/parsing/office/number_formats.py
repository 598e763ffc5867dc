"""Numbers as a spreadsheet shows them, as far as their format says what they mean: percent, leading
zeros, currencies and units. Digits are never rounded away."""

from __future__ import annotations

import re
from functools import lru_cache

_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[[^\]]*\]|_.|\*.'
    r"|(?P<digits>[0#?](?:[0#?.,]*[0#?])?)|(?P<literal>.)",
    re.S,
)


def formatted(value: int | float, code: str) -> str:
    """Return a number in a format of Excel's, e.g. 0.175 in "0.0%" as 17.5%."""
    if code == "General":
        return _plain(value)
    before, mask, after = _parts(code)
    if not mask or "E" in after.upper() or "/" in after:
        return _plain(value)
    if "%" in after:
        value = float(value) * 100
    text = _plain(abs(value))
    if set(mask) == {"0"} and float(value).is_integer():
        text = text.zfill(len(mask))
    sign = "-" if value < 0 else ""
    return f"{before}{sign}{text}{after}".strip()


@lru_cache(maxsize=1024)
def _parts(code: str) -> tuple[str, str, str]:
    """Return what stands before the digits, their mask, and what stands behind them."""
    before, mask, after = "", "", ""
    for token in _TOKEN.finditer(code.split(";")[0]):
        if token["digits"]:
            if mask:  # digits in groups, as in 000-00-0000: left as a number
                return "", "", ""
            mask = token["digits"]
            continue
        text = token["quoted"] or token["escaped"] or token["currency"] or token["literal"] or ""
        if mask:
            after += text
        else:
            before += text
    return before, mask, after


def _plain(value: int | float) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
