"""Fits with slopes in closed form against automatic differentiation, and what a fitted prior of averages costs."""

import functools

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from cbo_lib import kernels
from cbo_lib.former import fit
from cbo_lib.indirect import ClippedGaussian
from cbo_lib.measure import Measure
from tests.benchmarks.test_gpoo_speed import in_turn, report

REPLICATES, COUNT, DIM = 5, 350, 4


def test_slopes_of_the_likelihood_are_faster_in_closed_form(benchmark, capsys):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(REPLICATES, COUNT, DIM, generator=generator, dtype=torch.float64)
    y = torch.randn(REPLICATES, COUNT, 1, generator=generator, dtype=torch.float64)
    model = SingleTaskGP(x, (y - y.mean(1, keepdim=True)) / y.std(1, keepdim=True), outcome_transform=None)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    parameters = [p for p in mll.parameters() if p.requires_grad]
    ours = fit._loss(mll)

    def closed():
        return torch.autograd.grad(ours().sum(), parameters)

    def automatic():
        return torch.autograd.grad(-mll(model(x), model.train_targets).sum(), parameters)

    torch.testing.assert_close(closed(), automatic(), rtol=1e-8, atol=1e-10)
    fast, slow, *_ = in_turn(closed, automatic, 5)
    benchmark.pedantic(closed, rounds=3)
    title = f"slopes of {REPLICATES} likelihoods of {COUNT} values"
    report(capsys, benchmark, (title, "automatic differentiation"), fast, slow)
    assert slow / fast >= 1.4


def outcomes(count, dim):
    """Points of the unit box, what was seen there, and the box."""
    generator, box = torch.Generator().manual_seed(0), torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.float64)
    x = torch.rand(REPLICATES, count, dim, generator=generator, dtype=torch.float64)
    y = torch.sin(5 * x.sum(-1)) + 0.1 * torch.randn(REPLICATES, count, generator=generator, dtype=torch.float64)
    return x, y, box


def compared(do, monkeypatch, module, name, other):
    """Seconds of something as it is and with another part, and the results of both."""

    def with_the_other():
        with monkeypatch.context() as patch:
            patch.setattr(module, name, other)
            return do()

    return in_turn(do, with_the_other, 3)


@pytest.mark.parametrize("kind", ["Matern", "Matern, averages of 64 points", "product of RBFs"])
def test_fits_are_faster_with_slopes_of_the_kernel_in_closed_form(benchmark, capsys, monkeypatch, kind):
    """The same fit ends at the same values; GPyTorch has such slopes for a kernel of one coordinate alone."""
    averages, product = "averages" in kind, kind == "product of RBFs"
    x, y, box = outcomes(12 if averages else COUNT, 4 if product else 2)
    seen = ClippedGaussian(lambda a: a, 0.1, box).measure(x, 8) if averages else Measure.dirac(x)
    options = ("rbf", [[0, 1], [2, 3]]) if product else ("matern", None)
    do = functools.partial(fit.fit_gaussian_process, seen, y, box, *options)
    fast, slow, ours, theirs = compared(do, monkeypatch, kernels, "_factors", lambda part: [])
    assert torch.equal(ours.lengthscale, theirs.lengthscale)
    benchmark.pedantic(do, rounds=1)
    title = f"{REPLICATES} fits to {x.shape[1]} values, {kind}"
    report(capsys, benchmark, (title, "GPyTorch's slopes of the kernel"), fast, slow)
    assert slow / fast >= 1.2


def test_a_fit_factors_no_matrix_of_a_replicate_that_has_ended(benchmark, capsys, monkeypatch):
    x, y, box = outcomes(COUNT, 4)
    frequency = torch.linspace(1, 15, REPLICATES, dtype=torch.float64).unsqueeze(-1)  # searches of unequal lengths
    y = y + torch.sin(frequency * x.sum(-1))
    original = fit._loss

    def whole(mll):
        loss = original(mll)
        return lambda going=None: loss()

    do = functools.partial(fit.fit_gaussian_process, Measure.dirac(x), y, box, "rbf")
    fast, slow, ours, theirs = compared(do, monkeypatch, fit, "_loss", whole)
    assert torch.equal(ours.lengthscale, theirs.lengthscale)
    benchmark.pedantic(do, rounds=1)
    title = f"{REPLICATES} fits to {COUNT} values, those that go on"
    report(capsys, benchmark, (title, "all of them at every step"), fast, slow)
    assert slow / fast >= 1.1
