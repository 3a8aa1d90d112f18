"""The panels of the setting notebooks."""

import importlib

import pytest

from book._tools import handout


@pytest.mark.parametrize("chapter", sorted(path.parent.name for path in (handout.ROOT / "book").glob("*/panel.py")))
def test_the_panel_answers(chapter):
    panel = importlib.import_module(f"book.{chapter}.panel")
    made = panel.panel()
    first, last = (made._show(**{k: v[i] for k, v in made.controls.items()}) for i in (0, -1))
    assert first != last and panel.CAPTION in first and "<img" in first
