"""Pictures as files: what is written in them, by OCR."""

from __future__ import annotations

import io
import warnings

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder
from kvstitch.service.gateway.documents.parsing.pdf.layout import Line, lines_of
from kvstitch.service.gateway.documents.parsing.pdf.lines import Vocabulary, paragraphs
from kvstitch.service.gateway.documents.parsing.pdf.words import (
    LONG_SIDE,
    PictureWords,
    picture_words,
)


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a PNG, JPEG or TIFF, whose pictures are pages."""
    reader = picture_words(bounds)
    if reader is None:
        raise InvalidRequest(
            "it is a picture: to read what is written in it, install kvstitch-ocr and leave "
            "KVSTITCH_OCR_PAGES above 0"
        )
    from PIL import Image

    try:
        pages = _read(content, bounds, reader)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidRequest(f"it has more than {Image.MAX_IMAGE_PIXELS} pixels") from error
    except OSError as error:
        raise InvalidRequest("it is damaged: open it and save it anew") from error
    out = TextBuilder(bounds)
    vocabulary = Vocabulary(line.text for page in pages for line in page)
    for number, text in enumerate(paragraphs(pages, vocabulary), 1):
        if len(pages) > 1:
            out.mark("page", str(number))
        out.block(text)
    if not any(pages):
        raise InvalidRequest("it is a picture in which OCR can read nothing")
    return out.finish(warnings=reader.warnings())


def _read(content: bytes, bounds: Bounds, reader: PictureWords) -> list[list[Line]]:
    import numpy as np
    from PIL import Image, ImageOps

    pages = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "TIFF"))
        count = getattr(image, "n_frames", 1)
        bounds.check_pages(count, "pictures")
        for number in range(count):
            image.seek(number)
            upright = ImageOps.exif_transpose(image).convert("RGBA")
            upright.thumbnail((LONG_SIDE, LONG_SIDE))
            paper = Image.new("RGBA", upright.size, "white")
            red_first = np.asarray(Image.alpha_composite(paper, upright).convert("RGB"))
            words = reader.words(np.ascontiguousarray(red_first[:, :, ::-1]), 0.5, str(number + 1))
            pages.append(lines_of(words)[0])
    return pages
