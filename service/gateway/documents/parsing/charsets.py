"""Bytes to text: by byte order mark, as UTF-8, by the charset that is named, else by detection.

UTF-8 comes before the label, because text in another charset is hardly ever valid UTF-8, while
labels are often wrong. Labels mean what they mean to browsers: iso-8859-1 is windows-1252, gb2312
is GBK. What is guessed gets a warning; what cannot be told is refused, not stored as rubbish.
"""

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.parsed_file import ParseWarning

SAMPLE_BYTES = 65_536  # that detection looks at
MIN_BYTES = 40  # from fewer no charset can be told
MIN_COHERENCE = 0.1  # of letters with those of a language, for a text of MIN_BYTES
MAX_CHAOS = 0.1
MAX_CHAOS_COHERENT = 0.2  # of a text that has the letters of a language, without doubt
MIN_COHERENT = 0.5
MAX_BROKEN = 0.01  # share of UTF-8 that may be broken, of what is beyond ASCII
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
# Python's codecs that hold what browsers read under these names of the label table.
_AS_BROWSERS = {
    "gbk": "gb18030", "shift_jis": "cp932", "euc-kr": "cp949", "big5": "big5hkscs",
    "windows-874": "cp874", "iso-8859-8-i": "iso-8859-8", "macintosh": "mac-roman",
    "x-mac-cyrillic": "mac-cyrillic", "utf-16": "utf-16-le",
}  # fmt: skip
_GUESSED = [
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874",
    "koi8_r", "gb18030", "big5", "cp932", "euc_jp", "cp949", "iso8859_2", "iso8859_7",
]  # fmt: skip
_CENTRAL = ("cp1250", "iso8859_2")
# Charsets that hold all letters of a language. Others tie with them, because they hold most.
_HOME = {"Turkish": ("cp1254",)} | dict.fromkeys(
    ("Croatian", "Czech", "Hungarian", "Polish", "Romanian", "Slovak", "Slovene"), _CENTRAL
)


def _is_usual(codec: str, first: int, last: int) -> Callable[[str], bool]:
    """Return whether a character is among the usual ones: national standards put these first."""

    def usual(char: str) -> bool:
        code = char.encode(codec, "ignore")
        return len(code) == 2 and first <= code[0] <= last

    return usual


def _kana(char: str) -> bool:
    return "\u3041" <= char <= "\u30ff"


_USUAL = {
    "gb18030": _is_usual("gb18030", 0xB0, 0xD7), "big5": _is_usual("big5", 0xA4, 0xC6),
    "cp949": _is_usual("cp949", 0xB0, 0xC8), "cp932": _kana, "euc_jp": _kana,
}  # fmt: skip
MIN_USUAL = {"gb18030": 0.7, "big5": 0.7, "cp949": 0.8, "cp932": 0.2, "euc_jp": 0.2}
# Charsets that are pure ASCII but for what escapes begin.
_ESCAPES = {
    "iso2022_jp": re.compile(rb"\x1b(?:\$[@B]|\([BJ])"),
    "iso2022_kr": re.compile(rb"\x1b\$\)C"),
}
_COMMON = re.compile("[\t\n\r -~。，、؟،।]")
_SIGN = "\x80-\x9f¢-©¬®-¹¼-¾×÷¨¯´¸ˇ˘˙˛˝ˆ˜†‡‰⌠-╿▀-■"
_SIGN_IN_WORD = re.compile(f"[{_SIGN}](?=[^\\W\\d_])|(?<=[^\\W\\d_])[{_SIGN}]")
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")
HINT = "save it as UTF-8, or convert it with: iconv -f CHARSET -t UTF-8"


@dataclass(frozen=True)
class Decoded:
    """A text, and a warning if its charset was guessed or some of its bytes are no characters."""

    text: str
    warnings: tuple[ParseWarning, ...] = ()


def decode(content: bytes, label: str = "") -> Decoded:
    """Return the text of bytes in the charset that is declared or, if it is not, guessed."""
    for mark, name in _MARKS:
        # A UTF-16 mark before two NULs is one of UTF-32.
        if content.startswith(mark):
            return _strictly_or_nearly(content[len(mark) :], name)
    if name := _without_mark(content):
        return _strictly_or_nearly(content, name)
    if b"\0" in content:
        raise InvalidRequest("it holds NUL characters, so it is no text: save it as UTF-8 text")
    if b"\x1b" in content and not _BEYOND_ASCII.search(content):
        for name, escape in _ESCAPES.items():
            if escape.search(content):
                return _strictly_or_nearly(content, name)
    try:
        return Decoded(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        first = error.start
    if (codec := codec_of(label)) and codec != "utf-8":
        return _by_label(content, codec, label)
    if (broken := _broken_utf8(content)) is not None:
        return broken
    return _guess(content, first)


def codec_of(label: str) -> str:
    """Return Python's codec for a label as browsers understand it; "" if nobody knows it."""
    import webencodings

    found = webencodings.lookup(label.strip()) if label else None
    if found is not None:
        return _AS_BROWSERS.get(found.name) or str(found.codec_info.name)
    try:
        name = codecs.lookup(label).name if label else ""
        b"a".decode(name or "utf-8")  # refuses codecs that make no text
    except (LookupError, UnicodeError, ValueError):
        return ""
    return name


def _without_mark(content: bytes) -> str:
    """Return the codec of text that is UTF-32, which nothing else is by accident, or UTF-16: in the
    right order of bytes it has blanks, line ends and stops, in the wrong one hardly any."""
    if len(content) % 2 or b"\0" not in content:
        return ""
    for name in ("utf-32-le", "utf-32-be"):
        try:
            content.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    texts = {name: content.decode(name, "replace") for name in ("utf-16-le", "utf-16-be")}
    common = {name: len(_COMMON.findall(text)) for name, text in texts.items()}
    name = max(common, key=lambda one: common[one])
    text = texts[name]
    readable = sum(char.isprintable() or char.isspace() for char in text) > 0.95 * len(text)
    sure = common[name] > 2 * min(common.values()) and "\ufffd" not in text
    return name if sure and readable else ""


def _strictly_or_nearly(content: bytes, codec: str) -> Decoded:
    text = content.decode(codec, "replace")
    if text.count("\ufffd") * 10 > len(text):
        raise InvalidRequest(f"it begins like {codec}, and is not: {HINT}")
    return _with_gaps(text, codec)


def _by_label(content: bytes, codec: str, label: str) -> Decoded:
    if codec == "cp1252":  # browsers leave the five codes that it does not have as they are
        return Decoded(content.decode(codec, "kvstitch_c1"))
    decoded = content.decode(codec, "replace")
    if decoded.count("\ufffd") > MAX_BROKEN * max(len(_BEYOND_ASCII.findall(content)), 100):
        raise InvalidRequest(f"it says that it is in {label}, and is not: {HINT}")
    return _with_gaps(decoded, label)


def _with_gaps(text: str, name: str) -> Decoded:
    gaps = text.count("\ufffd")
    if not gaps:
        return Decoded(text)
    return Decoded(text, (ParseWarning(
        "undecodable_bytes", f"{gaps} places are no characters of {name} and stand as \ufffd: "
        "save it anew as UTF-8", count=gaps),))  # fmt: skip


def _broken_utf8(content: bytes) -> Decoded | None:
    """Return a text that is UTF-8 but for a few bytes, e.g. because it was cut; else None."""
    text = content.decode("utf-8", "replace")
    beyond = len(text) - sum(map(str.isascii, text))
    gaps = text.count("\ufffd")
    return _with_gaps(text, "UTF-8") if gaps <= 3 and gaps * 10 <= beyond else None


def _guess(content: bytes, first: int) -> Decoded:
    from charset_normalizer import from_bytes

    sample = content[:SAMPLE_BYTES]
    beyond = len(_BEYOND_ASCII.findall(sample))
    found: list[tuple[float, bool, float, str]] = []  # the best is the least
    for match in from_bytes(sample, cp_isolation=_GUESSED) if len(content) >= MIN_BYTES else []:
        name = next((one for one in _GUESSED if one in match.could_be_from_charset), "")
        coherent = match.coherence >= MIN_COHERENT
        if not name or match.chaos >= (MAX_CHAOS_COHERENT if coherent else MAX_CHAOS):
            continue
        if name in _USUAL:
            # Two bytes that make a usual letter, again and again, are no accident.
            letters = [char for char in str(match) if char > "\x7f"]
            usual = sum(map(_USUAL[name], letters)) / max(len(letters), 1)
            if usual >= MIN_USUAL[name] and beyond >= MIN_BYTES:
                found.append((match.chaos - 2 - (_USUAL[name] is _kana), False, 0.0, name))
        elif match.coherence >= MIN_COHERENCE:
            strange = name not in _HOME.get(match.language, _GUESSED)
            # A sign that touches a letter was one, too, in the charset of who wrote it.
            wrong = len(_SIGN_IN_WORD.findall(str(match))) / max(beyond, 1)
            found.append((round(wrong - match.coherence, 2), strange, match.chaos, name))
    for *_, name in sorted(found, key=lambda one: (*one[:3], _GUESSED.index(one[3]))):
        try:
            text = content.decode(name)
        except UnicodeDecodeError:
            continue
        known = name.replace("cp125", "windows-125")
        message = f"its charset is not named and was guessed to be {known}: if letters are wrong, "
        return Decoded(text, (ParseWarning("charset_guessed", message + HINT),))
    raise InvalidRequest(
        f"it is not valid UTF-8 (byte {first}), and its charset cannot be told: {HINT}"
    )


def _c1(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(map(chr, error.object[error.start : error.end])), error.end


codecs.register_error("kvstitch_c1", _c1)
