"""The two boxes that a learner knows."""

import numpy as np
import pandas as pd
import pytest
import torch

from cbo_lib.contexts.space import Space

F64 = torch.float64
DECISIONS, CONTEXTS = [[-1.0, 0.0], [1.0, 2.0]], [[0.0], [1.0]]


@pytest.mark.parametrize(
    "kind", [list, np.array, torch.tensor, lambda box: pd.DataFrame(box, columns=["a", "b"][: len(box[0])])]
)
def test_boxes_come_in_any_form(kind):
    space = Space(kind(DECISIONS), CONTEXTS)
    assert space.like.dtype == (torch.float32 if kind is torch.tensor else F64)
    assert (space.decision_dim, space.context_dim, space.dim) == (2, 1, 3)
    assert space.bounds.tolist() == [[-1.0, 0.0, 0.0], [1.0, 2.0, 1.0]]
    assert space.columns in (["a", "b"], ["x0", "x1"]) and space.seen_columns == {"context": ["c0"]}


def test_join_puts_decisions_first_and_broadcasts(rng):
    x, c = torch.rand(4, 1, 2, generator=rng, dtype=F64), torch.rand(5, 1, generator=rng, dtype=F64)
    points = Space(DECISIONS, CONTEXTS).join(x, c)
    assert points.shape == (4, 5, 3)
    assert points[3, 2].tolist() == [*x[3, 0].tolist(), *c[2].tolist()]
