"""The panel of the setting notebook."""

from book.subsets import panel


def test_another_choice_gives_another_subset():
    assert panel.chosen(0.04, 0.1)[0] == "{4,5}"
    assert panel.chosen(0.06, 0.1)[0] == "{3,4,5}"
    assert len(panel.chosen(0.04, 0.4)[1]) == 7
