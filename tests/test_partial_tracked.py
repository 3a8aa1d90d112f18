import pytest
import torch

from cbo_lib.former.partial import PartialPosterior
from cbo_lib.former.partial_tracked import TrackedPartial
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.products import batched_kernel, close, given_points, mask, uniform
from tests.toys import normal, random_measure

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


def test_tracking_observations_shared_by_a_batch(rng):
    """Replicates that saw the same points, given once, and other values."""
    process = GaussianProcess(rbf_kernel(0.5), 0.1)
    posterior, x, contexts = process.posterior(3), uniform(rng, 5, 3), uniform(rng, 7, 3)
    tracked = TrackedPartial(posterior, x, contexts, mask(1, 1, 0))
    for _ in range(4):
        posterior = posterior.extend(Measure.dirac(uniform(rng, 1, 3)), normal(rng, 3, 1))
        tracked.update(posterior)
    close((tracked.mean, tracked.variance), PartialPosterior(posterior, contexts, mask(1, 1, 0)).mean_and_variance(x))


def test_the_buffers_grow_again_and_again(rng):
    posterior, x, contexts = GaussianProcess(rbf_kernel(0.3), 0.1).posterior(), uniform(rng, 3, 3), uniform(rng, 4, 3)
    tracked = TrackedPartial(posterior, x, contexts, mask(1, 1, 0))
    for _ in range(140):
        posterior = posterior.extend(Measure.dirac(uniform(rng, 1, 3)), normal(rng, 1))
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


def test_tracking_survives_observing_one_point_again_and_again(rng):
    """With little noise the variance there goes to zero and must not pass it."""
    posterior = GaussianProcess(rbf_kernel(0.5), 1e-4).posterior()
    point = uniform(rng, 1, 3)
    tracked = TrackedPartial(posterior, point, torch.cat([point, uniform(rng, 3, 3)]), mask(1, 1, 0))
    for step in range(40):
        posterior = posterior.extend(Measure.dirac(point), normal(rng, 1))
        tracked.update(posterior)
        assert bool((tracked.variance >= 0).all())
        assert float(tracked.variance[0, 0]) == pytest.approx(1e-8 / (step + 1), rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("added", [0, 2, 3])
def test_an_update_by_other_than_one_observation_is_refused(rng, added):
    posterior, _, _ = given_points(rng, 5)
    tracked = TrackedPartial(posterior, uniform(rng, 4, 3), uniform(rng, 6, 3), mask(1, 1, 0))
    before = tracked.mean.clone(), tracked.variance.clone()
    later = posterior.extend(Measure.dirac(uniform(rng, added, 3)), normal(rng, added)) if added else posterior
    with pytest.raises(ValueError, match=f"posterior must hold 6 observations, one more than before, got {5 + added}"):
        tracked.update(later)
    assert torch.equal(before[0], tracked.mean) and torch.equal(before[1], tracked.variance)


def test_an_update_by_another_batch_or_an_average_is_refused(rng):
    process = GaussianProcess(rbf_kernel(0.5), 0.1)
    tracked = TrackedPartial(process.posterior(), uniform(rng, 4, 3), uniform(rng, 6, 3), mask(1, 1, 0))
    with pytest.raises(ValueError, match=r"posterior must have the batch \(\) as before, got \(2,\)"):
        tracked.update(process.condition(Measure.dirac(uniform(rng, 2, 1, 3)), normal(rng, 2, 1)))
    for measure in (random_measure(rng, 1, p=2, d=3), random_measure(rng, 1, p=1, d=3)):
        with pytest.raises(ValueError, match="the posterior must be given values at points, got values of averages"):
            tracked.update(process.condition(measure, normal(rng, 1)))
    assert torch.equal(tracked.mean, torch.zeros(4, 6, dtype=F64))


@pytest.mark.filterwarnings("ignore:.*drowns in rounding")
def test_a_jitter_that_grows_later_counts_for_the_earlier_observations_too(rng):
    process, x, contexts = GaussianProcess(rbf_kernel(0.8), 1e-9), uniform(rng, 5, 3), uniform(rng, 4, 3)
    seen, controlled = uniform(rng, 3, 3), mask(1, 1, 0)
    posterior = process.condition(Measure.dirac(seen), seen.sin().sum(-1))
    tracked = TrackedPartial(posterior, x, contexts, controlled)
    assert not float(posterior.data.jitter)
    for shift, gap in (
        (1e-6, 1.0),
        (1e-8, 0.0),
    ):  # values that can't be told from a steep slope, until there is a jitter
        posterior = posterior.extend(Measure.dirac(seen[:1] + shift), seen[:1].sin().sum(-1) + gap)
        tracked.update(posterior)
        wanted = PartialPosterior(posterior, contexts, controlled).mean_and_variance(x)
        torch.testing.assert_close(tracked.mean, wanted[0], rtol=1e-3, atol=0)
    assert float(posterior.data.jitter)
