"""Pictures of runs with unknown contexts."""

import numpy as np
import pytest
import torch

from book import figures
from book.contexts import drawing
from book.contexts.problems import newsvendor
from cbo_lib.contexts.policies import SBOKDE
from cbo_lib.former.simulate import simulate
from tests.contexts.helpers import hill


def test_a_round_is_decided_then_seen_then_judged():
    shop = newsvendor()
    frames, labels, alts = drawing.loop_steps(shop, [0.3, 0.05])
    assert len(frames) == len(labels) == len(alts) == 6
    decided, seen, judged = frames[3:]
    assert [len(figure.axes[0].lines) for figure in (frames[0], decided, seen)] == [2, 3, 2]
    x, c = (torch.tensor(part) for part in seen.axes[0].lines[-1].get_data())
    np.testing.assert_allclose(seen.axes[1].lines[-1].get_ydata(), shop.f(torch.stack([x, c], -1)), rtol=1e-5)
    low, high = judged.axes[1].lines[-1].get_ydata()
    assert high == pytest.approx(float(shop.optimum)) and low < high
    assert f"{high - low:.2f} below the best" in labels[-1]
    figures.slider(frames, labels, alts)


def test_frames_step_through_the_estimate_and_the_acquisition():
    problem = hill()
    policy = SBOKDE(problem.space, samples=16, initial=3, raw=8, starts=1, iterations=2)
    frames, labels, alts = drawing.density_steps(problem, policy, [4, 6], seed=3)
    assert labels == ["4 contexts", "6 contexts"]
    assert len(frames) == len(alts) == 2
    assert all(len(figure.axes) == 2 for figure in frames)
    assert alts[0].startswith("After 4 evaluations")
    run = simulate(problem, policy, 6, [3], progress=False)
    marks = frames[1].axes[0].lines[2].get_xdata()
    np.testing.assert_allclose(marks, run["context"][0, :, 0], rtol=0, atol=1e-9)
