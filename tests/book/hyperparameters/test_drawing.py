"""The pictures show the run that they are made of."""

import numpy as np
import torch

from book import figures
from book.hyperparameters import drawing, problems, regret
from book.hyperparameters.problem import UnknownPriorProblem
from cbo_lib import simulate
from cbo_lib.hyperparameters import HEGPUCB, Space


def test_every_round_of_an_elimination_is_a_frame_that_says_what_happened():
    candidates, truth = problems.hill_candidates(), torch.tensor([4])
    f = problems.draws_of_candidates(candidates, truth, [7])
    space = Space(candidates, points=torch.linspace(0, 1, 200, dtype=torch.float64)[:, None], noise_std=0.1)
    world = UnknownPriorProblem(space, f, truth=truth, replicates=1)
    places = [0.05 + i / 10 for i in range(10)] + [float("nan")]
    frames, labels, alts = drawing.elimination_steps(world, HEGPUCB(space), 8, 7, places, (-1.0, 14.0))
    history = simulate(world, HEGPUCB(space), 8, [7], watch=regret.watch)
    left = torch.ones(11, dtype=torch.bool)
    for t, (figure, label, alt) in enumerate(zip(frames, labels, alts, strict=True)):
        after, u = history["alive"][0, t], int(history["candidate"][0, t])
        lost = [name for name, old, new in zip(candidates.names, left, after, strict=True) if old and not new]
        assert label == f"round {t + 1}: {candidates.names[u]} is followed; {(lost or ['none'])[0]} is dropped"
        x, y = float(history["query"][0, t, 0]), float(history["observation"][0, t])
        assert f"at x = {x:.2f}, and {y:.2f} is seen there" in alt and alt.endswith(f"{int(after.sum())} are left.")
        drawn = {line.get_label(): line for line in figure.axes[0].lines}
        np.testing.assert_allclose(drawn["f"].get_ydata(), world.values[0], rtol=0, atol=1e-6)
        assert abs(float(drawn["seen now"].get_ydata()[0]) - y) < 1e-6
        np.testing.assert_allclose(drawn["seen before"].get_ydata(), history["observation"][0, :t], rtol=0, atol=1e-6)
        # at the point that is asked the band of the one that is followed reaches highest
        at = int((space.points[:, 0] - x).abs().argmin())
        top = history["mean"][0, t, u] + history["sqrt_beta"][0, t, u] * history["std"][0, t, u]
        assert abs(float(drawn["largest upper bound of all left"].get_ydata()[at]) - float(top)) < 1e-6
        assert len(drawn["dropped"].get_xdata()) == len(lost)
        left = after
    assert not left.all() and bool(left[4])
    assert labels[0] in figures.slider(frames[:2], labels[:2], alts[:2], "Round").data


def test_responsibility_shows_who_chose_and_what_one_sum_was_allowed():
    candidate, critical = torch.tensor([0, 1, 1, 0]), torch.tensor([False, False, True, False])
    total, room = torch.tensor([-1.0, -3.0]), torch.tensor([2.0, 2.5])
    figure = drawing.responsibility(candidate, critical, ["a", "b"], 0, 1, total, room)
    figures.show(figure, "Two panels.")
    chose, refuted, errors, allowed = (line for axes in figure.axes for line in axes.lines)
    assert (list(chose.get_xdata()), list(chose.get_ydata())) == ([1, 2, 4], [0, 1, 0])
    assert (list(refuted.get_xdata()), list(refuted.get_ydata())) == ([3], [1])
    assert (list(errors.get_ydata()), list(allowed.get_ydata())) == ([1.0, 3.0], [2.0, 2.5])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a (true)", "b"]
