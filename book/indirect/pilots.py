"""What a pilot study says of the kernels: by the marginal likelihood of 40 random answers, one study a function.

The likelihood may go through the true averages, or through an estimate that it takes for exact.

    python -m book run indirect.pilots --scale paper --publish
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from book import harness
from book.indirect.embedded import Embedded
from book.indirect.family import Turned, batch_table
from book.indirect.problems import TAU, UNIT, draw_inputs, transformation, unit_grid
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import ClippedGaussian, ConditionalMeanEmbedding
from cbo_lib.indirect.embedding import embedding_loss
from cbo_lib.kernels import GaussianMeasureKernel, rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators, standard_normal, uniform

RESULTS = Path(__file__).parent / "results"
#: Lengthscales to choose from.
LENGTHS = (0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.22, 0.24, 0.28, 0.32, 0.4, 0.5)


def pairs(conditional: ClippedGaussian, count: int, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A ``D1`` of uniform actions for each seed, ``replicates x N x 2`` both; another one than the runs have."""
    generators = ReplicateGenerators(seeds, stream=7).generators
    actions = uniform(generators, (count, 2), UNIT)
    return draw_inputs(conditional, actions, generators), actions


def embedding_parameters(h: Any, count: int, seeds: Sequence[int] = range(6)) -> tuple[float, float]:
    """The lengthscale of the actions' kernel and lambda of the smallest leave-one-out error, mean over data sets."""
    x, a = pairs(ClippedGaussian(transformation(h), TAU, UNIT), count, seeds)
    grid = [(length, ridge) for length in (0.1, 0.2, 0.4, 0.8) for ridge in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)]
    return min(grid, key=lambda pair: float(embedding_loss(x, a, rbf_kernel(0.2), rbf_kernel(pair[0]), pair[1]).mean()))


def lengthscales(
    h: Any, parameters: tuple[float, float], count: int = 300, seeds: Sequence[int] = range(40), pilot: int = 40
) -> pd.DataFrame:
    """What each function's pilot study finds, in four ways, one row a function.

    Args:
        h: the transformation.
        parameters: of the embedding, see ``embedding_parameters``.
        count: pairs of ``D1``.
        seeds: one a function.
        pilot: how many answers.
    """
    conditional = ClippedGaussian(transformation(h), TAU, UNIT)
    grid, noise_std = unit_grid(12), 0.1
    table = batch_table(Turned(tuple(seeds)), len(seeds), conditional, grid, grid[:1])[:, :-1]
    generators = ReplicateGenerators(seeds, stream=8).generators
    chosen = torch.stack([torch.randperm(len(grid), generator=g)[:pilot] for g in generators])
    z = table.gather(1, chosen) + noise_std * standard_normal(generators, (pilot,), table)
    asked = grid[chosen]
    embedding = ConditionalMeanEmbedding(*pairs(conditional, count, seeds), *parameters)
    estimate = Embedded(embedding, grid, grid[:1])
    through, places, points = map(Measure.dirac, (conditional.gaussian(asked), chosen[..., None].to(z), asked))
    found: dict[str, list[Tensor]] = {"p known": [], "p estimated": [], "p estimated, with its error": [], "g": []}
    for length in LENGTHS:
        priors = (
            (GaussianProcess(GaussianMeasureKernel(length), noise_std), through),
            (estimate.prior(length, noise_std), places),
            (estimate.prior(length, noise_std, "deviation"), places),
            (GaussianProcess(rbf_kernel(length), noise_std), points),
        )
        for likelihoods, (prior, measures) in zip(found.values(), priors, strict=True):
            likelihoods.append(prior.condition(measures, z).log_marginal_likelihood)
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)
    return pd.DataFrame({way: lengths[torch.stack(part).argmax(0)].numpy() for way, part in found.items()})


def pilots(
    *, scale: harness.Scale = "paper", seeds: Sequence[int] | None = None, folder: Path | None = None
) -> pd.DataFrame:
    """Quartiles of the lengthscales that pilots find, one row a transformation and a way.

    Args:
        scale: 40 or 10 functions.
        seeds: default those of the scale.
        folder: not used; the command stores the table.
    """
    seeds = harness.choose(scale, range(10), range(40)) if seeds is None else seeds
    rows = []
    for h in ("linear", "cosine"):
        parameters = embedding_parameters(h, 300)
        for way, column in lengthscales(h, parameters, seeds=seeds).items():
            quartiles = column.quantile([0.25, 0.5, 0.75]).tolist()
            rows.append((h, way, *(round(q, 3) for q in quartiles), len(column)))
    return pd.DataFrame(rows, columns=["map", "likelihood", "first quartile", "median", "third quartile", "n"])
