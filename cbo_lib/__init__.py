"""Bayesian optimization when you cannot choose, see or trust the query.

A query is a weighted set of points. One Gaussian process, conditioned on such sets, serves five settings.
"""

from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.kernels import matern_kernel, rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.models import AveragedModel
from cbo_lib.partition import PartitionTree
from cbo_lib.random import ReplicateGenerators
from cbo_lib.search import argmax_finite, maximize_box
from cbo_lib.simulate import History, simulate

__all__ = [
    "AveragedModel",
    "GaussianProcess",
    "History",
    "Measure",
    "PartitionTree",
    "Posterior",
    "ReplicateGenerators",
    "argmax_finite",
    "matern_kernel",
    "maximize_box",
    "rbf_kernel",
    "simulate",
]
