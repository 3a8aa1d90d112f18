import pytest
import torch

from cbo_lib.former.partial import PartialPosterior
from cbo_lib.former.partial_tracked import TrackedPartial
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.products import batched_kernel, close, mask, uniform
from tests.toys import normal

F64 = torch.float64


@pytest.mark.parametrize("start", [0, 1, 5, 70])
@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize(
    "controlled", [mask(1, 1, 0), mask([1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0])], ids=["one", "groups"]
)
def test_tracking_equals_conditioning_anew_after_every_observation(rng, start, batch, controlled):
    """35 observations, so that the buffers grow from 32, or from more if more was there at first."""
    front = [] if batch is None else [batch]
    process = GaussianProcess(rbf_kernel(0.4, 1.3), 0.1, 0.7)
    posterior = process.posterior(batch)
    if start:
        posterior = posterior.extend(Measure.dirac(uniform(rng, *front, start, 3)), normal(rng, *front, start))
    x, contexts = uniform(rng, 6, 3), uniform(rng, 9, 3)
    tracked = TrackedPartial(posterior, x, contexts, controlled)
    shape = (*front, *controlled.shape[:-1], 6, 9)
    for _ in range(35):
        before = tracked.mean, tracked.mean.clone(), tracked.variance, tracked.variance.clone()
        wanted = PartialPosterior(posterior, contexts, controlled).mean_and_variance(x)
        assert tracked.mean.shape == tracked.variance.shape == shape
        close((tracked.mean, tracked.variance), wanted, 1e-9)
        posterior = posterior.extend(Measure.dirac(uniform(rng, *front, 1, 3)), normal(rng, *front, 1))
        tracked.update(posterior)
        assert torch.equal(before[0], before[1]) and torch.equal(before[2], before[3])  # a new tensor, not the old one


def test_tracking_with_kernels_of_their_own_and_noise_of_its_own(rng):
    make = batched_kernel(0.2 + uniform(rng, 3, 3), 0.5 + uniform(rng, 3), 2.5)
    process = GaussianProcess(make, 0.1, normal(rng, 3, 1))
    posterior, x, contexts = process.posterior(), uniform(rng, 3, 5, 3), uniform(rng, 3, 7, 3)
    tracked = TrackedPartial(posterior, x, contexts, mask(1, 1, 0))
    for step in range(12):
        noise = torch.tensor(0.05 * (step + 1), dtype=F64)
        posterior = posterior.extend(Measure.dirac(uniform(rng, 3, 1, 3)), normal(rng, 3, 1), noise)
        tracked.update(posterior)
        wanted = PartialPosterior(posterior, contexts, mask(1, 1, 0)).mean_and_variance(x)
        close((tracked.mean, tracked.variance), wanted)


def test_rounding_takes_no_variance_below_zero(rng):
    """Next to no noise and a wide kernel: every variance ends at rounding."""
    posterior = GaussianProcess(rbf_kernel(3.0), 1e-7).posterior()
    tracked = TrackedPartial(posterior, uniform(rng, 20, 2), uniform(rng, 20, 2), mask(1, 0))
    for _ in range(40):
        posterior = posterior.extend(Measure.dirac(uniform(rng, 1, 2)), normal(rng, 1))
        tracked.update(posterior)
    assert bool((tracked.variance >= 0).all()) and float(tracked.variance.max()) < 1e-10
