"""Reads scanned pages and pictures by OCR, in the process that parses a file."""

from __future__ import annotations

from importlib.util import find_spec

from kvstitch.service.plugins import PictureReader, hookimpl


@hookimpl
def picture_reader() -> PictureReader | None:
    """Return the reader; None without its libraries."""
    if find_spec("rapidocr") is None or find_spec("onnxruntime") is None:
        return None
    # A dense page takes about 6 s. Memory is of address space.
    return PictureReader("kvstitch_ocr.reader:Ocr", page_cpu_s=20, memory_bytes=2 << 30)
