"""The panel of the setting notebook."""

from book.hyperparameters import panel


def test_another_choice_gives_another_belief():
    peak, middle = panel.believe(0.2), panel.believe(0.75)
    assert int(peak["share"].argmax()) == 1 and int(middle["share"].argmax()) == 4
    assert abs(float(peak["share"].sum()) - 1) < 1e-9
    at = int((peak["grid"] - 0.2).abs().argmin())
    assert peak["std"][0, at] < middle["std"][0, at]
