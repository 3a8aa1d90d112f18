"""The book's problems refuse bad input by name, and take arrays and lists as well as tensors."""

import functools
import re

import numpy as np
import pytest
import torch

from book.aggregated.problem import CellProblem
from book.contexts.problem import ContextProblem
from book.contexts.quadrature import QuadratureDistribution
from book.hyperparameters.problem import UnknownPriorProblem
from book.indirect.problem import IndirectProblem
from book.subsets.airfoil import load_airfoil, sample_airfoil
from book.subsets.problem import SubsetProblem
from cbo_lib import contexts
from cbo_lib.distributions import Uniform
from cbo_lib.former.simulate import simulate
from cbo_lib.random import ReplicateGenerators
from tests.test_bad_input import (
    F64,
    GRID,
    LINE,
    NAN,
    SQUARE,
    actions,
    boxes,
    cells,
    doubted,
    gpoo,
    hegpucb,
    sbokde,
    ucbpsq,
    variables,
)


def f(x):
    return x.sum(-1)


def context_problem(**changes):
    law = QuadratureDistribution((Uniform(),), torch.tensor(LINE, dtype=F64))
    return ContextProblem(**{"space": boxes(), "f": f, "distribution": law} | changes)


def subset_problem(**changes):
    return SubsetProblem(**{"space": variables(), "f": f, "cost_means": torch.ones(3, dtype=F64)} | changes)


def prior_problem(**changes):
    return UnknownPriorProblem(**{"space": doubted(), "f": f, "noise_std": 0.1} | changes)


cell_problem = functools.partial(CellProblem, cells(), f)
indirect_problem = functools.partial(IndirectProblem, actions(), f)
BAD = [
    ("space", lambda: CellProblem(boxes(), f)),
    *(("noise_std", functools.partial(make, noise_std=wrong)) for make in (cell_problem, context_problem,
      subset_problem, prior_problem, indirect_problem) for wrong in (-0.1, NAN)),
    *(("noise_std", functools.partial(make, noise_std="small")) for make in (cell_problem, context_problem,
      prior_problem, indirect_problem)),
    ("replicates", lambda: cell_problem(replicates=0)),
    ("replicates", lambda: prior_problem(replicates=1.5)),
    ("truth", lambda: prior_problem(truth=7)),
    ("order", lambda: indirect_problem(order=0)),
    ("order", lambda: indirect_problem(order=2.5)),
    ("distribution", lambda: context_problem(space=boxes(contexts=[[0.0], [2.0]]))),
    ("cost_means", lambda: subset_problem(cost_means=torch.ones(2, dtype=F64))),
    ("cost_std", lambda: subset_problem(cost_std=-1.0)),
    ("budget", lambda: subset_problem(cost_means=torch.full((3,), 9.0, dtype=F64))),
    ("nodes", lambda: subset_problem(nodes=3)),
    ("query", lambda: cell_problem().value(SQUARE)),
    ("query", lambda: cell_problem().value("all")),
    ("query", lambda: context_problem().value([0.1, 0.2])),
    ("query", lambda: context_problem().value(None)),
    ("query", lambda: subset_problem().value([[9.0, 0.5, 0.5]])),
    ("query", lambda: subset_problem().value([[0.0, 2.0, 0.5]])),
    ("query", lambda: prior_problem().value([[0.1, 0.2]])),
    ("query", lambda: indirect_problem().observe(torch.tensor([99]), ReplicateGenerators([0]).generators)),
    ("query", lambda: indirect_problem().observe(torch.tensor([0.5]), ReplicateGenerators([0]).generators)),
    ("count", lambda: sample_airfoil(1)),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "call"), [pytest.param(*row, id=f"{i}-{row[0]}") for i, row in enumerate(BAD)])
def test_every_bad_argument_is_refused_by_name(argument, call):
    with pytest.raises(ValueError, match=rf"\b{re.escape(argument)} must .*, got "):
        call()


TWICE = [[0.0], [2.0]]
OTHER_BOXES = {
    "aggregated": (cell_problem, lambda: gpoo(cells(bounds=TWICE))),
    "contexts": (context_problem, lambda: sbokde(boxes(decisions=TWICE))),
    "subsets": (subset_problem, lambda: ucbpsq(variables(bounds=[[0.0, 0.0], [2.0, 2.0]]))),
    "hyperparameters": (prior_problem, lambda: hegpucb(doubted(points=2 * GRID))),
}


@pytest.mark.parametrize("setting", OTHER_BOXES)
def test_a_policy_that_was_built_for_another_box_is_refused(setting):
    problem, policy = OTHER_BOXES[setting]
    with pytest.raises(ValueError, match=r"in the (bounds|box)\b.*, got "):
        simulate(problem(), policy(), 8, [0, 1], progress=False)


def test_a_policy_that_was_built_for_another_setting_is_refused():
    with pytest.raises(ValueError, match=r"query must have shape .*, got "):
        simulate(context_problem(), gpoo(), 2, [0], progress=False)


@pytest.mark.parametrize("make", [contexts.SBOKDE, contexts.DRBOKDE, contexts.DRBOMMD])
def test_a_context_that_never_changes_is_no_error(make):
    policy = sbokde(kind=make)
    for x in (0.2, 0.7, 0.4):
        policy.tell([x], 1.0 + x, context=[0.3])
    assert 0.0 <= float(policy.ask()) <= 1.0 and 0.0 <= float(policy.recommend()) <= 1.0


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00\x80", b"", b"1 2 3", b"a b c d e f", b"1 1 1 1 1 1\n1 1 1 1 1 1"], ids=repr
)
def test_a_file_that_is_no_data_set_is_refused(tmp_path, content):
    path = tmp_path / "airfoil.dat"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^path must name a file .*, got ") as caught:
        load_airfoil(path)
    assert type(caught.value) is ValueError


QUERIES = {
    cell_problem: [LINE],
    context_problem: [[0.5]],
    subset_problem: [[0.0, 0.2, 0.5]],
    prior_problem: [[0.25]],
    indirect_problem: [2],
}


@pytest.mark.parametrize("make", QUERIES)
def test_arrays_and_lists_are_queries(make):
    problem, query = make(), QUERIES[make]
    tensor = torch.tensor(query) if make is indirect_problem else torch.tensor(query, dtype=F64)
    for given in (query, np.asarray(query)):
        assert torch.equal(problem.value(given), problem.value(tensor))
        seen, wanted = (problem.observe(q, ReplicateGenerators([3]).at(1)) for q in (given, tensor))
        seen, wanted = (s if isinstance(s, dict) else {"y": s} for s in (seen, wanted))
        assert all(torch.equal(seen[name], wanted[name]) for name in wanted)
