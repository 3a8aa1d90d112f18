"""The panel of the setting notebook."""

from book.indirect import panel


def test_another_choice_gives_another_posterior():
    sharp, blunt = panel.learn(0.05, 50, 0.01), panel.learn(1.0, 50, 0.01)
    assert (sharp["mean"] - sharp["f"]).abs().max() < 0.05
    assert blunt["std"].mean() > 3 * sharp["std"].mean()
    inside = (blunt["mean"] - blunt["f"]).abs() <= 3 * blunt["std"]
    assert inside.all()


def test_the_panel_answers():
    made = panel.panel()
    first, last = (made._show(**{k: v[i] for k, v in made.controls.items()}) for i in (0, -1))
    assert first != last and panel.CAPTION in first and "<img" in first
