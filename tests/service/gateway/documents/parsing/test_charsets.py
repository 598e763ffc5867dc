"""Charsets: what is read, what is guessed with a warning, and what is refused."""

from __future__ import annotations

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.charsets import codec_of, decode
from tests.service.gateway.documents.parsing.test_formats import parsed

POLISH = "Każdy pies ma swój dzień, a żółw idzie powoli przez łąkę ku źródłu wody."
RUSSIAN = "Каждая чашка стоит на полке у окна, и утром её освещает солнце."
JAPANESE = "この機械は毎朝七時に動き始めます。止めるときは赤いボタンを押してください。"
CHINESE = "这台机器每天早上七点开始工作。要停止时请按红色按钮。机油每月加一次，滤芯每年换一次。"
TURKISH = (
    "Her sabah saat yedide çalışmaya başlayan bu makineyi durdurmak için kırmızı düğmeye basın."
)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Größe".encode(), "Größe"),
        ("Größe".encode("utf-8-sig"), "Größe"),
        *[("Größe, 9 m".encode(name), "Größe, 9 m")
          for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")],
        (CHINESE.encode("utf-16-be") + " 9\n".encode("utf-16-be"), CHINESE + " 9\n"),
        ("営業時間".encode("iso2022_jp"), "営業時間"),
        ("영업 시간은 9시".encode("iso2022_kr"), "영업 시간은 9시"),
        *[("Größe 🚢, 9 m".encode(name), "Größe 🚢, 9 m") for name in ("utf-32-le", "utf-32-be")],
    ],
)  # fmt: skip
def test_what_is_sure(content: bytes, text: str) -> None:
    found = decode(content)
    assert (found.text, found.warnings) == (text, ())


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("ISO-8859-1", "cp1252", "9 € – “now”"),
        ("us-ascii", "cp1252", "naïve…"),
        ("iso-8859-9", "cp1254", "ışık"),
        ("gb2312", "gbk", "朱镕喆"),
        ("x-sjis", "cp932", "①㈱髙﨑"),
        ("ks_c_5601-1987", "cp949", "똠방각하"),
        ("koi8", "koi8-r", "чашка"),
        ("cp437", "cp437", "naïve"),  # none of the browsers', but Python's
    ],
)
def test_labels_mean_what_they_mean_to_browsers(label: str, codec: str, text: str) -> None:
    assert decode(text.encode(codec), label).text == text
    assert decode(text.encode(), label).text == text, "UTF-8 comes first: labels are often wrong"


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        (POLISH, "cp1250"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8-r"), (TURKISH, "cp1254"),
        (JAPANESE, "cp932"), (JAPANESE, "euc-jp"), (CHINESE, "gbk"),
        ("Az őrök őszintén űzték a tűzoltót, hűvös őszi éjjelen, mert túl gyűrött volt a fűző, és "
         "a legidősebb nő a vásárból jött, ahol ködös idő volt.", "cp1250"),
        ("Šuma je šuštala, a dječak je našao žabu što šepa; većina ljudi šuti i čeka da kiša "
         "prestane, jer još uvijek misle da će žetva biti lošija.", "iso8859_2"),
        ("Le garçon a mangé une pêche près de la forêt où il était né l’été dernier.", "cp1252"),
    ],
)  # fmt: skip
def test_what_is_guessed_is_said(text: str, codec: str) -> None:
    found = decode(text.encode(codec))
    assert found.text == text
    assert [warning.code for warning in found.warnings] == ["charset_guessed"]


def test_broken_bytes_are_said() -> None:
    found = decode("Tür ".encode() * 20 + b"\xfc")
    assert found.text.endswith("Tür \ufffd")
    assert [(w.code, w.count) for w in found.warnings] == [("undecodable_bytes", 1)]
    assert decode(b"20 \x80 \x81", "latin1").text == "20 € \x81"


@pytest.mark.parametrize(
    ("content", "label", "why"),
    [
        ("Maße".encode("cp1252"), "", r"not valid UTF-8 \(byte 2\).*iconv -f CHARSET"),
        ("仓库位于".encode("gbk"), "", "cannot be told"),
        ("Maß".encode("cp1252"), "no-such-charset", "cannot be told"),
        (JAPANESE.encode("cp932"), "euc-jp", "says that it is in euc-jp, and is not"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x03\xe8", "", "NUL"),
        (b"\xff\xfe\xff", "", "begins like utf-16-le, and is not"),
        (bytes(range(256)) * 4, "", "NUL"),
    ],
)
def test_what_is_refused(content: bytes, label: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        decode(content, label)


def test_codecs_that_make_no_text_are_no_charsets() -> None:
    assert [codec_of(name) for name in ("rot13", "base64", "", "x" * 99)] == ["", "", "", ""]


@pytest.mark.parametrize("kind", ["text", "md", "csv", "html"])
def test_every_kind_of_text(kind: str) -> None:
    content = f"<p>{RUSSIAN}</p>" if kind == "html" else RUSSIAN.replace(",", "")
    found = parsed(kind, content.encode("cp1251"))
    assert "чашка" in found.text
    assert [warning.code for warning in found.warnings] == ["charset_guessed"]
