"""The classes against plain NumPy, round by round, the bounds two ways, and what a single run adds."""

import time

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel

from cbo_lib import contexts
from cbo_lib.contexts.policies import Bounds
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matern_kernel, rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators
from tests.contexts import plain
from tests.contexts.helpers import F64, hill, plane

SAMPLES, COVER, ROUNDS, DESIGN = 16, 16, 20, 4
MAKERS = {
    "SBO-KDE": lambda p, **o: contexts.SBOKDE(p.space, samples=SAMPLES, **o),
    "empirical": lambda p, **o: contexts.SBOEmpirical(p.space, **o),
    "known": lambda p, **o: contexts.SBOKnown(p.space, draw=p.distribution.sample, samples=SAMPLES, **o),
    "DRBO-KDE": lambda p, **o: contexts.DRBOKDE(p.space, samples=SAMPLES, cover=COVER, **o),
    "StableOpt": lambda p, **o: contexts.StableOpt(p.space, cover=COVER, **o),
    "DRBO-MMD": lambda p, **o: contexts.DRBOMMD(p.space, size=9, **o),
    "minimax": lambda p, **o: contexts.DRBOMMDMinimax(p.space, size=16, **o),
    "GP-UCB": lambda p, **o: contexts.GPUCB(p.space, **o),
}


def known(problem, name):
    """A prior of the problem, and the same for ``plain``."""
    dim = problem.space.decision_dim if name == "GP-UCB" else problem.space.dim
    lengths = [0.3 + 0.1 * i for i in range(dim)]
    model = plain.Model(np.array(lengths), 0.8, 0.2, 0.1)
    return GaussianProcess(rbf_kernel(lengths, 0.64), 0.1, 0.2), model


def acquisition(name, problem, model, x, y, seen, generator):
    """What a policy maximizes, of one replicate, as a function of the decision."""
    low, high = (corner.numpy() for corner in problem.space.contexts)
    dim, t = problem.space.context_dim, len(seen) + 1
    seen = np.clip(seen, low, high)
    sobol = torch.quasirandom.SobolEngine(dim, scramble=False).draw(COVER, dtype=F64).numpy()
    if name in ("SBO-KDE", "DRBO-KDE"):
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        u = torch.quasirandom.SobolEngine(dim + 1, scramble=True, seed=seed).draw(SAMPLES, dtype=F64).numpy()
        drawn = plain.kde_samples(seen, u, low, high)
    if name == "known":
        drawn = problem.distribution.sample([generator], (SAMPLES,))[0].numpy()
    if name in ("SBO-KDE", "known"):
        return lambda d: model.ucb(x, y, d, drawn, 1.5).mean()
    if name == "empirical":
        return lambda d: model.ucb(x, y, d, seen, 1.5).mean()
    if name == "DRBO-KDE":
        both = np.concatenate([drawn, low + (high - low) * sobol])

        def worst(d):
            values = model.ucb(x, y, d, both, 1.5)
            return plain.tv_program(values[:SAMPLES], values.min(), t ** (-2 / (4 + dim)))

        return worst
    if name == "StableOpt":
        region = plain.stable_region(seen, low, high, sobol)
        return lambda d: model.ucb(x, y, d, region, 1.5).min()
    if name == "GP-UCB":
        return lambda d: float(sum(p * w for p, w in zip(model.posterior(x, y, d[None]), (1, 1.5), strict=True))[0])
    points = plain.grid(low, high, 9 if name == "DRBO-MMD" else 16)
    weights, gram = plain.empirical(seen, points), plain.discrepancy_kernel(model, points)
    solve = plain.mmd_program if name == "DRBO-MMD" else plain.minimax
    return lambda d: solve(model.ucb(x, y, d, points, 1.5), weights, gram, plain.mmd_radius(t))


@pytest.mark.parametrize(
    ("name", "world"),
    [*((name, hill()) for name in MAKERS), *((name, plane()) for name in ("SBO-KDE", "DRBO-KDE", "minimax"))],
    ids=lambda part: getattr(part, "name", part),
)
@torch.no_grad()
def test_every_round_maximizes_what_plain_numpy_computes(name, world):
    seeds, (prior, model) = [5, 11], known(world, name)
    batch = MAKERS[name](world, initial=DESIGN, prior=prior).start(seeds)
    noise, low, high = ReplicateGenerators(seeds), *(corner.numpy() for corner in world.space.decisions)
    rng = np.random.default_rng(0)
    for t in range(1, ROUNDS + 1):
        x = batch.ask()
        if t in (8, ROUNDS):
            for r, seed in enumerate(seeds):
                queries, seen, y = (part[r].numpy() for part in (batch.queries, batch.context, batch.y))
                full = queries if name == "GP-UCB" else np.concatenate([queries, seen], -1)
                choices = ReplicateGenerators([seed], stream=1).at(t)[0]
                value = acquisition(name, world, model, full, y, seen, choices)
                others = low + (high - low) * rng.random((3, len(low)))
                best = max(value(d) for d in others)
                assert value(x[r].numpy()) > best - 5e-3
        answer = world.observe(x, noise.at(t))
        batch.tell(x, answer["y"], answer["context"])
    if name != "GP-UCB":
        for r in range(2):
            queries, seen, y = (part[r].numpy() for part in (batch.queries, batch.context, batch.y))
            box = (corner.numpy() for corner in world.space.contexts)
            best = plain.recommendation(model, np.concatenate([queries, seen], -1), y, queries, np.clip(seen, *box))
            np.testing.assert_allclose(batch.recommend()[r], best, atol=1e-9)


def growing():
    """A product that is not stationary."""
    return LinearKernel(active_dims=(0, 1)).double() * RBFKernel(active_dims=(2,)).double()


@pytest.mark.parametrize(
    ("kernel", "product"),
    [(rbf_kernel([0.3, 0.2, 0.5]), True), (matern_kernel([0.3, 0.2, 0.5]), False), (growing(), True)],
    ids=["rbf", "matern", "growing"],
)
@torch.no_grad()
def test_bounds_of_a_product_are_those_of_the_pairs(kernel, product, rng):
    points, y = torch.rand(2, 25, 3, generator=rng, dtype=F64), torch.rand(2, 25, generator=rng, dtype=F64)
    prior = GaussianProcess(kernel, 0.1, lambda points: points[..., 0] + points[..., 2].square())
    posterior = prior.posterior(2).extend(Measure.dirac(points), y)
    x, c = torch.rand(2, 6, 2, generator=rng, dtype=F64), torch.rand(2, 40, 1, generator=rng, dtype=F64)
    bounds = Bounds(posterior, c, 1.5)
    assert bounds.product == product
    pairs = torch.cat([x.repeat_interleave(40, 1), c.repeat(1, 6, 1)], -1)
    mean, variance = posterior.mean_and_variance(Measure.dirac(pairs))
    torch.testing.assert_close(bounds(x).flatten(1), mean + 1.5 * variance.sqrt(), rtol=0, atol=1e-6)
    torch.testing.assert_close(Bounds(posterior, c, 0.0)(x).flatten(1), mean, rtol=0, atol=1e-8)


def test_a_replicate_is_the_same_alone_and_in_company():
    world = hill()
    prior, _ = known(world, "SBO-KDE")
    asked = []
    for seeds in ([3], [1, 3]):
        batch, noise = MAKERS["SBO-KDE"](world, initial=3, prior=prior).start(seeds), ReplicateGenerators(seeds)
        for t in range(1, 7):
            x = batch.ask()
            answer = world.observe(x, noise.at(t))
            batch.tell(x, answer["y"], answer["context"])
        asked.append(batch.queries[-1])
    torch.testing.assert_close(*asked, rtol=0, atol=1e-3)


def test_a_single_run_is_told_saved_and_loaded(tmp_path):
    space = contexts.Space(
        pd.DataFrame({"price": [0.0, 1.0], "stock": [0.0, 2.0]}), pd.DataFrame({"demand": [0.0, 1.0]})
    )
    rng = np.random.default_rng(0)
    old = pd.DataFrame(
        {"demand": rng.random(12), "stock": 2 * rng.random(12), "price": rng.random(12), "y": rng.random(12)}
    )
    for kind in (contexts.SBOKDE, contexts.SBOEmpirical, contexts.DRBOKDE):
        policy = kind(space, seed=3)
        policy.tell(old)
        x = policy.ask()
        policy.tell(x, 0.5, context=0.2)
        assert policy.count == 13
        assert list(policy.to_frame().columns) == ["price", "stock", "demand", "y"]
        policy.save(tmp_path / "run")
        again = kind.load(tmp_path / "run")
        torch.testing.assert_close(again.ask(), policy.ask(), rtol=0, atol=1e-9)
        other = kind(space, seed=3)
        other.tell(policy.to_frame())
        assert other.count == 13
        assert policy.recommend().shape == (2,)
        assert policy.posterior.mean(Measure.dirac([[0.1, 0.2, 0.3]])).shape == (1,)


def test_a_known_context_is_answered_and_a_record_of_contexts_counts():
    world = hill(0.0)
    x = torch.rand(40, 1, generator=torch.Generator().manual_seed(0), dtype=F64) * 2
    c = torch.rand(40, 1, generator=torch.Generator().manual_seed(1), dtype=F64) * 2 - 1
    y = -((x - 0.8 - 0.5 * c) ** 2)[:, 0]
    prior = GaussianProcess(rbf_kernel([0.6, 0.8]), 0.05)
    policy = contexts.SBOEmpirical(world.space, prior=prior, sqrt_beta=0.0)
    policy.tell(x, y, context=c)
    low, high = (float(policy.ask(context=[at])) for at in (-0.6, 0.3))
    assert abs(low - 0.5) < 0.1 and abs(high - 0.95) < 0.1  # x - 0.8 - c / 2 = 0
    recorded = contexts.SBOEmpirical(world.space, prior=prior, sqrt_beta=0.0, record=np.full((4000, 1), -0.6))
    recorded.tell(x, y, context=c)
    assert abs(float(recorded.ask()) - low) < 0.1 < abs(float(policy.ask()) - low)
    with pytest.raises(ValueError, match="context"):
        contexts.GPUCB(world.space).ask(context=[0.1])


def test_the_first_question_after_many_old_rows_comes_soon():
    rng = torch.Generator().manual_seed(0)
    x, c = torch.rand(1500, 2, generator=rng, dtype=F64), torch.rand(1500, 1, generator=rng, dtype=F64)
    policy = contexts.SBOKDE(contexts.Space([[0.0, 0.0], [1.0, 1.0]], [[0.0], [1.0]]))
    policy.tell(x, (5 * x.sum(-1) + 3 * c[:, 0]).sin(), context=c)
    start = time.process_time()
    policy.ask()
    assert time.process_time() - start < 30  # 6 s on a quiet processor
