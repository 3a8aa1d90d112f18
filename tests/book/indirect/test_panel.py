"""The panel of the setting notebook."""

from book.indirect import panel


def test_another_choice_gives_another_posterior():
    sharp, blunt = panel.learn(0.05, 50, 0.01), panel.learn(1.0, 50, 0.01)
    assert (sharp["mean"] - sharp["f"]).abs().max() < 0.05
    assert blunt["std"].mean() > 3 * sharp["std"].mean()
    inside = (blunt["mean"] - blunt["f"]).abs() <= 3 * blunt["std"]
    assert inside.all()
