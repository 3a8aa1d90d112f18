"""Every public policy of every setting with a problem to run on, for tests that hold of all of them.

A run is made anew at each call, on the device that is asked for, with a prior that is given or without one.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from book.hyperparameters.adaptive import AGPUCB
from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.problems import LENGTHSCALES, lengthscale_candidates, slope_and_peak
from book.hyperparameters.slips import printed_sqrt_beta
from book.indirect.problem import IndirectProblem
from book.indirect.problems import TAU, branin, known_prior, transformation, unit_grid
from book.subsets import problems as subsets_problems
from book.subsets.prior import fit_prior
from cbo_lib import hyperparameters, indirect, subsets
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel

F64 = torch.float64


@dataclasses.dataclass(frozen=True)
class Run:
    """A problem, a policy on it, and how long one run of the paper lasts."""

    problem: Any
    policy: Any
    steps: int
    stop: Callable | None = None


_CANDIDATES = {
    "HE-GP-UCB": hyperparameters.HEGPUCB,
    "HE-GP-UCB, box": hyperparameters.HEGPUCB,
    "HE-StableOpt": hyperparameters.HEStableOpt,
    "MLE": hyperparameters.MaximumLikelihood,
    "MLE, box": hyperparameters.MaximumLikelihood,
    "ExpectedUCB": hyperparameters.AveragedUCB,
    "ExpectedUCB, box": hyperparameters.AveragedUCB,
    "A-GP-UCB": AGPUCB,
    "GP-UCB": functools.partial(hyperparameters.OracleGPUCB, candidate=0),
    "StableOpt": functools.partial(hyperparameters.OracleStableOpt, candidate=0),
}


def _hyperparameters(name, given, device):
    policy, _, box = name.partition(", ")
    points = torch.linspace(0, 1, 500, dtype=F64, device=device)[:, None]
    kernels = tuple(kernel.to(device) for kernel in lengthscale_candidates(LENGTHSCALES).kernels)
    domain = {"bounds": points[[0, -1]]} if box else {"points": points}
    epsilon = 0.02 if "Stable" in policy else 0.0
    options = {}
    if given:
        candidates = hyperparameters.Candidates(tuple(map(str, LENGTHSCALES)), kernels)
        space = hyperparameters.Space(candidates, **domain, noise_std=0.1, epsilon=epsilon)
        finite = dataclasses.replace(space, bounds=None, points=points)
        options = {"sqrt_beta": printed_sqrt_beta(finite, 2.0, 50, 3), "initial": 3}
    else:
        space = hyperparameters.Space(kernels, **domain, epsilon=epsilon)
    return Run(UnknownPriorProblem(space, slope_and_peak, 0.1), _CANDIDATES[name](space, **options), 53)


def _indirect(name, given, device):
    box, grid = torch.tensor([[0.0] * 2, [1.0] * 2], dtype=F64, device=device), unit_grid(10).to(device)
    conditional = indirect.ClippedGaussian(transformation("linear"), TAU, box)
    known = {"points": grid, "conditional": conditional}
    if name == "CMETS":
        nodes = indirect.Nodes.complete(box, 4)
        known |= {"cost": nodes.cost(), "noise_std": 0.5 / nodes.cost()}
        space, options = indirect.Space(nodes.actions, **known), {"budget": 60.0}
    else:
        space, options = indirect.Space(grid, noise_std=0.1 if given else None, **known), {"initial": 5}
    if given:
        options["prior"] = known_prior(space, 0.2)
    if name.endswith("on g") and given:
        options["action_prior"] = GaussianProcess(rbf_kernel(0.2).to(device), 0.1)
    make = {
        "CMES": indirect.CMES,
        "CMES, paths": functools.partial(indirect.CMES, sampling="thompson", samples=2),
        "CMETS": functools.partial(indirect.CMETS, nodes=nodes) if name == "CMETS" else None,
        "MES on g": functools.partial(indirect.ActionPolicy, acquisition="mes"),
        "UCB on g": functools.partial(indirect.ActionPolicy, acquisition="ucb"),
        "EI on g": functools.partial(indirect.ActionPolicy, acquisition="ei"),
    }[name]
    return Run(IndirectProblem(space, branin, noise_std=None if name == "CMETS" else 0.1), make(space, **options), 100)


@functools.cache
def _pilot():
    """Fitted on the CPU, whatever the device of the run."""
    return fit_prior(subsets_problems.plant())


def _subsets(name, given, device):
    problem = subsets_problems.plant("moderate", like=torch.zeros((), dtype=F64, device=device))
    space, known = problem.space, {}
    if given:
        prior = _pilot()
        known = {"prior": GaussianProcess(copy.deepcopy(prior.kernel).to(device), prior.noise_std, prior.mean)}
    make = {
        "proposed": functools.partial(subsets.CheapestGoodSubset, cost_spread=1.0),
        "TS-PSQ": subsets.TSPSQ,
        "UCB-PSQ": subsets.UCBPSQ,
        "UCB-CVS": functools.partial(subsets.UCBCVS, cost_means=problem.cost_means),
        "ETC-50": subsets.GroupETC,
    }[name]
    return Run(problem, make(space, **known), 1000, lambda record: record["spent"] > space.budget)


MAKERS_OF = {
    "hyperparameters": (_hyperparameters, tuple(_CANDIDATES)),
    "indirect": (_indirect, ("CMES", "CMES, paths", "CMETS", "MES on g", "UCB on g", "EI on g")),
    "subsets": (_subsets, ("proposed", "TS-PSQ", "UCB-PSQ", "UCB-CVS", "ETC-50")),
}

#: Setting, policy, and whether its prior is given.


def make(setting, name, given=True, device="cpu"):
    """A run, made anew."""
    return MAKERS_OF[setting][0](name, given, device)
