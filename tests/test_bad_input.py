"""Every bad input is refused by a ``ValueError`` that names the argument, what was expected and what was given."""

import functools
import math
import re

import numpy as np
import pytest
import torch

from book import information
from book.contexts.quadrature import ContextDistribution
from book.hyperparameters.widths import rkhs_sqrt_beta
from book.subsets.marginals import TruncatedNormal
from cbo_lib import aggregated, contexts, hyperparameters, indirect, subsets
from cbo_lib.confidence import noise_threshold, union_bound_sqrt_beta
from cbo_lib.distributions import Normal, Uniform
from cbo_lib.fit import default_kernel
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import GaussianMeasureKernel, StackedKernel, TabulatedKernel, matern_kernel, rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.partition import PartitionTree, subcell_centers
from cbo_lib.random import ReplicateGenerators

F64 = torch.float64
NAN, INF = math.nan, math.inf
LEFT_OUT = object()
LINE, SQUARE = [[0.0], [1.0]], [[0.0, 0.0], [1.0, 1.0]]
GRID = torch.linspace(0, 1, 5, dtype=F64).unsqueeze(-1)
ROWS = torch.rand(8, 2, generator=torch.Generator().manual_seed(0), dtype=F64)


def prior(dim=1, noise_std=0.1):
    return GaussianProcess(rbf_kernel([0.3] * dim), noise_std)


def point():
    return Measure.dirac(GRID)


def condition(y, **options):
    return prior().condition(point(), y, **options)


# Spaces and policies of every setting, small.


def cells(**changes):
    return aggregated.Space(**{"bounds": LINE, "points_per_cell": 3} | changes)


def boxes(**changes):
    return contexts.Space(**{"decisions": LINE, "contexts": LINE} | changes)


def variables(**changes):
    given = {"bounds": SQUARE, "control_sets": [[0], [1], [0, 1]], "free": ROWS, "budget": 5.0}
    return subsets.Space(**given | changes)


def doubted(**changes):
    return hyperparameters.Space(
        **{"candidates": [rbf_kernel(0.1), rbf_kernel(0.3)], "points": GRID, "noise_std": 0.1} | changes
    )


def actions(**changes):
    given = {"actions": GRID, "conditional": indirect.Point(), "points": GRID, "noise_std": 0.1}
    return indirect.Space(**given | changes)


def gpoo(space=None, **options):
    return aggregated.GPOO(space or cells(), **{"prior": prior()} | options)


def sbokde(space=None, kind=contexts.SBOKDE, **options):
    small = {} if kind is not contexts.SBOKDE else {"samples": 4}
    given = {"prior": prior(2), "initial": 2, "raw": 4, "starts": 1, **small}
    return kind(space or boxes(), **given | options)


def ucbpsq(space=None, kind=subsets.UCBPSQ, **options):
    return kind(space or variables(), **{"prior": prior(2), "contexts": 4, "raw": 4, "steps": 1} | options)


def hegpucb(space=None, **options):
    return hyperparameters.HEGPUCB(space or doubted(), **options)


def cmes(space=None, **options):
    return indirect.CMES(space or actions(), **{"prior": prior(), "samples": 2} | options)


def mes(space=None, **options):
    return indirect.MES(space or actions(), prior=prior(), **options)


# What each policy was told before; of each a good row.
TOLD = {
    "aggregated": (gpoo, ([[0.0], [1.0]], 1.0), {}),
    "contexts": (sbokde, ([0.5], 1.0), {"context": [0.2]}),
    "subsets": (ucbpsq, ([0, 0.2, 0.7], 1.0), {"cost": 0.5}),
    "hyperparameters": (hegpucb, ([0.25], 1.0), {}),
    "indirect": (cmes, ([0.25], 1.0), {}),
}


def bad(number, argument, call, expected=""):
    return pytest.param(argument, call, expected, id=f"{number}-{argument}")


FOUNDATION = [
    # measures
    ("points", lambda: Measure(torch.zeros(2, 3), torch.zeros(2)), "shape (..., n, p, d)"),
    ("points", lambda: Measure("many", torch.zeros(2)), "numbers"),
    ("weights", lambda: Measure(torch.zeros(1, 2, 1), torch.ones(1, 3)), "shape (1, 2)"),
    ("weights", lambda: Measure(torch.zeros(1, 2, 1), None), "numbers|shape"),
    ("x", lambda: Measure.dirac([1.0, 2.0]), "shape (..., n, d)"),
    ("x", lambda: Measure.dirac([[1.0], [1.0, 2.0]]), "numbers"),
    ("points", lambda: Measure.average(torch.zeros(3, 0, 2)), "p >= 1"),
    ("boxes", lambda: Measure.uniform(SQUARE, 2), "shape (..., n, 2, d)"),
    ("order", lambda: Measure.uniform([SQUARE], 0), "integer of at least 1"),
    ("order", lambda: Measure.uniform([SQUARE], 2.5), "integer of at least 1"),
    ("f", lambda: point().expectation(lambda x: 3.0), "map points"),
    ("bounds", lambda: cells(bounds=torch.tensor(LINE).half()), "half precision"),
    ("bounds", lambda: cells(bounds=torch.tensor(LINE).bfloat16()), "half precision"),
    ("cells", lambda: cells().measure([[0.0, 1.0]]), "shape (..., 2, 1)"),
    ("cells", lambda: cells().measure("all"), "numbers"),
    ("x", lambda: contexts.Space(LINE, LINE).join("here", [[0.0]]), "numbers"),
    ("c", lambda: contexts.Space(LINE, LINE).join([[0.0]], [[0.0, 1.0]]), "shape (..., 1)"),
    # kernels
    ("lengthscale", lambda: rbf_kernel(0.0), "positive"),
    ("lengthscale", lambda: rbf_kernel([0.1, NAN]), "positive"),
    ("variance", lambda: rbf_kernel(0.1, -1.0), "positive"),
    ("variance", lambda: rbf_kernel(0.1, torch.ones(1)), "number"),
    ("nu", lambda: matern_kernel(0.1, nu=2), "0.5, 1.5 or 2.5"),
    ("nu", lambda: matern_kernel(0.1, nu=None), "0.5, 1.5 or 2.5"),
    ("kernels", lambda: StackedKernel([]), "at least one"),
    ("kernels", lambda: StackedKernel([None]), "GPyTorch kernels"),
    ("gram", lambda: TabulatedKernel(torch.eye(2) * NAN), "finite"),
    ("gram", lambda: TabulatedKernel([[1.0, 2.0], [3.0, 4.0]]), "symmetric"),
    ("lengthscale", lambda: GaussianMeasureKernel("a"), "number"),
    # the process and its posteriors
    ("kernel", lambda: GaussianProcess("rbf", 0.1), "GPyTorch kernel"),
    ("kernel", lambda: prior(2).condition(point(), ROWS[:5, 0]), "one lengthscale, or 1"),
    ("noise_std", lambda: prior(noise_std=0), "positive"),
    ("noise_std", lambda: prior(noise_std=NAN), "positive"),
    ("mean", lambda: GaussianProcess(rbf_kernel(0.1), 0.1, "zero"), "number"),
    ("mean", lambda: GaussianProcess(rbf_kernel(0.1), 0.1, NAN), "finite"),
    ("y", lambda: condition(torch.ones(4)), "shape (..., 5)"),
    ("y", lambda: condition([1.0] * 4), "shape (..., 5)"),
    ("measure", lambda: prior().condition(GRID, torch.ones(5)), "Measure"),
    ("noise_std", lambda: condition(torch.ones(5), noise_std=-1.0), "positive"),
    ("noise_std", lambda: condition(torch.ones(5), noise_std=torch.ones(3)), "broadcast"),
    ("replicates", lambda: prior().posterior(-1), "integer of at least 1"),
    ("replicates", lambda: prior().posterior(1.5), "integer of at least 1"),
    ("index", lambda: prior().posterior(2).select(2), "leading dimension"),
    ("index", lambda: prior().posterior().select(0), "leading dimension"),
    ("n", lambda: prior().posterior().sample(point(), -1), "integer of at least 0"),
    # distributions
    ("std", lambda: Normal(0.5, -1), "positive"),
    ("std", lambda: Normal(0.5, "wide"), "number"),
    ("mean", lambda: Normal(None, 1), "number"),
    ("mean", lambda: Normal(True, 1), "number"),
    ("low", lambda: Uniform(1.0, 0.0), "below high"),
    ("high", lambda: Uniform(0.0, INF), "finite"),
    ("scale", lambda: TruncatedNormal(0.5, 0.0), "positive"),
    ("location", lambda: TruncatedNormal(NAN, 1.0), "finite"),
    ("bounds", lambda: ContextDistribution((Uniform(),), torch.tensor([[1.0], [0.0]])), "lower bound"),
    ("marginals", lambda: ContextDistribution((), torch.tensor(LINE)), "one a coordinate"),
    ("samples", lambda: contexts.GaussianKDE(torch.zeros(0, 1)), "n >= 1"),
    ("samples", lambda: contexts.GaussianKDE(torch.tensor([[NAN]])), "finite"),
    ("bandwidth", lambda: contexts.GaussianKDE(torch.ones(2, 1), torch.tensor([-1.0])), "nonnegative"),
    ("samples", lambda: contexts.GaussianKDE(torch.ones(2, 1)).density(torch.zeros(2, 1)), "differ"),
    ("radius", lambda: contexts.tv_worst_case(torch.ones(3), torch.tensor(0.0), -0.1), "nonnegative"),
    # partition
    ("bounds", lambda: PartitionTree([[1.0], [0.0]]), "lower bound"),
    ("bounds", lambda: PartitionTree(None), "numbers|shape"),
    ("branching", lambda: PartitionTree(LINE, 1), "integer of at least 2"),
    ("branching", lambda: PartitionTree(LINE, 2.0), "integer of at least 2"),
    ("depth", lambda: PartitionTree(LINE).complete(-1), "integer of at least 0"),
    ("count", lambda: subcell_centers(torch.tensor([LINE]), 0), "integer of at least 1"),
    # confidence, information, kernels
    ("failure", lambda: union_bound_sqrt_beta(3, 1, 1.0), "in (0, 1)"),
    ("failure", lambda: union_bound_sqrt_beta(3, 1, "rare"), "number"),
    ("count", lambda: union_bound_sqrt_beta(2.5, 1, 0.1), "integer of at least 1"),
    ("t", lambda: union_bound_sqrt_beta(3, 0, 0.1), "at least 1"),
    ("norm", lambda: rkhs_sqrt_beta(-1.0, 1.0, 0.1), "nonnegative"),
    ("information_gain", lambda: rkhs_sqrt_beta(1.0, "much", 0.1), "numbers?"),
    ("candidates", lambda: noise_threshold(1, 0.1, 0), "integer of at least 1"),
    ("n", lambda: information.greedy_information_gain(rbf_kernel(0.1), GRID, 0.1, -1), "integer of at least 0"),
    ("candidates", lambda: information.greedy_information_gain(rbf_kernel(0.1), GRID[:0], 0.1, 1), "at least one"),
    ("candidates", lambda: information.greedy_information_gain(rbf_kernel(0.1), "all", 0.1, 1), "numbers"),
    ("noise_std", lambda: information.information_gain(rbf_kernel(0.1), point(), -0.1), "positive"),
    ("kernel", lambda: default_kernel("linear", 2), "'matern', 'rbf'"),
    ("groups", lambda: default_kernel("rbf", 3, [[0], [1]]), "each of the 3 coordinates once"),
    # replicates
    ("seeds", lambda: ReplicateGenerators([0, -1]), "integer of at least 0"),
    ("seeds", lambda: ReplicateGenerators([True]), "integer of at least 0"),
]
SETTINGS = [
    # spaces
    ("bounds", lambda: cells(bounds=[[1.0], [0.0]]), "lower bound"),
    ("bounds", lambda: cells(bounds=[[0.0, 1.0], [1.0]]), "numbers"),
    ("branching", lambda: cells(branching=2.0), "integer of at least 2"),
    ("points_per_cell", lambda: cells(points_per_cell=0), "integer of at least 1"),
    ("quadrature_order", lambda: cells(quadrature_order=True), "integer of at least 1"),
    ("feedback", lambda: cells(feedback="none"), "'points' or 'continuous'"),
    ("split", lambda: cells(split="half"), "function"),
    ("decisions", lambda: boxes(decisions=[0.0, 1.0]), "shape (2, d)"),
    ("contexts", lambda: boxes(contexts=[[0.0], [INF]]), "finite"),
    ("contexts", lambda: boxes(contexts="all"), "numbers"),
    ("bounds", lambda: variables(bounds=[[0.0, 0.0], [0.0, 1.0]]), "lower bound"),
    ("control_sets", lambda: variables(control_sets=[]), "one or more"),
    ("control_sets", lambda: variables(control_sets=np.zeros((0, 1))), "one or more"),
    ("control_sets", lambda: variables(control_sets=[[]]), "nonempty"),
    ("control_sets", lambda: variables(control_sets=[[0], [0]]), "different"),
    ("free", lambda: variables(free=ROWS[:, :1]), "shape (n, 2)"),
    ("free", lambda: variables(free=ROWS[:0]), "n >= 1"),
    ("budget", lambda: variables(budget=0), "positive"),
    ("budget", lambda: variables(budget="all"), "number"),
    ("floor", lambda: variables(floor=NAN), "finite"),
    ("candidates", lambda: doubted(candidates=[]), "list of kernels"),
    ("candidates", lambda: doubted(candidates=["rbf"]), "GPyTorch kernels"),
    ("kernel", lambda: doubted(candidates=[rbf_kernel([0.1, 0.2]) + rbf_kernel(0.3)]), "one lengthscale, or 1, got 2"),
    (
        "kernel",
        lambda: doubted(candidates=hyperparameters.Candidates(("a",), (rbf_kernel([0.1, 0.2]),))),
        "one lengthscale, or 1, got 2",
    ),
    (
        "means",
        lambda: hegpucb(doubted(candidates=hyperparameters.Candidates(("a",), (rbf_kernel(0.1),), (lambda x: x,)))),
        "map points (..., d) to values (...)",
    ),
    ("points", lambda: doubted(points=[0.0, 1.0]), "shape (n, d)"),
    ("points", lambda: doubted(points=GRID[:0]), "n >= 1"),
    ("epsilon", lambda: doubted(epsilon=-0.1), "nonnegative"),
    ("epsilon", lambda: doubted(epsilon="near"), "number"),
    ("epsilon", lambda: doubted(points=None, bounds=LINE, epsilon=0.1), "0 in a box"),
    ("noise_std", lambda: doubted(noise_std=-1), "positive"),
    ("noise_std", lambda: doubted(noise_std=None), "number"),
    ("names", lambda: hyperparameters.Candidates(("a", "a"), (rbf_kernel(0.1),) * 2), "different labels"),
    ("kernels", lambda: hyperparameters.Candidates(("a", "b"), (rbf_kernel(0.1),)), "one entry a candidate"),
    ("actions", lambda: actions(actions=[]), "n >= 1"),
    ("actions", lambda: actions(actions=GRID * NAN), "finite"),
    ("samples", lambda: actions(samples=(ROWS,)), "pair"),
    ("samples", lambda: actions(samples=(ROWS, ROWS)), "actions of 1"),
    ("samples", lambda: actions(samples=(ROWS[:3], GRID), conditional=None), "one input an action"),
    ("conditional", lambda: actions(conditional=None), "how actions choose inputs"),
    ("conditional", lambda: actions(conditional="known"), "method"),
    ("points", lambda: actions(points="all"), "numbers"),
    ("bounds", lambda: actions(bounds=SQUARE), "shape (2, 1)"),
    ("cost", lambda: actions(cost=0.0), "positive"),
    ("cost", lambda: actions(cost=[1.0, 2.0]), "one an action"),
    ("noise_std", lambda: actions(noise_std=-0.1), "positive"),
    ("std", lambda: indirect.ClippedGaussian(lambda a: a, -0.1), "nonnegative"),
    ("std", lambda: indirect.ClippedGaussian(lambda a: a, NAN), "nonnegative"),
    ("center", lambda: indirect.ClippedGaussian(0.5, 0.1), "function"),
    ("regularization", lambda: indirect.ConditionalMeanEmbedding(GRID, GRID, regularization=-1.0), "positive"),
    ("levels", lambda: indirect.Nodes.complete(torch.tensor(SQUARE), -1), "integer of at least 0"),
    ("branching", lambda: indirect.Nodes.complete(torch.tensor(SQUARE), 1, 2), "give cubes"),
    ("measure", lambda: condition(torch.zeros(5)).mean(GRID.numpy()), "Measure of points of 1 coordinates"),
    ("measure", lambda: condition(torch.zeros(5)).mean(Measure.dirac(ROWS)), "Measure of points of 1 coordinates"),
    # a policy built for another space
    ("space", lambda: gpoo(boxes()), "aggregated"),
    ("space", lambda: sbokde(cells()), "contexts"),
    ("space", lambda: ucbpsq(boxes()), "subsets"),
    ("space", lambda: hegpucb(boxes()), "hyperparameters"),
    ("space", lambda: cmes(boxes()), "indirect"),
    ("space", lambda: contexts.SBOKDE(None), "contexts"),
    # what all policies share
    *(
        ("seed", functools.partial(make, seed=seed), "integer of at least 0")
        for make in (gpoo, sbokde, ucbpsq, hegpucb, cmes)
        for seed in (-1, 0.5)
    ),
    *(
        ("sqrt_beta", functools.partial(make, sqrt_beta=wrong), "number or a function|nonnegative")
        for make in (gpoo, sbokde, ucbpsq, hegpucb)
        for wrong in (-1.0, "two")
    ),
    ("initial", lambda: sbokde(initial=1), "integer of at least 2"),
    ("initial", lambda: cmes(initial=-1), "integer of at least 0"),
    ("initial", lambda: hegpucb(initial=2.5), "integer of at least 0"),
    ("record", lambda: sbokde(record=[[0.1, 0.2]]), "coordinates"),
    ("prior", lambda: gpoo(prior=rbf_kernel(0.1)), "GaussianProcess"),
    ("prior", lambda: sbokde(prior="flat"), "GaussianProcess"),
    ("prior", lambda: ucbpsq(prior=rbf_kernel(0.1)), "GaussianProcess"),
    ("prior", lambda: cmes(prior=rbf_kernel(0.1)), "GaussianProcess"),
    ("kernel", lambda: gpoo(prior=None, kernel="cubic"), "'matern', 'rbf'"),
    ("kernel", lambda: sbokde(prior=None, kernel=None), "'matern', 'rbf'"),
    ("kernel", lambda: cmes(prior=None, kernel="cubic"), "'matern', 'rbf'"),
    ("refit", lambda: sbokde(refit=0.5), "at least 1"),
    ("seeds", lambda: gpoo().start([-1]), "integer of at least 0"),
    ("seeds", lambda: gpoo().start(2), "one or more"),
    ("recommend", lambda: gpoo().recommend(), "follow an observation"),
    # one by one
    ("delta", lambda: gpoo(delta=lambda h: h + 1.0), "decreasing"),
    ("delta", lambda: gpoo(delta=-0.5), "positive"),
    ("failure", lambda: gpoo(failure=1.0), "in (0, 1)"),
    ("budget", lambda: aggregated.StoOO(cells(), budget=0), "integer of at least 1"),
    ("span", lambda: aggregated.StoOO(cells(), span=-1.0), "positive"),
    ("delta", lambda: aggregated.StoOO(cells(), delta=lambda h: 1.0 - 0.4 * h), "positive and decreasing"),
    ("cost", lambda: ucbpsq().tell(ucbpsq().ask(), 1.0), "tell takes query, y, cost"),
    ("rho", lambda: aggregated.GPTree(cells(), rho=1.0), "in (0, 1)"),
    ("alpha", lambda: aggregated.GPTree(cells(), alpha=2.0), "in (0, 1]"),
    ("u", lambda: aggregated.GPTree(cells(), u=-100.0), "positive"),
    ("samples", lambda: sbokde(samples=0), "integer of at least 1"),
    ("starts", lambda: sbokde(starts=9), "from 1 to 4"),
    ("raw", lambda: sbokde(raw="many"), "integer of at least 1"),
    ("radius", lambda: sbokde(kind=contexts.DRBOKDE, radius=-0.1), "nonnegative"),
    ("cover", lambda: sbokde(kind=contexts.DRBOKDE, cover=0), "integer of at least 1"),
    ("gamma", lambda: sbokde(kind=contexts.DRBOMMD, gamma=0.0), "in (0, 1)"),
    ("size", lambda: sbokde(kind=contexts.DRBOMMD, size=2.5), "integer of at least 1"),
    ("contexts", lambda: ucbpsq(contexts=0), "integer of at least 1"),
    ("growth", lambda: ucbpsq(growth=1.0), "above 1"),
    ("features", lambda: ucbpsq(kind=subsets.TSPSQ, features=0), "integer of at least 1"),
    ("cost_means", lambda: ucbpsq(kind=subsets.UCBCVS, cost_means=[1.0, 2.0]), "shape (3,)"),
    ("cost_means", lambda: ucbpsq(kind=subsets.UCBCVS, cost_means=[1.0, -1.0, 1.0]), "nonnegative"),
    ("epsilon", lambda: ucbpsq(kind=subsets.UCBCVS, cost_means=[1, 2, 3], epsilon=-1.0), "nonnegative"),
    ("plays_per_group", lambda: ucbpsq(kind=subsets.GroupETC, plays_per_group=-1), "integer of at least 0"),
    ("alpha", lambda: ucbpsq(kind=subsets.CheapestGoodSubset, alpha=1.0), "in [0, 1)"),
    ("alpha", lambda: ucbpsq(kind=subsets.CheapestGoodSubset, alpha="some"), "number or a function"),
    ("rounds", lambda: ucbpsq(kind=subsets.CheapestGoodSubset, rounds=0), "integer of at least 1"),
    ("exploration_budget", lambda: ucbpsq(kind=subsets.CheapestGoodSubset, exploration_budget=0), "positive"),
    ("cost_spread", lambda: ucbpsq(kind=subsets.CheapestGoodSubset, cost_spread=-1.0), "positive"),
    ("failure", lambda: hegpucb(failure=0.0), "in (0, 1)"),
    ("likelihood", lambda: hyperparameters.ExpectedUCB(doubted(), likelihood="none"), "'exact' or 'tempered'"),
    ("candidate", lambda: hyperparameters.OracleGPUCB(doubted(), candidate=2), "in [0, 2)"),
    ("candidate", lambda: hyperparameters.OracleGPUCB(doubted(), candidate=0.5), "in [0, 2)"),
    ("lengthscales", lambda: hyperparameters.AGPUCB(doubted(), lengthscales=[1.0]), "shape (2,)"),
    ("lengthscales", lambda: hyperparameters.AGPUCB(doubted(), lengthscales=[1.0, 0.0]), "positive"),
    ("g", lambda: hyperparameters.AGPUCB(doubted(), g="fast"), "number or a function"),
    ("samples", lambda: cmes(samples=0), "integer of at least 1"),
    ("sampling", lambda: cmes(sampling="all"), "'gumbel' or 'thompson'"),
    ("initial", lambda: cmes(initial=-1), "integer of at least 0"),
    ("kernel", lambda: indirect.CMES(actions(), kernel="cubic"), "'matern', 'rbf'"),
    ("samples", lambda: mes(samples=0.5), "integer of at least 1"),
    ("sqrt_beta", lambda: indirect.UCB(actions(), prior=prior(), sqrt_beta=-1.0), "nonnegative"),
    ("tau", lambda: indirect.ScheduledUCB(actions(), prior=prior(), tau=-1.0), "nonnegative"),
    ("nodes", lambda: indirect.CMETS(actions(), nodes=None), "Nodes"),
]
TELLS = [
    *(
        (setting, "y", {}, y, expected)
        for setting in TOLD
        for y, expected in (
            (NAN, "finite"),
            ("high", "numbers"),
            (None, "numbers|finite"),
            ([1.0, 2.0], "as many rows"),
        )
    ),
    *(
        (setting, "query", {}, query, expected)
        for setting, query, expected in (
            ("aggregated", [[0.5], [0.2]], "lower corner first"),
            ("aggregated", [[0.0], [2.0]], "box"),
            ("aggregated", [["a"], ["b"]], "numbers"),
            ("contexts", [2.0], "box"),
            ("contexts", [NAN], "finite"),
            ("subsets", [0, 0.2], "shape (n, 3)"),
            ("subsets", [1, 0.5, 1e6], "where it was set, must lie in the box"),
            ("subsets", [5, 0.5, 0.5], "index of a control set"),
            ("subsets", [0.5, 0.5, 0.5], "index of a control set"),
            ("hyperparameters", [0.1, 0.2], "as many rows|dimension|rows"),
            ("hyperparameters", [INF], "finite"),
            ("hyperparameters", [-1e6], "in the order and units of"),
            ("indirect", [[0.1, 0.2, 0.3]], "shape|rows"),
            ("indirect", [NAN], "finite"),
            ("indirect", [1e6], "in the order and units of"),
        )
    ),
    ("contexts", "context", {"context": [0.1, 0.2]}, None, "as many rows"),
    ("contexts", "context", {"context": [NAN]}, None, "finite"),
    ("contexts", "context", {"context": LEFT_OUT}, None, "tell takes"),
    ("contexts", "wind", {"wind": 1.0}, None, "tell takes"),
    ("subsets", "y", {}, -1.0, "floor"),
    ("subsets", "cost", {"cost": -1.0}, None, "nonnegative"),
    ("subsets", "cost", {"cost": INF}, None, "nonnegative"),
    ("subsets", "cost", {"cost": [1.0, 2.0]}, None, "as many rows"),
]


def refused(argument, call, expected):
    """The message, which names the argument and what was expected."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is looked at below
        call()
    message = str(caught.value)
    assert re.search(rf"\b{re.escape(argument)}\b", message), message
    options = expected.split("|") if "(" not in expected and "[" not in expected else [expected]
    assert any(re.search(option, message) if "?" in option else option in message for option in options), message
    assert any(part in message for part in (", got ", " is missing", " is unknown")), message


@pytest.mark.parametrize(
    ("argument", "call", "expected"),
    [bad(i, *row) for i, row in enumerate([*FOUNDATION, *SETTINGS])],
)
def test_every_bad_argument_is_refused_by_name(argument, call, expected):
    refused(argument, call, expected)


@pytest.mark.parametrize(
    ("setting", "argument", "seen", "value", "expected"),
    [pytest.param(*row, id=f"{i}-{row[0]}-{row[1]}") for i, row in enumerate(TELLS)],
)
def test_a_refused_row_leaves_the_policy_as_it_was(setting, argument, seen, value, expected):
    make, (query, y), more = TOLD[setting]
    policy, calm = make(), make()
    for one in (policy, calm):
        one.tell(query, y, **more)
        one.ask()
    query = value if argument == "query" else query
    y = value if argument == "y" else y
    given = {name: part for name, part in {**more, **seen}.items() if part is not LEFT_OUT}
    refused(argument, lambda: policy.tell(query, y, **given), expected)
    assert policy.count == calm.count == 1
    known = policy.observations()
    for name, part in calm.observations().items():
        assert np.array_equal(known[name], part)
    asked, calmly = policy.ask(), calm.ask()
    assert torch.equal(asked.values, calmly.values) if isinstance(asked, tuple) else torch.equal(asked, calmly)
    dim = policy.space.dim if setting in ("subsets", "contexts") else 1
    places = Measure.dirac(ROWS[:3, :dim])
    for one, other in zip(
        policy.posterior.mean_and_variance(places), calm.posterior.mean_and_variance(places), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
