"""The audit of the search effort."""

import torch

from book import harness
from book.contexts import audit, problems
from book.contexts.experiments import PANELS, RESULTS


def test_a_state_has_random_decisions_and_what_they_met():
    problem = problems.modified_branin()
    told = audit.state(problem, 5, [3, 4])
    assert [tuple(told[name].shape) for name in ("query", "y", "context")] == [(2, 5, 2), (2, 5), (2, 5, 2)]
    assert torch.allclose(told["y"], problem.f(problem.space.join(told["query"], told["context"])))
    assert torch.allclose(told["query"][1], audit.state(problem, 5, [4])["query"][0])


def test_an_audit_has_a_row_a_policy_and_little_is_lost():
    frame = audit.effort(scale="reader", panels=["newsvendor"])
    assert list(frame.index) == [f"newsvendor, {name}" for name in audit.POLICIES]
    assert float(frame.min().min()) >= 0 and float(frame.max().max()) < 0.05
    stored = harness.load_table(RESULTS / "effort.json")
    assert list(stored.index) == [f"{panel}, {name}" for panel in PANELS for name in audit.POLICIES]
    assert list(stored.columns) == list(frame.columns)
