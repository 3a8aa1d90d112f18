"""The pictures show the run that they are made of."""

import numpy as np
import pytest
import torch

from book import figures
from book.indirect import drawing, problems
from book.indirect.problem import IndirectProblem
from book.indirect.problems import known_prior, unit_grid
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMETS, ClippedGaussian, Nodes, Space
from cbo_lib.kernels import GaussianMeasureKernel
from cbo_lib.measure import Measure
from tests.indirect import plain
from tests.indirect.helpers import UNIT


def small_tree(levels):
    nodes = Nodes.complete(UNIT, levels)
    cost, conditional = nodes.cost(), problems.branin_problem(count=4).conditional
    space = Space(nodes.actions, conditional=conditional, points=unit_grid(7), noise_std=0.5 / cost, cost=cost)
    return IndirectProblem(space, problems.branin, order=9), CMETS(space, nodes=nodes, prior=known_prior(space, 0.25))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_the_steps_of_a_tree_become_frames():
    problem, policy = small_tree(2)
    nodes, count = policy.nodes, 7
    frames, labels, alts = drawing.tree_steps(problem, policy, 3, seed=2)
    assert len(frames) == len(labels) == len(alts) == 3
    history = simulate(*small_tree(2), 3, [2], progress=False)
    for t in range(3):
        level, (x, y, _) = int(history["level"][0, t]), nodes.actions[history["query"][0, t]].tolist()
        assert labels[t] == f"round {t + 1}: level {level} at ({x:.2f}, {y:.2f})"
        assert f"{float(history['observation'][0, t]):.2f} is seen" in alts[t]
        assert f"The tree has {int(history['leaves'][0, t])} leaves" in alts[t]
        assert len(frames[t].axes[0].images) == int(history["leaves"][0, t])
        field = np.asarray(frames[t].axes[1].images[0].get_array())
        assert field.shape == (count, count)
    html = figures.slider(frames, labels, alts).data
    assert alts[0][:20] in html and labels[2] in html


def test_the_loop_becomes_three_frames_a_round():
    f, blur = problems.two_peaks, ClippedGaussian(lambda a: a, 0.15)
    prior = GaussianProcess(GaussianMeasureKernel(0.3), 0.02)
    frames, labels, alts = drawing.loop_steps(f, blur, prior, [2.0, 0.5])
    assert len(frames) == len(labels) == len(alts) == 6
    known = prior.posterior()
    for t, action in enumerate((2.0, 0.5)):
        a = torch.tensor([[action]], dtype=torch.float64)
        average = float(blur.measure(a, 40).expectation(f))
        seen = frames[3 * t + 1].axes[0].lines[2].get_xydata()[t]
        assert seen[0] == action and abs(seen[1] - average) < 0.1 and f"{average:.2f} with noise" in alts[3 * t + 1]
        x = torch.tensor(frames[0].axes[0].lines[0].get_xdata())[:, None]
        places = Measure.dirac(torch.cat([x, torch.zeros_like(x)], -1))
        # Before the answer the picture shows what was known, after it what is known.
        np.testing.assert_allclose(frames[3 * t + 1].axes[0].lines[1].get_ydata(), known.mean(places))
        known = known.extend(Measure.dirac(blur.gaussian(a)), torch.tensor([seen[1]]), 0.02)
        np.testing.assert_allclose(frames[3 * t + 2].axes[0].lines[1].get_ydata(), known.mean(places), atol=1e-6)
        assert labels[3 * t + 2].endswith(f"{float(x[known.mean(places).argmax(), 0]):.2f} is recommended")
    assert alts[5] in figures.slider(frames, labels, alts).data


def test_the_sets_of_a_tree_become_two_frames_a_query():
    _, policy = small_tree(2)
    frames, labels, alts = drawing.split_steps(policy, [0, 1, 9])
    assert len(frames) == len(labels) == len(alts) == 6
    assert labels[:2] == ["round 1, node 0: before the update", "round 1, node 0: after the update"]
    assert "Leaves: 0. Their children: 1 to 4." in alts[0]
    assert "Leaves: 1 to 4. Their children: 5 to 20." in alts[1]
    assert "Leaves: 2 to 8. Their children: 9 to 20." in alts[3]  # those of level 2 have no children
    # A child of leaf 2 was queried: it and its siblings are leaves now.
    assert "Leaves: 3 to 12. Their children: 13 to 20." in alts[5]
    shown = [text.get_text() for text in frames[3].axes[0].texts]
    assert shown == [str(node) for node in range(2, 9)]
    with pytest.raises(ValueError, match="queries must hold leaves or their children, got 0 in round 2"):
        drawing.split_steps(policy, [3, 0])


def test_cut_normals_integrate_to_one_and_name_their_information():
    figure = drawing.plot_cuts((1.0, -0.5))
    for axis, gamma in zip(figure.axes, (1.0, -0.5), strict=True):
        u, left = (np.asarray(part, dtype=float) for part in axis.lines[1].get_data())
        assert np.nansum(left) * (u[1] - u[0]) == pytest.approx(1.0, abs=0.02)
        assert np.isnan(left[u > gamma + 1e-9]).all()
        assert axis.get_title() == f"γ = {gamma:g}: {plain.truncation_gain(gamma):.2f} nats"


@pytest.mark.parametrize("what", ["square", "steps"])
def test_figures_are_drawn_without_warnings(what):
    if what == "square":
        drawing.plot_square(figures.subplots()[1][0, 0], unit_grid(4)[:, 0], "first coordinate")
        return
    problem, policy = small_tree(1)
    drawing.tree_steps(problem, policy, 1)
