"""The same numbers on a GPU as on the CPU."""

import torch

from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure, covariance, variance
from cbo_lib.partition import PartitionTree, subcell_centers
from tests.accelerator import DEVICE, NEEDED, close
from tests.toys import random_measure

F64 = torch.float64

pytestmark = NEEDED


def gpu(measure):
    return Measure(measure.points.to(DEVICE), measure.weights.to(DEVICE))


def test_measures(rng):
    a, b = random_measure(rng, 3, 4), random_measure(rng, 5, p=2)
    kernel = rbf_kernel(0.4, 1.3)
    expected = (
        covariance(kernel, a, b),
        variance(kernel, a),
        Measure.cat([b, b[:2]]).expectation(lambda x: x.sum(-1)),
    )
    kernel.to(DEVICE)
    close(covariance(kernel, gpu(a), gpu(b)), expected[0])
    close(variance(kernel, gpu(a)), expected[1])
    close(Measure.cat([gpu(b), gpu(b)[:2]]).expectation(lambda x: x.sum(-1)), expected[2])


def test_posteriors(rng):
    observed, queries, y = (
        random_measure(rng, 3, 5),
        random_measure(rng, 4),
        torch.randn(3, 5, generator=rng, dtype=F64),
    )
    cpu = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2, 0.5).condition(observed, y)
    posterior = GaussianProcess(rbf_kernel(0.4, 1.3).to(DEVICE), 0.2, 0.5).posterior(3)
    for t in range(5):
        posterior = posterior.extend(gpu(observed[[t]]), y[:, [t]].to(DEVICE))
    close(posterior.mean(gpu(queries)), cpu.mean(queries))
    close(posterior.variance(gpu(queries)), cpu.variance(queries))
    close(posterior.covariance(gpu(queries), gpu(queries)), cpu.covariance(queries, queries))
    close(posterior.log_marginal_likelihood, cpu.log_marginal_likelihood)
    for make in (
        lambda: torch.Generator().manual_seed(1),
        lambda: [torch.Generator().manual_seed(s) for s in range(3)],
    ):
        close(posterior.sample(gpu(queries), 6, make()), cpu.sample(queries, 6, make()), 1e-6)
    x = torch.rand(7, 1, 1, 2, generator=rng, dtype=F64)
    expected = cpu.as_botorch().posterior(x).mean
    close(posterior.as_botorch().posterior(x.to(DEVICE)).mean, expected)
    close(posterior.select(1).mean(gpu(queries)), cpu.mean(queries)[1])


def test_partitions(rng):
    bounds = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=F64)
    cpu, tree = PartitionTree(bounds, 3), PartitionTree(bounds.to(DEVICE), 3)
    cpu.children(torch.tensor([0]))
    tree.children(torch.tensor([0], device=DEVICE))
    cpu.children(torch.tensor([3, 1]))
    tree.children(torch.tensor([3, 1], device=DEVICE))
    close(tree.boxes, cpu.boxes)
    for name in ("depth", "index", "parent", "order"):
        close(getattr(tree, name), getattr(cpu, name), 0)
    close(subcell_centers(tree.boxes, 6), subcell_centers(cpu.boxes, 6))
