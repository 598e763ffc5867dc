"""What OCR may take, beside what a file may take without. Knows nothing of its libraries."""

from __future__ import annotations

from importlib.util import find_spec

PAGE_CPU_S = 20  # a dense page takes about 6
MEMORY_BYTES = 2 << 30  # of address space


def installed() -> bool:
    """Return whether the extra `ocr` is there."""
    try:
        return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None
    except ModuleNotFoundError:  # something on the path of imports keeps them out
        return False
