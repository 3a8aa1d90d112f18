"""The cell that readers drag: its posterior is the library's, and mouse and keyboard move it."""

import math

import pytest
import torch

from book.steppers import cell
from cbo_lib import GaussianProcess, Measure, rbf_kernel
from tests.book.conftest import STATIC

F64 = torch.float64
WAVES = [(1.0, 9.0, 0.0), (0.5, 23.0, math.pi / 2)]


def markup():
    kept = [(0.1, 0.1, 0.4)]
    settings = {"lengthscale": 0.1, "variance": 1.0, "noise": 0.1, "start": (0.5, 0.2), "cells": kept}
    scripts = "".join(f'<script defer src="{STATIC.as_uri()}/{name}.js"></script>' for name in ("gp", "cell"))
    return cell("<p>still</p>", WAVES, [0.05, -0.1], **settings).data + scripts


@pytest.mark.browser
def test_the_posterior_in_the_page_is_the_librarys(open_page):
    page = open_page(markup())
    rng = torch.Generator().manual_seed(0)
    cells = [(0.1 + 0.8 * torch.rand(1, generator=rng).item(), 0.02 + 0.3 * i / 12) for i in range(12)]
    y = torch.randn(12, generator=rng, dtype=F64)
    at = torch.linspace(0, 1, 161, dtype=F64)
    found = page.evaluate(
        """([settings, cells, y, at]) => {
          const { posterior, points } = window.cboStepper;
          return posterior(settings, cells.map((c) => points(c, 20)), y, at);
        }""",
        [{"lengthscale": 0.12, "variance": 1.7, "noise": 0.05}, cells, y.tolist(), at.tolist()],
    )
    middle = (torch.arange(20, dtype=F64) + 0.5) / 20 - 0.5
    sets = torch.stack([c + w * middle for c, w in cells])
    known = GaussianProcess(rbf_kernel(0.12, 1.7), 0.05).condition(Measure.average(sets[..., None]), y)
    points = Measure.dirac(at[:, None])
    torch.testing.assert_close(torch.tensor(found["mean"], dtype=F64), known.mean(points), rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.tensor(found["variance"], dtype=F64), known.variance(points), rtol=0, atol=1e-9)


def interval(page):
    text = page.locator(".cbo-label").inner_text()
    assert text == page.locator(".cbo-handle").first.get_attribute("aria-valuetext")
    assert "NaN" not in page.locator(".cbo-picture").inner_html()
    words = text.replace("−", "-").split()
    return float(words[3]), float(words[5])


@pytest.mark.browser
def test_the_cell_is_dragged_typed_and_kept(open_page):
    page = open_page(markup())
    center, edge = page.locator(".cbo-handle").nth(0), page.locator(".cbo-handle").nth(1)
    assert interval(page) == (0.4, 0.6)
    center.press("ArrowRight")
    assert interval(page) == (0.42, 0.62)
    edge.press("PageUp")
    assert interval(page) == (0.37, 0.67)
    center.press("Home")
    assert interval(page) == (0.0, 0.3)  # the whole cell stays inside
    box = center.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"], steps=4)
    page.mouse.up()
    low, high = interval(page)
    assert low > 0.2 and high - low == pytest.approx(0.3, abs=0.011)
    page.get_by_text("Keep this report").click()
    assert "Reports kept: 2." in page.locator(".cbo-label").inner_text()
    page.get_by_text("Begin again").click()
    assert interval(page) == (0.4, 0.6)
    page.emulate_media(media="print")
    assert not center.is_visible() and not page.get_by_text("Begin again").is_visible()
    page.set_viewport_size({"width": 390, "height": 700})
    page.wait_for_function("document.querySelector('.cbo-view').offsetWidth < 390")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
