"""What an archive or a mail names is never looked for outside of it, and what is inside of what is
inside is not opened: all through the process that parses files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.parser import FileLimits, parse_file
from tests.service.gateway.documents.office_files import make_docx
from tests_formats.test_mail import HEAD, multi, part

LIMITS = FileLimits(pages=50, chars=100_000, cpu_s=20, memory_bytes=512 << 20)
SECRET = "the-secret-of-the-machine"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret.xml"
    file.write_text(f"<w:p xmlns:w='x'>{SECRET}</w:p>")
    return file


def archive(**more: bytes) -> bytes:
    """A document of Word's with more entries, by name."""
    out = io.BytesIO(make_docx("It has a lid."))
    with zipfile.ZipFile(out, "a") as zipped:
        for name, content in more.items():
            zipped.writestr(name, content)
    return out.getvalue()


async def test_names_that_lead_out_of_an_archive_write_and_read_nothing(secret: Path) -> None:
    up = "../" * 12
    before = sorted(secret.parent.iterdir())
    names = [f"{up}{str(secret.parent)[1:]}/made.xml", f"{secret.parent}/made.txt",
             "word/../../../made.xml", "C:\\made.xml", "word\\..\\..\\made.xml"]  # fmt: skip
    parsed = await parse_file("office", archive(**dict.fromkeys(names, b"<a/>")), LIMITS)
    assert parsed.text == (await parse_file("office", archive(), LIMITS)).text
    assert sorted(secret.parent.iterdir()) == before


@pytest.mark.parametrize("mode", ['TargetMode="External"', ""])
async def test_relationships_that_lead_out_of_an_archive_read_nothing(
    secret: Path, mode: str
) -> None:
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
    content = make_docx("It has a lid.")
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            body = old.read(name)
            if name == "word/_rels/document.xml.rels":
                for number, part_ in enumerate(("header", "footnotes", "comments", "image")):
                    for target in (f"file://{secret}", str(secret), "../" * 12 + str(secret)[1:]):
                        line = (f'<Relationship Id="x{number}{len(target)}" Type="{kind}{part_}" '
                                f'Target="{target}" {mode}/>')  # fmt: skip
                        body = body.replace(b"</Relationships>", f"{line}</Relationships>".encode())
            new.writestr(name, body)
    try:
        parsed = await parse_file("office", out.getvalue(), LIMITS)
    except InvalidRequest as error:
        assert SECRET not in error.message
    else:
        assert parsed.text == (await parse_file("office", content, LIMITS)).text


async def test_an_archive_in_an_archive_is_not_opened() -> None:
    inner = archive()
    packed = archive(**{"word/embeddings/inner.docx": inner, "word/media/inner.zip": inner})
    parsed = await parse_file("office", packed, LIMITS)
    assert parsed.text.count("It has a lid.") == 1
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as zipped:
        zipped.writestr("inner.docx", inner)
    with pytest.raises(InvalidRequest, match=r"is an archive, but no \.docx"):
        await parse_file("office", out.getvalue(), LIMITS)


async def test_an_attachment_is_named_and_not_read_wherever_it_stands(secret: Path) -> None:
    """Also in a mail that is attached, and whatever path its name, or its body, says."""
    disposition = f'Content-Disposition: attachment; filename="../../..{secret}"\n'
    attached = part("text/plain", "not-read", disposition)
    outside = (b"Content-Type: message/external-body; access-type=local-file; name=\"%s\"\n\n"
               b"Content-Type: text/plain\n\n" % str(secret).encode())  # fmt: skip
    inner = b"Content-Type: message/rfc822\n\nFrom: b@x.org\nSubject: Inner\n" + multi(
        "mixed", part("text/plain", "Inside."), attached, boundary=b"i"
    )
    zipped = part(
        "application/zip", "UEsDBA==", "Content-Disposition: attachment; filename=a.zip\n"
    )
    mail = HEAD + multi("mixed", part("text/plain", "See."), inner, attached, zipped, outside)
    parsed = await parse_file("eml", mail, LIMITS)
    assert "See." in parsed.text and "Inside." in parsed.text
    assert "not-read" not in parsed.text and SECRET not in parsed.text
    assert f"Attachments: ../../..{secret}, ../../..{secret}, a.zip" in parsed.text


async def test_mails_in_mails_end() -> None:
    """Five levels are read, of what is deeper the names. A thousand cost what any file may."""
    for depth in (7, 1000):
        content = b"From: a@x.org\nSubject: innermost\n\nDeepest.\n"
        for level in range(depth):
            bounds = b"b%d" % level
            wrapped = multi("mixed", b"Content-Type: message/rfc822\n\n" + content, boundary=bounds)
            content = b"From: a@x.org\nSubject: s%d\nMIME-Version: 1.0\n%s" % (level, wrapped)
        try:
            parsed = await parse_file("eml", content, LIMITS)
        except InvalidRequest as error:
            assert depth == 1000 and error.message
        else:
            assert "Deepest." not in parsed.text and parsed.text.count("Forwarded message:") == 5
