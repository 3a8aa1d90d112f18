"""The frames of a run of Algorithm 1 show, and say, what was known when each play was chosen."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from book import figures
from book.subsets.drawing import algorithm_steps, names, round_steps, two_variables
from cbo_lib.subsets.policies import CheapestGoodSubset
from cbo_lib.subsets.search import Effort
from tests.subsets.helpers import prior, run, solid

ALPHA, ROUNDS, STEPS = 0.1, 2, 22
SHOWN = (1, 2, 5, 9, 10, 22)
GRAY = "#999999"


@pytest.fixture(scope="module")
def played():
    """Two rounds of four subsets, then plays in which a subset is dropped."""
    problem = solid().with_budget(1e6)
    effort = Effort(contexts=8, candidates=16, iterations=2)
    options = {"alpha": ALPHA, "rounds": ROUNDS, "horizon": 2, "effort": effort, "cost_spread": 1.0}
    policy = CheapestGoodSubset(problem.space, prior=prior(problem, mean=3.0), sqrt_beta=1.0, **options)
    return problem, run(problem, policy, STEPS, [0, 4])


@pytest.fixture(scope="module", params=[0, 1])
def drawn(request, played):
    problem, history = played
    return request.param, algorithm_steps(history, problem, ALPHA, SHOWN, request.param)


def test_frames_labels_and_texts_belong_together_and_name_the_played_subset(played, drawn):
    problem, history = played
    replicate, (frames, labels, alts) = drawn
    assert len(frames) == len(labels) == len(alts) == len(SHOWN)
    words = names(problem)
    for step, label, alt in zip(SHOWN, labels, alts, strict=True):
        subset = words[int(history["query"][replicate, step - 1, 0])]
        phase = "exploration" if step <= ROUNDS * problem.space.m else "exploitation"
        assert label == f"play {step}, {phase}: {subset}"
        assert alt.startswith(f"Play {step}, {phase}. Subset {subset} is played. ")
        good = [word for word, ok in zip(words, history["good"][replicate, step - 1], strict=True) if ok]
        assert alt.endswith(f"{len(good)} of 4 subsets may be good enough: {', '.join(good)}.")
    assert len({id(frame) for frame in frames}) == len(frames)


def test_bounds_and_the_threshold_are_those_of_the_play(played, drawn):
    problem, history = played
    replicate, (frames, _, _) = drawn
    grays = 0
    for step, frame in zip(SHOWN, frames, strict=True):
        axis = frame.axes[0]
        assert axis.get_xlabel() == "upper bound of the value (units of f)"
        assert [tick.get_text() for tick in axis.get_yticklabels()] == names(problem)
        right = axis.get_xlim()[1]
        assert right > float(problem.best_values.max())
        for i, bar in enumerate(axis.patches):
            upper = float(history["upper"][replicate, step - 1, i])
            assert bar.get_width() == pytest.approx(min(upper, right))
            assert bar.get_y() + bar.get_height() / 2 == pytest.approx(i)
            good = bool(history["good"][replicate, step - 1, i])
            assert to_hex(bar.get_facecolor()) == (figures.COLORS[0].lower() if good else GRAY)
            grays += not good
        lines = {line.get_label(): line for line in axis.lines}
        np.testing.assert_allclose(lines["true best value"].get_xdata(), problem.best_values)
        assert list(lines["true best value"].get_ydata()) == [0, 1, 2, 3]
        lower = float(history["lower"][replicate, step - 1])
        assert list(lines["threshold"].get_xdata()) == pytest.approx([0.9 * lower] * 2)
        assert list(lines["$L$"].get_xdata()) == [pytest.approx(lower)] * 2
        legend = [text.get_text() for text in axis.get_legend().texts]
        assert legend == ["true best value", "threshold", "$L$"]
    assert grays > 0


def test_costs_are_the_averages_before_the_play_with_their_lower_bounds(played, drawn):
    problem, history = played
    replicate, (frames, _, _) = drawn
    below = 0
    for step, frame in zip(SHOWN, frames, strict=True):
        axis = frame.axes[1]
        assert axis.get_xlabel() == "cost: average, lower bound, mean (|)"
        paid = {}
        for t in range(step - 1):
            subset = int(history["subset"][replicate, t])
            paid.setdefault(subset, []).append(float(history["cost"][replicate, t]))
        points, _, (bars,) = axis.containers[0]
        known = sorted(paid)
        assert list(points.get_ydata()) == known
        assert list(points.get_xdata()) == pytest.approx([np.mean(paid[i]) for i in known])
        for i, segment in zip(known, bars.get_segments(), strict=True):
            low = min(float(history["cost_lower"][replicate, step - 1, i]), np.mean(paid[i]))
            expected = [[low, i], [np.mean(paid[i]), i]]
            np.testing.assert_allclose(np.array(segment, dtype=float), expected, rtol=0, atol=1e-9)
            below += low < np.mean(paid[i]) - 1e-6
        means = next(line for line in axis.lines if line.get_markersize() == 14)
        np.testing.assert_allclose(means.get_xdata(), problem.cost_means)
    assert below > 0


def test_a_round_is_shown_as_chosen_as_seen_and_as_it_is():
    hill = two_variables()
    decisions = [(0, 0.3, 0.5), (2, 0.3, 0.65)]
    frames, labels, alts = round_steps(hill, decisions)
    assert labels[:3] == [f"round 1, {{1}}: {stage}" for stage in ("chosen", "seen", "what only the world knows")]
    assert len(frames) == len(labels) == len(alts) == 6
    seen = hill.observe(
        torch.tensor(decisions, dtype=torch.float64), [torch.Generator().manual_seed(k) for k in (0, 1)]
    )
    for k in (0, 1):
        point = [frame.axes[0].lines[-1].get_xydata() for frame in frames[3 * k : 3 * k + 3]]
        assert [len(points) for points in point] == [k, k + 1, k + 1]  # a point is there once it is seen
        np.testing.assert_allclose(point[1], seen["played"][: k + 1])
        assert [len(frame.axes[0].images) for frame in frames[3 * k : 3 * k + 3]] == [0, 0, 1]
        assert f"y = {seen['y'][k]:.2f}, cost {seen['cost'][k]:.2f}" in alts[3 * k + 1]
        assert f"average {hill.value(torch.tensor(decisions[k], dtype=torch.float64)):.2f}" in alts[3 * k + 2]
    assert [len(frame.axes[1].collections) for frame in frames] == [1] * 3 + [0] * 3  # how the free one varies
    assert figures.slider(frames, labels, alts, over="Stage").data
