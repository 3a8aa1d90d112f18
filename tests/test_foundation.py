"""The fit, the searches and the loop."""

import math

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior

from cbo_lib.fit import default_kernel, fit_gaussian_process, in_octaves
from cbo_lib.measure import Measure
from cbo_lib.policy import Policy
from cbo_lib.search import argmax_finite, maximize_box, on_grid
from cbo_lib.simulate import simulate

F64 = torch.float64
BOX = torch.tensor([[-1.0, 10.0], [3.0, 30.0]], dtype=F64)


def wave(x):
    return torch.sin(2 * x[..., 0]) + 0.05 * x[..., 1]


def points(rng, replicates, n, p=1):
    x = BOX[0] + (BOX[1] - BOX[0]) * torch.rand(replicates, n, p, 2, generator=rng, dtype=F64)
    measure = Measure.average(x)
    return measure, measure.expectation(wave) + 0.1 * torch.randn(replicates, n, generator=rng, dtype=F64)


# The fit.


def test_a_fit_to_points_is_botorchs(rng):
    measure, y = points(rng, 2, 25)
    fitted = fit_gaussian_process(measure, y, BOX)
    for r in range(2):
        unit = (measure.points[r, :, 0] - BOX[0]) / (BOX[1] - BOX[0])
        model = SingleTaskGP(unit, y[r, :, None], covar_module=default_kernel("matern", 2).to(F64))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        found = fitted.kernel.base_kernel.kernel.lengthscale[r]
        octaves = (found / model.covar_module.lengthscale.detach()).log2().abs()
        assert float(octaves.max()) < 1 / 32  # a rounding step is 1/64
        noise = model.likelihood.noise.detach().sqrt() * model.outcome_transform.stdvs
        assert float((fitted.noise_std[r] / noise.flatten()).log2().abs()) < 1 / 32


def test_averages_of_single_points_are_points_and_units_do_not_matter(rng):
    measure, y = points(rng, 2, 15)
    doubled = Measure(measure.points.repeat(1, 1, 2, 1), measure.weights.repeat(1, 1, 2) / 2)
    new = Measure.dirac(torch.tensor([[0.5, 20.0], [2.0, 11.0]], dtype=F64))
    mean = fit_gaussian_process(measure, y, BOX).condition(measure, y).mean(new)
    again = fit_gaussian_process(doubled, y, BOX).condition(doubled, y).mean(new)
    torch.testing.assert_close(again, mean, rtol=1e-6, atol=1e-6)
    scale, shift = 1e6, -3e7
    far = fit_gaussian_process(measure, scale * y + shift, BOX).condition(measure, scale * y + shift).mean(new)
    torch.testing.assert_close((far - shift) / scale, mean, rtol=1e-5, atol=1e-5)


def test_a_fit_of_averages_predicts(rng):
    measure, y = points(rng, 3, 40, p=5)
    posterior = fit_gaussian_process(measure, y, BOX).condition(measure, y)
    new, _ = points(rng, 1, 50, p=5)
    off = posterior.mean(new[:]) - new.expectation(wave)
    assert float(off.square().mean().sqrt()) < 0.15


def test_kernels_of_the_user_and_known_noise_and_no_data(rng):
    measure, y = points(rng, 2, 12)
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=GammaPrior(3, 6)), outputscale_prior=GammaPrior(2, 0.5))
    known = fit_gaussian_process(measure, y, BOX, kernel, noise_std=torch.full_like(y, 0.1))
    assert known.noise_std.flatten().tolist() == pytest.approx([0.1, 0.1], rel=1e-6)
    nothing = fit_gaussian_process(Measure.dirac(torch.zeros(2, 0, 2, dtype=F64)), y[:, :0], BOX)
    assert nothing.kernel.batch_shape == (2,)
    product = fit_gaussian_process(measure, y, BOX, "rbf", groups=[[0], [1]])
    assert torch.isfinite(product.condition(measure, y).mean(measure)).all()
    with pytest.raises(ValueError, match="groups must hold each of the 2 coordinates once"):
        default_kernel("rbf", 2, [[0]])
    with pytest.raises(ValueError, match="kernel must be 'matern'"):
        fit_gaussian_process(measure, y, BOX, "cubic")
    period = PeriodicKernel(lengthscale_prior=GammaPrior(3, 6), period_length_prior=GammaPrior(3, 6), active_dims=(0,))
    assert fit_gaussian_process(measure, y, BOX, period).kernel.batch_shape == (2,)


def test_octaves_keep_what_they_are_given_to_half_a_step():
    value = torch.tensor([0.0, 1.0, -3.7, 1e-8, 2e9], dtype=F64)
    assert float(((in_octaves(value) - value).abs() / value.abs().clamp_min(1e-300)).max()) < 0.0055
    assert torch.equal(in_octaves(in_octaves(value)), in_octaves(value))


# The searches.


def test_a_search_finds_the_top_of_every_replicate(rng):
    tops = torch.tensor([[0.3, 12.0], [2.5, 29.0], [5.0, 40.0]], dtype=F64)  # the last lies outside

    def hill(x):
        return -(((x - tops[:, None]) / torch.tensor([1.0, 5.0], dtype=F64)) ** 2).sum(-1)

    raw = BOX[0] + (BOX[1] - BOX[0]) * torch.rand(3, 20, 2, generator=rng, dtype=F64)
    x, value = maximize_box(hill, BOX, raw)
    torch.testing.assert_close(x, tops.clamp(BOX[0], BOX[1]), rtol=0, atol=1e-5)
    assert (value >= hill(raw).amax(-1)).all()


def test_ties_go_to_the_first_and_nan_free_infinities_win():
    values = torch.tensor([[1.0, 1.0 + 1e-12, 0.0], [torch.inf, 2.0, torch.inf], [1e-12, 3e-12, 2e-12]], dtype=F64)
    assert argmax_finite(values).tolist() == [0, 0, 1]
    assert argmax_finite(values, torch.tensor([False, True, True])).tolist() == [1, 2, 1]
    assert argmax_finite(values, order=torch.tensor([2, 1, 0])).tolist() == [1, 2, 1]


def test_the_grid_of_queries():
    x = on_grid(torch.tensor([[0.123456, 29.99999]], dtype=F64), BOX)
    steps = (x - BOX[0]) / (BOX[1] - BOX[0]) * 2**13
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-8)


# The loop.


class Coin:
    """Its value is the query; noise is added."""

    def observe(self, query, generators):
        noise = torch.stack([torch.randn((), generator=g, dtype=F64) for g in generators])
        return {"y": query[:, 0] + noise, "rain": noise}

    def value(self, query):
        return query[:, 0]


class Walk(Policy):
    """Asks for random points."""

    def ask(self):
        return torch.stack([torch.rand(1, generator=g, dtype=F64) for g in self.generators])

    def recommend(self):
        return self.queries.take_along_dim(self.y.argmax(-1)[:, None, None], 1).squeeze(1)

    @property
    def posterior(self):
        raise NotImplementedError


class Line:
    like, columns = torch.zeros(1, dtype=F64), ("x",)


class WalkOfOneNumber(Walk):
    def __init__(self, space, seeds):
        super().__init__(space, seeds, (1,))


def test_a_replicate_depends_on_its_seed_alone_and_everything_is_recorded():
    policy = WalkOfOneNumber(Line())
    history = simulate(Coin(), policy, 7, [4, 9], watch=lambda batch: {"count": torch.tensor([batch.round] * 2)})
    assert policy.count == 0 and not torch.equal(history["query"][0], history["query"][1])
    assert torch.equal(simulate(Coin(), policy, 7, [9])["query"][0], history["query"][1])
    torch.testing.assert_close(history["observation"], history["value"] + history["rain"])
    assert history["count"][0].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert history.seeds == [4, 9]
    with pytest.raises(ValueError, match="name must be one of"):
        history["nothing"]


def test_an_observation_that_is_not_finite_is_refused():
    class Breaks(Coin):
        rounds = 0

        def observe(self, query, generators):
            self.rounds += 1
            return super().observe(query, generators)["y"] * (math.nan if self.rounds == 4 else 1.0)

    with pytest.raises(ValueError, match="observations must be finite, y in round 4"):
        simulate(Breaks(), WalkOfOneNumber(Line()), 7, [0])
