"""The panel of the setting notebook."""

from book.subsets import panel


def test_another_choice_gives_another_subset():
    assert panel.chosen(0.04, 0.1)[0] == "{4,5}"
    assert panel.chosen(0.06, 0.1)[0] == "{3,4,5}"
    assert len(panel.chosen(0.04, 0.4)[1]) == 7


def test_the_panel_answers():
    made = panel.panel()
    first, last = (made._show(**{k: v[i] for k, v in made.controls.items()}) for i in (0, -1))
    assert first != last and panel.CAPTION in first and "<img" in first
