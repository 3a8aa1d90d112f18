import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.oracles import condition, gram, rbf, sets
from tests.toys import normal, random_measure

F64 = torch.float64


def kernel_of(u):
    if not u:
        return rbf_kernel(0.4, 1.3)
    kernel = ScaleKernel(RBFKernel(batch_shape=u), batch_shape=u).to(F64)
    kernel.base_kernel.lengthscale = torch.linspace(0.2, 1.0, u.numel(), dtype=F64).reshape(*u, 1, 1)
    kernel.outputscale = torch.full(u, 1.3, dtype=F64)
    return kernel.requires_grad_(False)


class Anew:
    """The same observations, conditioned on from the beginning each time that somebody asks."""

    def __init__(self, start, batch):
        self.start, self.batch, self.index, self.y, self.noise = start, batch, [], [], []

    def observe(self, index, y, noise):
        for log, entry in ((self.index, index), (self.y, y), (self.noise, noise)):
            log.append(entry)

    def check(self, tracked):
        posterior, queries = self.start, tracked.queries
        if self.index:
            index, y, noise = (torch.stack(log, -1) for log in (self.index, self.y, self.noise))
            posterior = posterior.extend(Measure(queries.points[index], queries.weights[index]), y, noise)
        mean, variance = posterior.mean(queries), posterior.variance(queries)
        assert tracked.mean.shape == mean.shape == (*self.batch, tracked.n)
        torch.testing.assert_close(tracked.mean, mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(tracked.variance, variance, rtol=0, atol=1e-9)
        assert tracked.count == len(self.index)


STEPS = st.lists(st.one_of(st.just("observe"), st.integers(0, 3)), min_size=1, max_size=25)


@given(
    steps=STEPS,
    first=st.integers(1, 4),
    initial=st.sampled_from([0, 3]),
    replicates=st.sampled_from([None, 1, 3]),
    u=st.sampled_from([(), (3,), (1,)]),
    seed=st.integers(0, 2**31),
)
def test_tracking_equals_conditioning_anew(steps, first, initial, replicates, u, seed):
    rng = torch.Generator().manual_seed(seed)
    front = torch.Size([] if replicates is None else [replicates, *[1] * len(u)])
    batch = torch.broadcast_shapes(front, u)
    process = GaussianProcess(kernel_of(torch.Size(u)), 0.2, lambda x: x[..., 0] - 0.3)
    start = process.posterior()
    if initial:
        start = start.extend(random_measure(rng, *front, initial), normal(rng, *front, initial))
    elif replicates is not None and not u:
        start = process.posterior(replicates)
    elif replicates is not None:
        start = start.extend(random_measure(rng, 1), normal(rng, *front, 1))
    tracked, anew = start.track(random_measure(rng, first)), Anew(start, batch)
    anew.check(tracked)
    for step in steps:
        if step == "observe":
            index = torch.randint(tracked.n, batch, generator=rng)
            y, noise = normal(rng, *batch), 0.05 + torch.rand(batch, generator=rng, dtype=F64)
            tracked.observe(index, y, noise)
            anew.observe(index, y, noise)
        else:
            n = tracked.n
            added = tracked.add(random_measure(rng, step, p=1 + step))
            assert added.tolist() == list(range(n, n + step)) and tracked.n == n + step
    anew.check(tracked)


def test_tracking_equals_the_textbook_formula(rng):
    queries = random_measure(rng, 5, p=3)
    tracked = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2, 0.5).posterior(2).track(queries)
    index, y = torch.tensor([[0, 4, 0, 2], [1, 1, 3, 3]]), normal(rng, 2, 4)
    for t in range(4):
        tracked.observe(index[:, t], y[:, t])
    for r in range(2):
        observed = [sets(queries)[i] for i in index[r].tolist()]
        mean, cov = condition(
            lambda x, z: rbf(x, z, 0.4, 1.3),
            observed,
            y[r].numpy(),
            0.2,
            sets(queries),
            lambda x: np.full(len(x), 0.5),
        )
        np.testing.assert_allclose(tracked.mean[r], mean, rtol=0, atol=1e-9)
        np.testing.assert_allclose(tracked.variance[r], np.diag(cov), rtol=0, atol=1e-9)


@pytest.mark.parametrize("initial", [0, 3])
@pytest.mark.parametrize("replicates", [None, 2])
@pytest.mark.parametrize("u", [(), (3,)])
def test_log_marginal_likelihood_is_the_density_of_all_observations(rng, initial, replicates, u):
    process, kernel = GaussianProcess(kernel_of(torch.Size(u)), 0.2, lambda x: x[..., 0] - 0.3), [0.2, 0.6, 1.0]
    first, values, queries = random_measure(rng, initial), normal(rng, initial), random_measure(rng, 5)
    start = process.posterior(replicates).extend(first, values)
    tracked, batch = start.track(queries), start.batch_shape
    index = torch.randint(5, (*batch, 10), generator=rng)
    y, noise = normal(rng, *batch, 10), 0.05 + torch.rand(*batch, 10, generator=rng, dtype=F64)
    for t in range(10):
        if t in (0, 1, 8):
            observed = Measure(queries.points[index[..., :t]], queries.weights[index[..., :t]])
            anew = start.extend(observed, y[..., :t], noise[..., :t]).log_marginal_likelihood
            assert tracked.log_marginal_likelihood.shape == anew.shape == batch
            torch.testing.assert_close(tracked.log_marginal_likelihood, anew, rtol=0, atol=1e-9)
        tracked.observe(index[..., t], y[..., t], noise[..., t])
        if t == 4:
            tracked.add(random_measure(rng, 2))
    for at in np.ndindex(*batch):
        observed = sets(first) + [sets(queries)[i] for i in index[at].tolist()]
        std = np.concatenate([np.full(initial, 0.2), noise[at]])
        scale = kernel[at[-1]] if u else 0.4
        dense = gram(lambda x, z, scale=scale: rbf(x, z, scale, 1.3), observed, observed) + np.diag(std**2)
        prior = [w @ (x[:, 0] - 0.3) for x, w in observed]
        expected = multivariate_normal(prior, dense).logpdf(torch.cat([values, y[at]]))
        assert float(tracked.log_marginal_likelihood[at]) == pytest.approx(expected, abs=1e-8)


def test_variance_never_turns_negative(rng):
    x = torch.linspace(0, 1, 30, dtype=F64).unsqueeze(-1)
    tracked = GaussianProcess(rbf_kernel(0.5), 1e-4).posterior(1).track(Measure.dirac(x))
    for i in range(30):
        tracked.observe(torch.tensor([i]), x[i])
    tracked.add(Measure.dirac(x + 0.01))
    assert float(tracked.variance.min()) >= 0
