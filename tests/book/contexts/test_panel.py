"""The panel of the setting notebook."""

import itertools

from book.contexts import panel


def test_another_choice_gives_another_decision():
    rules, density = panel.decide(1000, 0.0)
    stock = rules["stock"]
    assert abs(stock[rules["true"].argmax()] - stock[rules["estimated"].argmax()]) < 0.01
    assert rules["worst in the ball"].allclose(rules["estimated"])
    feared, fewer = panel.decide(1000, 2.0)
    assert stock[feared["worst in the ball"].argmax()] == 0
    assert fewer.allclose(density) and not panel.decide(3)[1].allclose(density)


def test_the_worst_average_lies_in_the_ball():
    at = [panel.decide(30, radius)[0]["worst in the ball"] for radius in (0.0, 0.2, 0.5, 2.0, 3.0)]
    assert all((b <= a + 1e-9).all() for a, b in itertools.pairwise(at))
    assert at[-1].allclose(at[-2])
