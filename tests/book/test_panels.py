"""The panels of the setting notebooks."""

import importlib
import time

import pytest

from book._tools import handout


@pytest.mark.parametrize("chapter", sorted(path.parent.name for path in (handout.ROOT / "book").glob("*/panel.py")))
def test_the_panel_answers(chapter):
    panel = importlib.import_module(f"book.{chapter}.panel")
    made = panel.panel()
    first, last = (made._show(**{k: v[i] for k, v in made.controls.items()}) for i in (0, -1))
    assert first != last and panel.CAPTION in first and "<img" in first


@pytest.mark.parametrize("chapter", sorted(path.parent.name for path in (handout.ROOT / "book").glob("*/panel.py")))
def test_the_panel_answers_a_change_within_two_seconds_of_one_processor(chapter):
    """CPU seconds, which other programs do not lengthen by much; 0.1 to 0.5 were measured."""
    made = importlib.import_module(f"book.{chapter}.panel").panel()
    first = {name: options[0] for name, options in made.controls.items()}
    made._show(**first)  # what every panel does before it is touched
    for name, options in made.controls.items():
        before = time.process_time()
        made._show(**first | {name: options[-1]})
        assert time.process_time() - before < 2, name
