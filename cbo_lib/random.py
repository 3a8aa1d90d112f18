"""Random numbers: one generator a replicate, so that replicate 7 is the same alone or among thirty."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from cbo_lib.checks import as_count, require


class ReplicateGenerators:
    """Independent random streams, one generator a replicate, seeded anew at every step.

    The numbers of step ``t`` depend on the seed, the stream and ``t`` alone. So a run that resumes at step ``t`` draws
    what it would have drawn without the interruption, and no generator state need be stored. Generators live on the
    CPU whatever the device of the run, so a run on a GPU sees the same noise.

    Args:
        seeds: one nonnegative integer a replicate.
        stream: separates sequences of the same seed (0 the problem's noise, 1 the policy's choices).

    Raises:
        ValueError: if there is no seed, or one is negative.
    """

    def __init__(self, seeds: Sequence[int], stream: int = 0) -> None:
        require(isinstance(seeds, Iterable), "seeds must be one or more nonnegative integers", seeds)
        self.seeds = [as_count("seeds", seed) for seed in seeds]
        require(self.seeds, "seeds must be one or more nonnegative integers", "[]")
        self.stream = stream
        self.generators = [torch.Generator() for _ in self.seeds]
        self._words = np.zeros((len(self.seeds), 0), dtype=np.uint64)
        self.at(0)

    def at(self, step: int) -> list[torch.Generator]:
        """The generators, set to the beginning of a step."""
        if step >= self._words.shape[1]:
            # Hashing spreads neighboring seeds over the whole state space; more words leave earlier ones unchanged.
            count = max(64, 2 * (step + 1))
            sequences = [np.random.SeedSequence(seed, spawn_key=(self.stream,)) for seed in self.seeds]
            self._words = np.stack([s.generate_state(count, np.uint64) for s in sequences]) >> np.uint64(1)
        for generator, word in zip(self.generators, self._words[:, step].tolist(), strict=True):
            generator.manual_seed(word)
        return self.generators


def standard_normal(generators: Sequence[torch.Generator], shape: Sequence[int], like: Tensor) -> Tensor:
    """Independent standard normal draws, ``len(generators) x shape``, on the device and dtype of ``like``."""
    return torch.stack([torch.randn(tuple(shape), generator=g, dtype=like.dtype) for g in generators]).to(like.device)


def uniform(generators: Sequence[torch.Generator], shape: Sequence[int], like: Tensor) -> Tensor:
    """Independent uniform draws from [0, 1), ``len(generators) x shape``, on the device and dtype of ``like``."""
    return torch.stack([torch.rand(tuple(shape), generator=g, dtype=like.dtype) for g in generators]).to(like.device)


def scrambled_sobol(generators: Sequence[torch.Generator], n: int, dim: int, like: Tensor) -> Tensor:
    """Scrambled Sobol points of the unit cube ([Owen1998]), ``len(generators) x n x dim``.

    Each point is uniform. Together they fill the cube more evenly than independent ones. Device and dtype are those of
    ``like``.
    """
    seeds = [int(torch.randint(2**31 - 1, (), generator=g)) for g in generators]
    points = [SobolEngine(dim, scramble=True, seed=seed).draw(n, dtype=torch.float64) for seed in seeds]
    return torch.stack(points).to(like)
