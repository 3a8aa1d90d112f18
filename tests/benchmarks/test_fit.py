"""The slopes of the likelihood in closed form against automatic differentiation through the Cholesky factor."""

import torch
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood

from cbo_lib import fit
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
