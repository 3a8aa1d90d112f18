"""Random measures, and a small problem with policies for the tests of the loop; a subprocess imports them too."""

from dataclasses import dataclass

import torch

from cbo_lib.former.policy import Policy
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import uniform


def random_measure(rng, *shape, p=3, d=2):
    """Signed weights that sum to nothing in particular."""
    points = torch.rand(*shape, p, d, generator=rng, dtype=torch.float64)
    return Measure(points, torch.randn(*shape, p, generator=rng, dtype=torch.float64))


def normal(rng, *shape):
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def grid(count, device=None):
    return torch.linspace(0, 1, count, dtype=torch.float64, device=device).unsqueeze(-1)


@dataclass(frozen=True)
class Bumps:
    """Queries are indices into a grid on [0, 1]."""

    count: int = 15
    noise_std: float = 0.1
    device: str = "cpu"

    def value(self, query):
        x = grid(self.count, self.device).squeeze(-1)[query]
        return torch.sin(9 * x) + x

    def observe(self, query, generators):
        noise = torch.cat([torch.randn(1, generator=g, dtype=torch.float64) for g in generators])
        return self.value(query) + self.noise_std * noise.to(query.device)


@dataclass(frozen=True)
class Rows(Bumps):
    """Bumps that show a second number, drawn before the noise."""

    def observe(self, query, generators):
        context = uniform(generators, (), query.double())
        return {"context": context, "y": super().observe(query, generators)}


class Broken:
    """Bumps, until the observations of one replicate are no numbers any more."""

    def __init__(self, bad=float("nan"), replicate=1, after=3):
        self.noise_std = 0.1
        self._bumps, self._bad, self._replicate, self._left = Bumps(), bad, replicate, after

    def value(self, query):
        return self._bumps.value(query)

    def observe(self, query, generators):
        values = self._bumps.observe(query, generators)
        if self._left == 0:
            values[self._replicate] = self._bad
        self._left -= 1
        return values


@dataclass(frozen=True)
class Grid:
    """What the toys know: how many points there are."""

    count: int = 15
    device: str = "cpu"

    @property
    def like(self):
        return torch.zeros((), dtype=torch.float64, device=self.device)


class Finite(Policy):
    query_dims = 0

    def __init__(self, count=15, device="cpu", name="finite", seed=0):
        super().__init__(Grid(count, device), seed=seed)
        self.name = name
        self._queries = Measure.dirac(grid(count, device))
        self._prior = GaussianProcess(rbf_kernel(0.15).to(device), 0.1)

    def begin(self):
        self.tracked = self._prior.posterior(self.replicates).track(self._queries)

    def learn(self, row, asked):
        self.tracked.observe(row["query"].long(), row["y"])

    def best(self):
        return self.tracked.mean.argmax(-1)

    def record(self):
        return {"width": self.tracked.variance.amax(-1).sqrt(), "means": self.tracked.mean}

    def posteriors(self):
        posterior = self._prior.posterior(self.replicates)
        if self.count == 0:
            return posterior
        points = self._queries.points[self.data["query"].long()]
        return posterior.extend(Measure.average(points), self.data["y"])


class UCB(Finite):
    def propose(self):
        return (self.tracked.mean + self.multiplier() * self.tracked.variance.sqrt()).argmax(-1)


class Random(Finite):
    """Uniform choices; each replicate draws from its own generator."""

    def propose(self):
        draws = [torch.randint(self.space.count, (), generator=g) for g in self.generators]
        return torch.stack(draws).to(self._queries.points.device)


class Thompson(Finite):
    """Maximizes one draw of f on the grid, redrawn each round from the generators."""

    def propose(self):
        return self.posteriors().sample(self._queries, 1, self.generators).squeeze(-2).argmax(-1)
