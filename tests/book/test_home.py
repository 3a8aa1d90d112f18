"""The pictures of the first pages are what their script draws, and the chapters open alike."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from book._tools import handout
from book._tools.draw_home import CHAPTERS, LANES, STATIC, moving, pictures


@pytest.mark.parametrize("name", pictures())
def test_stored_pictures_are_the_drawn_ones(name: str) -> None:
    assert (STATIC / name).read_text(encoding="utf-8") == pictures()[name], "run book/_tools/draw_home.py"


@pytest.mark.parametrize("name", pictures())
def test_words_stay_legible_on_a_phone(name: str) -> None:
    width = float(re.search(r'viewBox="0 0 (\d+)', pictures()[name])[1])
    sizes = [int(size) for size in re.findall(r'font-size="(\d+)"', pictures()[name])]
    assert min(sizes) * 350 / width >= 9


def test_first_pages_show_every_picture() -> None:
    for name in pictures():
        folder = name.split("-")[1] if name.startswith("opener") else "."
        page = (Path(STATIC).parent / folder / "index.md").read_text(encoding="utf-8")
        drawing = name.rsplit("-", 1)[0]
        assert re.search(rf"^```\{{drawing\}} {drawing}\n:alt: \w.*\n\n\w.*\.\n```$", page, re.M), name


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapters_open_alike(chapter: str) -> None:
    """Picture, finding, aims, prerequisites and time, the notebooks, the library."""
    page = (Path(STATIC).parent / chapter / "index.md").read_text(encoding="utf-8")
    start = ['"description": "', "\n# "]
    aims = ["**You will be able to** ", "**You need** ", "**Time:** "]
    end = ["\n## The five notebooks\n", "- [](1_setting.ipynb): ", "(../practice/api/"]
    parts = [*start, "{drawing}", "**We found** that", *aims, *end]
    places = [page.find(part) for part in parts]
    assert -1 not in places and places == sorted(places), dict(zip(parts, places, strict=True))
    finding = re.search(r"\*\*We found\*\*(.+?)\n\n", page, re.S)
    if finding:
        assert all(len(sentence.split()) <= 25 for sentence in finding[1].split("\n"))
    notebooks = re.findall(r"^- \[\]\((\d_\w+\.ipynb)\): \w", page, re.M)
    assert notebooks == sorted(path.name for path in (Path(STATIC).parent / chapter).glob("*.ipynb"))
    assert 80 <= len(re.search(r'"description": "(.+)"', page)[1]) <= 200


NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
HOURS = {"two and a half": 2.5, **{word: i for i, word in enumerate(NUMBERS, 2)}}


@pytest.mark.parametrize("chapter", sorted({path.parent.name for path in Path(STATIC).parent.glob("*/1_*.ipynb")}))
def test_times_follow_from_the_words_and_the_exercises(chapter: str) -> None:
    """At 50 words a minute and as the exercises say; the home page says what the chapter's own page says."""
    folder = Path(STATIC).parent / chapter
    page = (folder / "index.md").read_text(encoding="utf-8")
    texts, minutes = [page], 0
    for path in folder.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        if path.stem == "5_exercises":
            minutes = sum(exercise.minutes for exercise in handout.exercises(notebook))
        else:
            texts += [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    read, answer = re.search(
        r"\*\*Time:\*\* about ([\w ]+) hours to read(?:, and (\w+) for the exercises)?\.", page
    ).groups()
    assert abs(sum(len(text.split()) for text in texts) / 3000 - HOURS[read]) <= 0.5
    assert abs(minutes / 60 - (HOURS[answer] if answer else 0)) <= 0.5
    card = re.search(
        rf":link: {chapter}/index\n.*?About (\d+) hours to read(?:, and (\d+) for the exercises)?\n",
        (folder.parent / "index.md").read_text(encoding="utf-8"),
        re.S,
    )
    if chapter != "foundations":
        assert [card[1], card[2]] == [str(HOURS[read]), str(HOURS[answer]) if answer else None]


def test_the_moving_picture_is_the_drawn_one_and_shows_every_setting() -> None:
    assert (STATIC / "moving.html").read_text(encoding="utf-8") == moving(), "run book/_tools/draw_home.py"
    data = json.loads(re.search(r'<script type="application/json">(.*)</script>', moving())[1])
    assert {label.split(" (")[0] for label in data["labels"]} == {name for name, _, _ in LANES}
    assert data["auto"] and len(set(data["labels"])) == len(data["labels"])
    assert "moving.html" in (Path(STATIC).parent / "index.md").read_text(encoding="utf-8")
