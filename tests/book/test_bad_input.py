"""The book's problems refuse bad input by name, and take arrays and lists as well as tensors."""

import functools
import re

import pytest
import torch

from book.aggregated.problem import CellProblem
from book.contexts.problem import ContextProblem
from book.contexts.quadrature import QuadratureDistribution
from book.hyperparameters.problem import UnknownPriorProblem
from book.indirect.problem import IndirectProblem
from book.subsets.problem import SubsetProblem
from cbo_lib.distributions import Uniform
from tests.test_bad_input import (
    F64,
    LINE,
    NAN,
    SQUARE,
    actions,
    boxes,
    cells,
    doubted,
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
]  # fmt: skip


@pytest.mark.parametrize(("argument", "call"), [pytest.param(*row, id=f"{i}-{row[0]}") for i, row in enumerate(BAD)])
def test_every_bad_argument_is_refused_by_name(argument, call):
    with pytest.raises(ValueError, match=rf"\b{re.escape(argument)} must .*, got "):
        call()
