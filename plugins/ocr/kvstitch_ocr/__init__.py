"""Reads scanned pages and pictures by OCR, in the process that parses a file."""

from __future__ import annotations

from importlib.util import find_spec

from kvstitch.service.plugins import FileFormat, PictureReader, hookimpl


@hookimpl
def picture_reader() -> PictureReader | None:
    """Return the reader; None without its libraries."""
    if find_spec("rapidocr") is None or find_spec("onnxruntime") is None:
        return None
    # A dense page takes about 6 s. Memory is of address space.
    return PictureReader("kvstitch_ocr.reader:Ocr", page_cpu_s=20, memory_bytes=2 << 30)


@hookimpl
def file_formats() -> list[FileFormat]:
    """Pictures, which in folders are mostly logos and drawings: they are read where they are
    named."""
    kinds: list[tuple[str, tuple[str, ...], tuple[bytes, ...]]] = [
        ("png", (".png",), (b"\x89PNG\r\n\x1a\n",)),
        ("jpeg", (".jpg", ".jpeg"), (b"\xff\xd8\xff",)),
        ("tiff", (".tif", ".tiff"), (b"II*\0", b"MM\0*")),
    ]
    return [
        FileFormat("image", f"image/{name}", suffixes, "kvstitch_ocr.image_files:parse", starts,
                   binary=True, in_folders=False)
        for name, suffixes, starts in kinds
    ]  # fmt: skip
