"""The drawings of concepts are what their script draws, legible, and each stands on its page in light and dark."""

import re

import pytest

from book._tools.draw_concepts import DRAW, PAGES, concepts, gains
from book._tools.draw_home import STATIC


@pytest.mark.parametrize("name", concepts())
def test_stored_drawings_are_the_drawn_ones(name: str) -> None:
    drawn = concepts()[name]
    assert (STATIC / name).read_text(encoding="utf-8") == drawn, "run python -m book._tools.draw_concepts"
    width = float(re.search(r'viewBox="0 0 (\d+)', drawn)[1])
    assert min(map(int, re.findall(r'font-size="(\d+)"', drawn))) * 350 / width >= 9
    assert len(drawn) < 20_000


@pytest.mark.parametrize("name", DRAW)
def test_drawing_stands_on_its_page(name: str) -> None:
    page = (STATIC.parent / PAGES[name] / "index.md").read_text(encoding="utf-8")
    assert re.search(rf"^```\{{drawing\}} concept-{name}\n:alt: \w.*\n\n\w.*\.\n```$", page, re.M)


def test_later_answers_tell_less() -> None:
    found = gains()
    assert found == sorted(found, reverse=True) and found[-1] < found[0] / 2
