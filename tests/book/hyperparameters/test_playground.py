"""HE-GP-UCB in the page: it runs as a plain one in NumPy does, and its sliders answer."""

import re

import numpy as np
import pytest

from book.hyperparameters import playground
from tests.book.conftest import STATIC
from tests.book.test_steppers import data_of

#: The truth's lengthscale and the multiplier: a wrong candidate dropped, the truth dropped, none dropped.
SETTINGS = [(0.1, 2.0), (0.1, 1.0), (0.4, 3.0)]
ROUNDS = 12


def markup():
    scripts = "".join(f'<script defer src="{STATIC.as_uri()}/{name}.js"></script>' for name in ("gp", "hegpucb"))
    return playground.hegpucb_playground().data + scripts


@pytest.fixture(scope="module")
def given():
    return playground.settings()


def plain(given, lengthscale, multiplier):
    """Who is followed, where, both sides of line 12, and whether it is dropped, of each round."""
    x = np.linspace(0, 1, 101)
    waves = [
        np.cos((x - 0.5) / lengthscale * w + p) for w, p in zip(given["frequencies"], given["phases"], strict=True)
    ]
    f = np.sqrt(2 / 60) * np.sum(waves, 0)
    seen, y, left, sums, found = [], [], [0, 1], np.zeros((2, 3)), []
    for t in range(1, ROUNDS + 1):
        mean, std = np.zeros((2, 101)), np.ones((2, 101))
        for u, ell in enumerate((0.1, 0.4)):
            K = np.exp(-((x[:, None] - x) ** 2) / (2 * ell**2))
            solved = np.linalg.solve(K[np.ix_(seen, seen)] + 0.01 * np.eye(len(seen)), K[seen])
            mean[u], std[u] = np.array(y) @ solved, np.sqrt(np.maximum(1 - (K[seen] * solved).sum(0), 0))
        upper = np.full((2, 101), -np.inf)
        upper[left] = (mean + multiplier * std)[left]
        at = next(i for i in range(101) if upper[:, i].max() >= upper.max() - 1e-9)
        u = next(u for u in left if upper[u, at] >= upper[:, at].max() - 1e-9)
        seen.append(at)
        y.append(f[at] + 0.1 * given["normals"][t - 1])
        sums[u] += 1, y[-1] - mean[u, at], multiplier * std[u, at]
        xi = 2 * 0.1**2 * np.log(2 * np.pi**2 * t**2 / (3 * 0.1))
        allowed = np.sqrt(xi * sums[u, 0]) + sums[u, 2]
        dropped = bool(abs(sums[u, 1]) > allowed and len(left) > 1)
        if dropped:
            left.remove(u)
        found.append((u, at, sums[u, 1], allowed, dropped, f.max() - f[at]))
    return found


@pytest.mark.parametrize(("lengthscale", "multiplier"), SETTINGS)
def test_the_library_runs_as_numpy_does(given, lengthscale, multiplier):
    made = playground.rounds(given, lengthscale, multiplier, ROUNDS)
    for now, (u, at, errors, allowed, dropped, regret) in zip(made, plain(given, lengthscale, multiplier), strict=True):
        assert (now.followed, now.at, now.dropped) == (u, at, dropped)
        assert (now.errors, now.allowed, now.regret) == pytest.approx((errors, allowed, regret), abs=1e-6)


def test_what_the_page_says_of_it_happens(given):
    short, loose, long = (playground.rounds(given, *setting, ROUNDS) for setting in SETTINGS)
    assert [now.followed for now in short[:2]] == [0, 1] and short[1].dropped  # long, refuted in round 2
    assert loose[0].followed == 0 and loose[0].dropped  # the truth
    assert not any(now.dropped for now in long)


@pytest.mark.browser
def test_the_page_runs_as_numpy_does(open_page, given):
    page = open_page(markup())
    for lengthscale, multiplier in SETTINGS:
        found = page.evaluate(
            "([data, ell, m]) => window.cboStepper.hegpucb(data, ell, m)", [given, lengthscale, multiplier]
        )
        assert len(found) == playground.ROUNDS
        for now, (u, at, errors, allowed, dropped, regret) in zip(
            found, plain(given, lengthscale, multiplier), strict=False
        ):
            assert (now["followed"], now["place"], now["dropped"]) == (u, at, dropped)
            assert (now["errors"], now["allowed"], now["regret"]) == pytest.approx((errors, allowed, regret), abs=1e-6)


def label(page):
    """What stands below the picture; it is spoken by every slider."""
    text = page.locator(".cbo-label").inner_text()
    assert all(one.get_attribute("aria-valuetext").endswith(text) for one in page.locator("input").all())
    assert text in page.locator(".cbo-picture").get_attribute("aria-label")
    assert not re.search("NaN|undefined|Infinity", page.locator(".cbo-picture").inner_html())
    return text


@pytest.mark.browser
def test_the_sliders_answer(open_page):
    page = open_page(markup())
    said = re.search(r"round 2: [^.]*\.\d\d[^.]*\.\d\d[^.]*\.\d\d", re.search(r'alt="([^"]*)"', markup())[1])[0]
    assert label(page) == said.replace("&gt;", ">") and "long is followed" in said and "it is dropped" in said
    rounds, truth, multiplier = page.locator("input").all()
    multiplier.press("Home")
    rounds.press("Home")
    assert "short is followed" in label(page) and "it is dropped" in label(page)
    truth.press("End")
    multiplier.press("End")
    rounds.press("End")
    assert label(page).startswith("round 30: ")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("[...document.querySelectorAll('.cbo-view')].every((view) => view.offsetWidth < 390)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_values_that_the_sliders_do_not_have_are_refused():
    for wrong in ({"lengthscale": 0.11111}, {"multiplier": 0.3}, {"start": 31}):
        with pytest.raises(ValueError, match="must be values of the sliders"):
            playground.hegpucb_playground(**wrong)


def test_the_data_are_small_and_complete():
    data = data_of(playground.hegpucb_playground(caption="C.", name="hyperparameters-play").data)
    assert data["kind"] == "hegpucb" and len(data["normals"]) == playground.ROUNDS
    assert (data["truths"][data["start_truth"]], data["multipliers"][data["start_multiplier"]]) == (0.1, 2.0)
    assert {0.05, 0.1, 0.4, 0.8} <= set(data["truths"]) and (data["multipliers"][0], data["multipliers"][-1]) == (1, 5)
