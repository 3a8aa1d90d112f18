"""The loop of learner and world as pictures: what is asked, what is averaged and what is believed."""

import numpy as np
import torch

from book import figures
from book.aggregated import drawing
from book.aggregated.problems import curve_problem
from cbo_lib import GaussianProcess, Measure, rbf_kernel

BOXES = torch.tensor([[0.0, 1.0], [0.5, 1.0]], dtype=torch.float64)[..., None]


def test_each_round_is_a_question_a_report_and_a_belief():
    problem, prior = curve_problem("peaks", 10), GaussianProcess(rbf_kernel(0.05, 0.1), 0.1)
    frames, labels, alts = drawing.loop_steps(problem, prior, BOXES, [0.1, -0.2])
    assert len(frames) == len(labels) == len(alts) == 7
    reports = problem.value(BOXES) + torch.tensor([0.1, -0.2])
    assert [f"the report is {value:.2f}" in labels[k] for k, value in zip((2, 5), reports, strict=True)] == [True, True]

    drawn = [{line.get_label(): line for line in frame.axes[0].lines} for frame in frames]
    counts = [sum(line.get_linewidth() == 3 for line in frame.axes[0].lines) for frame in frames]
    assert counts == [0, 0, 1, 1, 1, 2, 2]  # a report is seen when it was given
    assert ["averaged, seen by nobody" in lines for lines in drawn] == [k in (2, 5) for k in range(7)]
    for k, t in ((2, 0), (5, 1)):
        x, y = drawn[k]["averaged, seen by nobody"].get_data()
        assert len(x) == 10 and min(x) > BOXES[t, 0] and max(x) < BOXES[t, 1]
        np.testing.assert_allclose(np.mean(y), problem.value(BOXES)[t])

    for k, told in ((0, 0), (1, 0), (2, 0), (3, 1), (5, 1), (6, 2)):
        line = drawn[k]["mean of f, and two deviations"]
        posterior = prior.condition(problem.space.measure(BOXES[:told]), reports[:told]) if told else prior.posterior()
        x = torch.tensor(line.get_xdata())[:, None]
        np.testing.assert_allclose(line.get_ydata(), posterior.mean(Measure.dirac(x)), atol=1e-12)
    assert "cbo-stepper" in figures.slider(frames, labels, alts).data
