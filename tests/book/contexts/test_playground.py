"""The seller's decision in the page: it is that of the library, and its sliders answer."""

import numpy as np
import pytest

from book.contexts import playground
from tests.book.conftest import STATIC
from tests.book.test_steppers import data_of

SETTINGS = [(1.0, 0.4, 12), (0.0, 0.0, 5), (2.5, 1.5, 40)]


def markup():
    scripts = f'<script defer src="{STATIC.as_uri()}/demand.js"></script>'
    return playground.demand_playground().data + scripts


@pytest.mark.parametrize(("share", "radius", "days"), SETTINGS)
def test_the_decision_is_what_a_plain_loop_finds(share, radius, days):
    given = playground.settings()
    seen, (h, curves) = np.array(given["demands"][:days]), playground.decide(share, radius, days)
    assert h == pytest.approx(share * (4 / (3 * days)) ** 0.2 * seen.std(ddof=1))
    nodes = np.clip(np.add.outer(seen, h * np.array(given["bells"])).ravel(), 0, 1)
    for x, plain, worst in zip(given["stocks"], curves["plain average"], curves["worst in the ball"], strict=True):
        assert float(plain) == pytest.approx((9 * np.minimum(x, seen) + np.maximum(0, x - seen) - 5 * x).mean())
        values = np.sort(9 * np.minimum(x, nodes) + np.maximum(0, x - nodes) - 5 * x)[::-1]
        taken = np.clip(min(radius / 2, 1) * len(values) - np.arange(len(values)), 0, 1) / len(values)
        assert float(worst) == pytest.approx(values.mean() - taken @ (values - min(-4 * x, values[-1])))


def test_the_plain_average_decides_nearly_what_the_estimate_decides():
    stocks = playground.settings()["stocks"]
    for days in (6, 12, 40):
        curves = playground.decide(1.0, 0.4, days)[1]
        plain, blurred, worst = (
            stocks[int(curves[name].argmax())] for name in ("plain average", "under the estimate", "worst in the ball")
        )
        assert abs(plain - blurred) <= 0.03 and worst < blurred


@pytest.mark.browser
def test_the_sliders_answer(open_page):
    page = open_page(markup())
    for share, radius, days in SETTINGS:
        h, curves = playground.decide(share, radius, days)
        found = page.evaluate(
            "([data, share, radius, n]) => window.cboStepper.demand(data, share, radius, n)",
            [playground.settings(), share, radius, days],
        )
        assert found["h"] == pytest.approx(h)
        for mine, theirs in zip(curves.values(), found["curves"], strict=True):
            np.testing.assert_allclose(theirs, mine.numpy(), rtol=0, atol=1e-9)
    before = page.locator(".cbo-label").inner_text()
    page.locator("input").nth(2).press("End")
    assert page.locator(".cbo-label").inner_text() != before
    assert "NaN" not in page.locator(".cbo-picture").inner_html()


def test_values_that_the_sliders_do_not_have_are_refused():
    for wrong in ({"share": 0.55}, {"radius": 2.0}, {"days": 1}):
        with pytest.raises(ValueError, match="must be values of the sliders"):
            playground.demand_playground(**wrong)


def test_the_data_are_small():
    data = data_of(playground.demand_playground(caption="C.", name="contexts-play").data)
    assert data["kind"] == "demand" and len(data["demands"]) == playground.DAYS
