"""Formats that few people send: mail, OpenDocument, EPUB, reStructuredText, AsciiDoc, notebooks,
subtitles and XML."""

from __future__ import annotations

from kvstitch.service.plugins import FileFormat, hookimpl

_OPEN_DOCUMENT = "application/vnd.oasis.opendocument."


def _archive(media_type: str, suffix: str, parser: str, part: str) -> FileFormat:
    parser = f"kvstitch_formats.{parser}:parse"
    return FileFormat("office", media_type, (suffix,), parser, binary=True, part=part)


def _text(
    kind: str, media_type: str, suffixes: tuple[str, ...], parser: str, looks: bytes
) -> FileFormat:
    return FileFormat(kind, media_type, suffixes, f"kvstitch_formats.{parser}", looks=looks)


def _open_document(kind: str, suffix: str) -> FileFormat:
    part = f"mimetype={_OPEN_DOCUMENT}"
    return _archive(_OPEN_DOCUMENT + kind, suffix, "open_document", part)


_FLAT = rb"(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<office:document\s"
_NOTEBOOK = rb'\{\s*"(?:cells"\s*:\s*\[|nbformat|metadata"\s*:\s*\{[^\0]*"(?:kernelspec|name)")'
# Headers of a mail, or the line before each of a mailbox.
_MAIL = (
    rb"(?i)(?:From \S+ [^\n]*\d\d:\d\d[^\n]*\n[\w-]+:"
    rb"|(?:[a-z][\w-]*:[^\n]*\n(?:[ \t][^\n]*\n)*+)*?(?:mime-version|message-id|received):)"
)
_MAILS = (("message/rfc822", (".eml",)), ("application/mbox", (".mbox",)),
          ("multipart/related", (".mht", ".mhtml")))  # fmt: skip
_CUES = rb"WEBVTT|\d+\r?\n\d\d:\d\d:\d\d,\d{3} -->"


@hookimpl
def file_formats() -> list[FileFormat]:
    rst, asciidoc = "kvstitch_formats.texts:parse_rst", "kvstitch_formats.texts:parse_asciidoc"
    return [  # of two whose looks fit, the first is taken
        *(_text("eml", media, suffixes, "mail:parse", _MAIL) for media, suffixes in _MAILS),
        FileFormat("rst", "text/x-rst", (".rst",), rst, text=True),
        FileFormat("adoc", "text/asciidoc", (".adoc", ".asciidoc"), asciidoc, text=True),
        _open_document("text", ".odt"),
        _open_document("spreadsheet", ".ods"),
        _open_document("presentation", ".odp"),
        _text(
            "fodt",
            "application/vnd.oasis.opendocument.text-flat-xml",
            (".fodt", ".fods", ".fodp"),
            "open_document:parse_flat",
            _FLAT,
        ),
        _text("ipynb", "application/x-ipynb+json", (".ipynb",), "notebooks:parse", _NOTEBOOK),
        _text("vtt", "text/vtt", (".vtt", ".srt"), "subtitles:parse", _CUES),
        _text("xml", "application/xml", (".xml", ".rss", ".atom"), "xml_files:parse", rb"<\?xml\s"),
        _archive("application/epub+zip", ".epub", "epub", "META-INF/container.xml"),
    ]
