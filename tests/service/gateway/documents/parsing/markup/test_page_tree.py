"""What a reader sees of a page: hidden parts, formulas, readings, XHTML."""

from __future__ import annotations

import pytest

from kvstitch.service.gateway.documents.parsing.markup import html
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile

BOUNDS = Bounds(50, 100_000)


def read(page: str) -> ParsedFile:
    return html.parse(page.encode(), BOUNDS)


@pytest.mark.parametrize(
    "hidden",
    [
        '<p style="color:red; DISPLAY : none !important">ghost</p>',
        '<span style="visibility:collapse">ghost</span>',
        '<p style="font-size:0px">ghost</p>',
        '<p style="mso-hide:all">ghost</p>',
        "<section hidden><p hidden>ghost</p></section>",
        "<dialog>ghost</dialog>",
        '<style>/* x */ .draft, #z { display: none }</style><p class="draft">ghost</p>',
        "<style>p#z { visibility: hidden }</style><p id=z>ghost</p>",
    ],
)
def test_hidden_parts_are_left_out_and_counted(hidden: str) -> None:
    found = read(f"<body><p>A page with quite some text.</p>{hidden}<p>Seen.</p></body>")
    assert found.text == "A page with quite some text.\nSeen."
    assert [(w.code, w.count) for w in found.warnings] == [("hidden_text", 1)]


@pytest.mark.parametrize(
    "shown",
    [
        '<p style="opacity:0.5">seen</p>',
        '<p style="font-size:0.9em">seen</p>',
        '<p hidden="until-found">seen</p>',
        "<dialog open>seen</dialog>",
        "<details><summary>More</summary>seen</details>",
        '<style>@media print { .a { display: none } }</style><p class="a">seen</p>',
        '<style>.all { visibility: hidden }</style><div class="all">'
        + "all of it is seen " * 9
        + "</div>",
    ],
)
def test_what_is_seen_stays(shown: str) -> None:
    found = read(f"<body><p>Text.</p>{shown}</body>")
    assert "seen" in found.text and found.warnings == ()


def test_what_is_around_every_page_of_documentation_is_left_out() -> None:
    found = read(
        '<body><div class="related" role="navigation">next | previous</div>'
        '<table class="navheader"><tr><td>Chapter 4</td></tr></table>'
        '<h1>Valves<a class="headerlink" href="valves.html#v" title="Permalink">\uf0c1</a></h1>'
        '<h2>Opening <a class="mark" href="#opening">#</a></h2>'
        '<p>See <a href="#s7">§ 7</a>, note <a href="#n1">1</a>, the <a href="x.html">§</a>.</p>'
        '<div class="sphinxsidebar"><h3>This page</h3></div></body>'
    )
    assert found.text == "# Valves\n## Opening\nSee § 7, note 1, the §."
    assert [label for _, _, label in found.marks] == ["Valves", "Opening"]
    assert found.warnings == ()


MI = "<mi>x</mi>"


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (f"<mrow><msub>{MI}<mn>1</mn></msub><mo>=</mo><msqrt><mn>2</mn><mi>g</mi></msqrt></mrow>",
         "x_1=√(2g)"),
        (f"<mfrac><mrow>{MI}<mo>+</mo><mn>1</mn></mrow><mn>2</mn></mfrac>", "(x+1)/2"),
        (f"<munderover><mo>∑</mo><mn>0</mn><mi>n</mi></munderover>{MI}", "∑_0^nx"),
        (f"<semantics>{MI}<annotation encoding='application/x-tex'>x</annotation></semantics>",
         "x"),
        (f"<mtable><mtr><mtd>{MI}</mtd><mtd><mn>0</mn></mtd></mtr></mtable>", "[x, 0]"),
    ],
)  # fmt: skip
def test_formulas(formula: str, text: str) -> None:
    assert read(f"<p>It is <math>{formula}</math>.</p>").text == f"It is {text} ."


def test_formulas_that_pages_hide_behind_a_picture_or_say_twice() -> None:
    wiki = (
        '<span class="mwe-math-element"><span class="mwe-math-mathml-inline" style="display: none">'
        "<math><mi>E</mi></math></span><img alt='E'></span>"
    )
    katex = (
        '<span class="katex"><span class="katex-mathml"><math><mi>m</mi></math></span>'
        '<span class="katex-html" aria-hidden="true">m</span></span>'
    )
    assert read(f"<p>a {wiki} b {katex} c</p>").text.split() == ["a", "E", "b", "m", "c"]


@pytest.mark.parametrize(
    ("ruby", "readings"),
    [
        ("<ruby>東<rp>(</rp><rt>とう</rt><rp>)</rp>京<rt>きょう</rt></ruby>", 2),
        ("<ruby><rb>東</rb><rb>京</rb><rt>とう</rt><rt>きょう</rt></ruby>", 2),
        ("<ruby>東京<rtc><rt>とうきょう</rt></rtc></ruby>", 1),
        ("<ruby><ruby>東京<rt>とうきょう</rt></ruby><rt>Tokyo</rt></ruby>", 2),
    ],
    ids=["each", "bases first", "container", "two above each other"],
)
def test_readings_do_not_divide_words(ruby: str, readings: int) -> None:
    found = read(f"<p>{ruby}都</p>")
    assert found.text == "東京都"
    assert [(w.code, w.count) for w in found.warnings] == [("readings_left_out", readings)]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<!DOCTYPE html [<!ENTITY x 'y'>\n<!-- ]> -->]><p>Text.</p>", "Text."),
        ("<!DOCTYPE html PUBLIC '-//W3C//DTD HTML 4.01//EN'><p>Text.</p>", "Text."),
        ('<?xml version="1.0"?><!DOCTYPE html [<!ENTITY who "Ada">]>'
         '<html xmlns="http://www.w3.org/1999/xhtml"><body><p>&who; &eacute; &lt;b&gt;</p></body>'
         "</html>", "Ada é <b>"),
        ('<html xmlns="http://www.w3.org/1999/xhtml"><body><p>1 < 2</p><i/>Text</body></html>',
         "1 < 2\nText"),
    ],
    ids=["subset", "no subset", "entities", "no XML"],
)  # fmt: skip
def test_declarations_of_documents(page: str, text: str) -> None:
    assert read(page).text == text
