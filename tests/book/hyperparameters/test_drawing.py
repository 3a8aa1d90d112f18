"""The pictures show the run that they are made of."""

import numpy as np
import pytest
import torch

from book import figures
from book.hyperparameters import drawing
from book.hyperparameters.problems import lengthscale_candidates
from cbo_lib.hyperparameters import HEGPUCB
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import run, setting


@pytest.mark.parametrize("initial", [0, 2])
def test_every_round_of_an_elimination_is_a_frame_that_says_what_happened(initial):
    case = setting("period")
    policy = HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta, initial=initial)
    frames, labels, alts = drawing.elimination_steps(case.problem, policy, 12, seed=5, limits=(-2.0, 3.0))
    assert len(frames) == len(labels) == len(alts) == 12 and all(alts)
    history = run(
        case.problem, HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta, initial=initial), 12 + initial, [5]
    )
    names = case.problem.space.candidates.names
    left = torch.ones(3, dtype=torch.bool)
    dropped = 0
    for t, (figure, label, alt) in enumerate(zip(frames, labels, alts, strict=True)):
        at = initial + t
        chosen, after = names[int(history["candidate"][0, at])], history["alive"][0, at]
        lost = [name for name, old, new in zip(names, left, after, strict=True) if old and not new]
        dropped += len(lost)
        what = f"{lost[0]} is dropped" if lost else "none is dropped"
        assert label == f"round {t + 1}: {chosen} chooses; {what}"
        x, y = float(history["query"][0, at, 0]), float(history["observation"][0, at])
        assert alt.startswith(
            f"Round {t + 1}. {chosen} has the highest upper bound, at x = {x:.2f}, and {y:.2f} is seen"
        )
        assert alt.endswith(f"Left: {', '.join(name for name, new in zip(names, after, strict=True) if new)}.")
        axes = figure.axes[0]
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_ylim()) == ("x", "f", (-2.0, 3.0))
        drawn = {curve.get_label(): curve for curve in axes.lines}
        bands = [name for name, alive in zip(names, left, strict=True) if alive]
        assert [name for name in drawn if name.startswith("period")] == [
            name + ", chooses" * (name == chosen) for name in bands
        ]
        assert len(axes.collections) == len(bands)
        np.testing.assert_allclose(drawn["f"].get_ydata(), case.problem.values)
        np.testing.assert_allclose(drawn["seen before"].get_ydata(), history["observation"][0, :at])
        dot = drawn["seen in this round"]
        assert (dot.get_xdata()[0], dot.get_ydata()[0]) == pytest.approx((x, y))
        seen = history["query"][0, :at].numpy(), history["observation"][0, :at].numpy()
        mean, _ = plain.posterior(case.priors[names.index(chosen)], 0.15, *seen, case.problem.space.points.numpy())
        np.testing.assert_allclose(drawn[f"{chosen}, chooses"].get_ydata(), mean, rtol=0, atol=1e-9)
        left = after
    assert dropped > 0
    text = figures.slider(frames[:2], labels[:2], alts[:2], "Round").data
    assert labels[0] in text


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


def test_a_round_is_chosen_seen_and_then_as_it_is():
    two = lengthscale_candidates((0.1, 0.4))

    def f(x):
        return (6 * x[..., 0]).sin()

    frames, labels, alts = drawing.round_steps(two, 0, f, (0.3, 0.8), (0.1, 0.0))
    assert len(frames) == len(labels) == len(alts) == 6
    seen = float(f(torch.tensor([[0.3]], dtype=torch.float64))) + 0.1
    assert f"y = {seen:.2f}" in alts[1] and f"y = {seen:.2f}" not in alts[0]
    assert f"{seen / 1.01**0.5:.1f} from lengthscale 0.1's mean" in alts[1]  # before any answer: variance 1, noise 0.1
    assert "lengthscale 0.1 is true" in alts[2]
    drawn = [{line.get_label(): line for line in frame.axes[0].lines} for frame in frames]
    assert ["f" in lines for lines in drawn] == [False, False, True] * 2
    assert [len(lines["seen"].get_xdata()) for lines in drawn] == [0, 1, 1, 1, 2, 2]
    before, after = (lines["lengthscale 0.4"].get_ydata() for lines in (drawn[2], drawn[3]))
    assert abs(before).max() == 0 and abs(after).max() > 0.5
