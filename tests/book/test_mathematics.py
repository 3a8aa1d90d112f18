"""Formulas are written as TeX and as MathML, and icons are masks of those that pages name."""

import pytest

from book._ext import icons, mathematics


def test_equations_that_a_blank_line_parts_become_formulas_of_their_own() -> None:
    assert mathematics.mathml("a\n\n b", display=True).count("<math") == 2
    assert mathematics.mathml("a", display=False).startswith("<math>")


def test_a_command_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(mathematics.LatexError, match="nonsense"):
        mathematics.mathml(r"\nonsense{x}", display=True)


@pytest.mark.parametrize("number", ["", '<span class="eqno">(2.1)<a class="headerlink" href="#e">#</a></span>'])
def test_the_number_of_an_equation_stands_outside_of_both_forms(number: str) -> None:
    start = '<div class="math notranslate nohighlight" id="e">\n'
    written = mathematics.with_mathml(rf"{start}{number}\[a &lt; b\]</div>" + "\n", "<math></math>", "div")
    both = r'<div class="cbo-tex">\[a &lt; b\]</div><noscript><math></math></noscript>'
    assert written == f"{start}{number}{both}</div>\n"


def test_a_form_that_sphinx_never_wrote_is_refused() -> None:
    with pytest.raises(ValueError, match="form"):
        mathematics.with_mathml("<p>a</p>", "", "span")


def test_the_stop_after_a_formula_stays_in_its_line() -> None:
    formula = '<span class="math notranslate nohighlight"><span class="cbo-tex">x</span><noscript>x</noscript></span>'
    kept = '<span class="cbo-kept">{}</span>'
    assert mathematics.keep_stops(f"a {formula} b") == f"a {formula} b"
    assert mathematics.keep_stops(f"({formula}), {formula}.") == (
        kept.format(f"({formula}),") + " " + kept.format(f"{formula}.")
    )


def test_icons_of_pages_get_a_mask() -> None:
    page = '<i class="fa-solid fa-sun fa-lg"></i><i class="fas fa-download"></i><b class="fa-x">'
    assert icons.used([page]) == {"sun", "download"}
    sheet = icons.style_sheet({"sun", "download"})
    assert ".fa-sun {" in sheet and ".fa-download {" in sheet and len(sheet) < 20_000
    with pytest.raises(KeyError, match="nonsense"):
        icons.style_sheet({"nonsense"})


def test_no_style_sheet_of_the_site_names_a_font_of_icons() -> None:
    theme = (icons.STATIC / "styles" / "pydata-sphinx-theme.css").read_text(encoding="utf-8")
    assert len(icons.FONT.findall(theme)) == 3 and "vendor/fontawesome" not in icons.FONT.sub("", theme)
    assert icons.FONT.sub("", "a{b:c}@font-face{src:url(other.woff2)}") == "a{b:c}@font-face{src:url(other.woff2)}"


def test_the_style_sheet_takes_the_place_of_the_script() -> None:
    script = '<script defer src="../_static/scripts/fontawesome.js?digest=5"></script>'
    assert icons.SCRIPT.sub(lambda m: icons.LINK.format(m[1]), script) == (
        '<link rel="stylesheet" href="../_static/icons.css" />'
    )
