"""Writes a result as a single HTML file that contains the plot and all figures."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem }
img { max-width: 100%; height: auto }
pre { overflow-x: auto; font-size: 13px }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6 } }
"""


def page(result: Mapping[str, Any], text: str, pictures: Mapping[str, bytes]) -> str:
    """The HTML page: pictures with their captions, `text` unchanged, and all figures folded."""
    shown = "\n".join(
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,'
        f'{base64.b64encode(png).decode()}"><figcaption>{html.escape(caption)}</figcaption></figure>'
        for caption, png in pictures.items()
    )
    figures = html.escape(json.dumps(result, indent=1))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Load on {html.escape(str(result['model']))}</title><style>{STYLE}</style></head>\n"
        f"<body>{shown}\n<pre>{html.escape(text)}</pre>\n"
        f"<details><summary>All figures</summary><pre>{figures}</pre></details></body></html>\n"
    )
