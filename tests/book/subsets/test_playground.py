"""One choice in the page is that of the run, and of the plain lines."""

import re

import pytest

from book.subsets import playground, regret
from book.subsets.garden import garden, prior
from cbo_lib.subsets import CheapestGoodSubset
from tests.book.conftest import STATIC
from tests.book.test_steppers import data_of
from tests.subsets import plain


def test_the_states_are_those_of_a_run_and_choose_as_the_class_does():
    given, problem = playground.settings(), garden(1e6)
    policy = CheapestGoodSubset(
        problem.space, prior=prior(), alpha=0.1, rounds=playground.TAU, horizon=playground.PLAYS
    )
    run = regret.walk(problem, policy, playground.PLAYS, [0])
    chosen = [playground.choose(state, given["horizon"], given["prices"], 0.1)[2] for state in given["states"]]
    played = [int(run["query"][0, state["t"], 0]) for state in given["states"]]
    assert sum(a == b for a, b in zip(chosen, played, strict=True)) >= len(played) - 1  # averages are not means
    for state in given["states"]:
        for prices, alpha in ((given["prices"], 0.1), ([0.1, 0.15, 0.2, 1.0, 1.0], 0.0), ([1.0] * 5, 0.3)):
            good, bound, chosen_set = playground.choose(state, 110, prices, alpha)
            expected = plain.choice(state["upper"], bound, state["lower"], alpha, state["upper"])
            assert chosen_set == expected and good[chosen_set]


def test_the_page_holds_the_data_and_a_picture_without_scripts():
    html = playground.choice_playground(caption="words", name="subsets-choice").data
    data = data_of(html)
    assert data["kind"] == "choice" and data["names"] == ["water", "light", "lime", "water + light", "all"]
    assert "<img" in html or "<svg" in html
    assert "kinds.choice" in (STATIC / "choice.js").read_text()


@pytest.mark.browser
def test_the_page_chooses_as_python_does_and_its_sliders_answer(open_page):
    given = playground.settings()
    page = open_page(playground.choice_playground().data + f'<script defer src="{STATIC.as_uri()}/choice.js"></script>')
    for state in given["states"]:
        for prices, alpha in ((given["prices"], 0.1), ([0.1, 0.15, 0.2, 1.0, 1.0], 0.0), ([1.0] * 5, 0.3)):
            found = page.evaluate(
                "([state, T, prices, alpha]) => window.cboStepper.choose(state, T, prices, alpha)",
                [state, given["horizon"], prices, alpha],
            )
            good, bound, chosen = playground.choose(state, given["horizon"], prices, alpha)
            assert (found["good"], found["chosen"]) == (good, chosen) and found["bound"] == pytest.approx(bound)
    label, inputs = page.locator(".cbo-label"), page.locator("input").all()
    before = label.inner_text()
    assert "plays water + light" in before and len(inputs) == 7 and page.locator("img").count() == 0
    inputs[5].press("End")  # the price of water + light
    assert "plays light" in label.inner_text()
    inputs[1].press("Home")  # alpha
    assert label.inner_text() != before
    assert not re.search("NaN|undefined|Infinity", page.locator(".cbo-picture").inner_html())
