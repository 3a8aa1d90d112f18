"""GPOO in the page: it runs as a plain one in NumPy does, and its sliders answer."""

import re

import numpy as np
import pytest
import torch

from book.aggregated import playground
from book.aggregated.problems import curve_problem
from tests.book.conftest import STATIC
from tests.book.test_steppers import data_of

SETTINGS = [(9.0, 0.1), (4.4, 0.02), (19.0, 0.3)]
ROUNDS = 20


def markup():
    scripts = "".join(f'<script defer src="{STATIC.as_uri()}/{name}.js"></script>' for name in ("gp", "gpoo"))
    return playground.gpoo_playground().data + scripts


@pytest.fixture(scope="module")
def given():
    return playground.settings()


def plain(given, delta, noise):
    """Drawn cell, posterior means of the leaves, width, split or not, and recommended cell of each round."""

    def f(x):
        return np.exp(-(np.subtract.outer(x, given["centers"]) ** 2) / (2 * 0.05**2)) @ given["weights"]

    def inside(cell):
        return (cell[1] + np.array([0.25, 0.75])) / 2 ** cell[0]

    def covariance(a, b):
        apart = np.array([[np.subtract.outer(inside(p), inside(q)) for q in b] for p in a])
        return (0.1 * np.exp(-(apart**2) / (2 * 0.05**2))).mean((-2, -1))

    def posterior(cells):
        if not drawn:
            return np.zeros(len(cells)), np.sqrt(np.diag(covariance(cells, cells)))
        inverse = np.linalg.inv(covariance(drawn, drawn) + noise**2 * np.eye(len(drawn)))
        cross = covariance(cells, drawn)
        return cross @ inverse @ y, np.sqrt(np.diag(covariance(cells, cells) - cross @ inverse @ cross.T))

    def best(values):
        return next(k for k, value in enumerate(values) if value >= max(values) - 1e-9)

    leaves, split, drawn, y, found = [(0, 0)], [], [], np.zeros(0), []
    for t in range(1, ROUNDS + 1):
        mean, std = posterior(leaves)
        width = np.sqrt(2 * np.log((1 + (t - 1)) * np.pi**2 * t**2 / (6 * 0.1))) * std
        k = best([m + w + delta * 0.5**h for m, w, (h, _) in zip(mean, width, leaves, strict=True)])
        h, i = leaves[k]
        drawn.append((h, i))
        y = np.append(y, f(inside((h, i))).mean() + noise * given["normals"][t - 1])
        splits = bool(width[k] <= delta * 0.5**h)
        if splits:
            split.append((h, i))
            leaves = sorted({*leaves, (h + 1, 2 * i), (h + 1, 2 * i + 1)} - {(h, i)})
        deepest = sorted(cell for cell in split if cell[0] == max(split)[0]) or [(0, 0)]
        found.append(((h, i), mean, width[k], splits, deepest[best(posterior(deepest)[0])]))
    return found


def test_the_curve_is_the_chapters(given):
    problem = curve_problem("peaks", playground.POINTS)
    x = np.linspace(0, 1, 301)
    values = np.exp(-(np.subtract.outer(x, given["centers"]) ** 2) / (2 * 0.05**2)) @ given["weights"]
    np.testing.assert_allclose(values, problem.f(torch.tensor(x)[:, None]).numpy(), rtol=0, atol=1e-9)
    assert given["optimum"] == pytest.approx(float(problem.optimum), abs=1e-9)


@pytest.mark.parametrize(("delta", "noise"), SETTINGS)
def test_the_still_picture_shows_a_round_of_the_same_run(given, delta, noise):
    made = playground.rounds(given, delta, noise, ROUNDS)
    for now, (drawn, mean, width, splits, recommended) in zip(made, plain(given, delta, noise), strict=True):
        assert (now.drawn, now.drawn in now.split, now.recommended) == (drawn, splits, recommended)
        np.testing.assert_allclose(now.mean, mean, rtol=0, atol=1e-8)
        assert now.width[now.leaves.index(drawn)] == pytest.approx(width, abs=1e-8)


@pytest.mark.browser
def test_the_page_runs_as_numpy_does(open_page, given):
    page = open_page(markup())
    for delta, noise in SETTINGS:
        found = page.evaluate(
            """([data, delta, noise]) => window.cboStepper.gpoo(data, delta, noise).map((round) => {
              const cell = ({ h, i }) => [h, i];
              return { ...round, leaves: round.leaves.map(cell), recommended: cell(round.recommended) };
            })""",
            [given, delta, noise],
        )
        assert len(found) == playground.ROUNDS + 1
        for now, (drawn, mean, width, splits, recommended) in zip(found[1:], plain(given, delta, noise), strict=False):
            assert tuple(now["leaves"][now["chosen"]]) == drawn
            assert (now["splits"], tuple(now["recommended"])) == (splits, recommended)
            np.testing.assert_allclose(now["mean"], mean, rtol=0, atol=1e-8)
            assert now["width"][now["chosen"]] == pytest.approx(width, abs=1e-8)


def said(page):
    """What stands below the picture, and the chosen δ(0) and σ."""
    text = page.locator(".cbo-label").inner_text()
    spoken = [one.get_attribute("aria-valuetext") for one in page.locator("input").all()]
    assert spoken[0] == text and all(one.endswith(f"; {text}") for one in spoken[1:])
    assert text in page.locator(".cbo-picture").get_attribute("aria-label")
    assert not re.search("NaN|undefined|Infinity", page.locator(".cbo-picture").inner_html())
    return text, [float(re.search(r"= ([\d.]+);", one)[1]) for one in spoken[1:]]


@pytest.mark.browser
def test_the_sliders_answer(open_page):
    page = open_page(markup())
    text, chosen = said(page)
    drawn = re.search(r'alt="[^"]*the cell (\[[^]]*\]) marked', markup())[1]
    assert text.startswith(f"round 20: draws {drawn} at depth 4, width 0.40 ≤ δ 0.56: split; ") and chosen == [9, 0.1]
    assert page.locator("img").count() == 0
    rounds, delta, noise = page.locator("input").all()
    delta.press("End")
    noise.press("Home")
    assert said(page)[1] == [60, 0.02] and said(page)[0] != text
    rounds.press("Home")
    assert said(page)[0] == "before round 1: the root is the only leaf; recommends [0, 1], regret 0.94"
    delta.press("Home")
    rounds.press("End")
    assert said(page)[0].startswith("round 30: ") and said(page)[1] == [0.5, 0.02]
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("[...document.querySelectorAll('.cbo-view')].every((view) => view.offsetWidth < 390)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.emulate_media(media="print")
    assert not any(control.is_visible() for control in page.locator(".cbo-controls").all())


def test_values_that_the_sliders_do_not_have_are_refused():
    for wrong in ({"delta": 7.0}, {"noise": 0.0}, {"start": 31}):
        with pytest.raises(ValueError, match="must be values of the sliders"):
            playground.gpoo_playground(**wrong)


def test_the_data_are_small_and_complete():
    data = data_of(playground.gpoo_playground(caption="C.", name="aggregated-play").data)
    assert data["kind"] == "gpoo" and len(data["normals"]) == playground.ROUNDS
    assert (data["deltas"][data["start_delta"]], data["noises"][data["start_noise"]]) == (9.0, 0.1)
    assert (min(data["deltas"]), max(data["deltas"]), min(data["noises"]), max(data["noises"])) == (0.5, 60, 0.02, 0.5)
