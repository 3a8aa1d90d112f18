"""A small run of each setting, and a process that kills such runs; tests of checkpoints resume what it leaves."""

import os
import random
import signal
import sys
import warnings
from pathlib import Path

import torch

from cbo_lib.aggregated import GPOO
from cbo_lib.contexts import SBOKDE
from cbo_lib.former.simulate import simulate
from cbo_lib.hyperparameters import HEGPUCB
from cbo_lib.indirect import CMES
from cbo_lib.kernels import rbf_kernel
from cbo_lib.subsets import CheapestGoodSubset
from tests.aggregated.helpers import both, made
from tests.contexts.helpers import SMALL, hill
from tests.hyperparameters.helpers import setting
from tests.indirect.helpers import known, square
from tests.subsets.helpers import FEW, prior, solid

KILLS = 20
TINY = {**SMALL, "initial": 3, "raw": 8, "starts": 1, "iterations": 4, "refit_every": 9}


def gentle(h):
    return 0.8 * 2.0**-h


def aggregated():
    problem, _ = both("peaks")
    return problem, made(GPOO, problem, rbf_kernel(0.05, 0.1), delta=gentle), 8


def indirect():
    problem = square(cosine=True)
    return problem, CMES(problem.space, prior=known(problem)), 10


def contexts():
    problem = hill()
    return problem, SBOKDE(problem.space, samples=8, **TINY), 12


def subsets():
    problem = solid(cost_std=0.3)
    return problem, CheapestGoodSubset(problem.space, prior=prior(problem), effort=FEW, exploration_budget=1.6), 4


def hyperparameters():
    case = setting("lengthscale")
    return case.problem, HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta), 10


SETTINGS = {make.__name__: make for make in (aggregated, indirect, contexts, subsets, hyperparameters)}


def run(name, checkpoint=None):
    """The run of a setting, from the beginning or from what a log holds."""
    problem, policy, steps = SETTINGS[name]()
    return simulate(problem, policy, steps, [3, 0], checkpoint=checkpoint, progress=False)


def counted(name, checkpoint, last=None):
    """The calls of a run, of Python's and of C's functions; the process kills itself at the last one, if given."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    try:
        run(name, checkpoint)
    finally:
        sys.setprofile(None)
    return calls


def killed(folder):
    """Leave ``KILLS`` logs of each setting, each of a process that was killed at a random moment of its run.

    A moment is a call, not a time: a busy processor or disk would let every process wait at the same place.
    """
    torch.set_num_threads(1)
    moments = random.Random(1)
    for name in SETTINGS:
        run(name)  # once to be warm
        whole = counted(name, folder / f"{name}-whole")
        for i in range(KILLS):
            last = moments.randint(1, whole)
            process = os.fork()
            if process == 0:
                counted(name, folder / f"{name}-{i}", last)
                os.kill(os.getpid(), signal.SIGKILL)
            assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    killed(Path(sys.argv[1]))
