"""The two boxes that a learner knows."""

import numpy as np
import pandas as pd
import pytest
import torch

from cbo_lib.checks import require_inside
from cbo_lib.contexts.space import Space

F64 = torch.float64
DECISIONS, CONTEXTS = [[-1.0, 0.0], [1.0, 2.0]], [[0.0], [1.0]]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, pd.DataFrame])
def test_boxes_come_in_any_form(kind):
    space = Space(kind(DECISIONS), kind(CONTEXTS))
    assert space.like.dtype == (torch.float32 if kind is torch.tensor else F64)
    assert (space.decision_dim, space.context_dim, space.dim) == (2, 1, 3)
    assert space.bounds.tolist() == [[-1.0, 0.0, 0.0], [1.0, 2.0, 1.0]]
    assert space.controlled.tolist() == [True, True, False]


def test_both_boxes_have_the_dtype_of_the_decisions():
    space = Space(torch.tensor(DECISIONS, dtype=torch.float32), torch.tensor(CONTEXTS, dtype=F64))
    assert space.contexts.dtype == space.bounds.dtype == torch.float32


def test_join_puts_decisions_first_and_broadcasts(rng):
    x, c = torch.rand(4, 1, 2, generator=rng, dtype=F64), torch.rand(5, 1, generator=rng, dtype=F64)
    points = Space(DECISIONS, CONTEXTS).join(x, c)
    assert points.shape == (4, 5, 3)
    assert points[3, 2].tolist() == [*x[3, 0].tolist(), *c[2].tolist()]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: Space([[1.0], [0.0]], CONTEXTS), "decisions must have each lower bound below the upper, got"),
        (lambda s: Space(DECISIONS, [[0.0], [0.0]]), "contexts must have each lower bound below the upper, got"),
        (lambda s: Space([0.0, 1.0], CONTEXTS), r"decisions must have shape \(2, d\) with d >= 1, got"),
        (lambda s: Space(DECISIONS, "wide"), "contexts must be numbers"),
        (lambda s: s.join(torch.zeros(3), torch.zeros(1)), r"x must have shape \(..., 2\), got \(3,\)"),
        (lambda s: s.join(torch.zeros(2), torch.zeros(2)), r"c must have shape \(..., 1\), got \(2,\)"),
        (
            lambda s: require_inside("x", torch.tensor([[0.5, 1.0], [3.0, 1.0]]), s.decisions),
            r"x must lie in the box \[\[-1.0, 0.0\], \[1.0, 2.0\]\], got \[3.0, 1.0\]",
        ),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(Space(DECISIONS, CONTEXTS))
