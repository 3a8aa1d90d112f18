"""Random measures, and a small problem with policies for the tests of the loop; a subprocess imports them too."""

import time
from dataclasses import dataclass

import torch

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
    """Bumps that show a second number, drawn before the noise: ``replicates x 2``, the value last."""

    def observe(self, query, generators):
        context = uniform(generators, (), query.double())
        return torch.stack([context, super().observe(query, generators)], -1)


class Watched:
    """Bumps, slowly, with one line in a file for every evaluation begun."""

    def __init__(self, side, delay=0.0, bumps=None):
        self.noise_std = 0.1
        self._bumps, self._side, self._delay = bumps or Bumps(), side, delay

    def value(self, query):
        return self._bumps.value(query)

    def observe(self, query, generators):
        with open(self._side, "a") as file:
            file.write("evaluated\n")
        time.sleep(self._delay)
        return self._bumps.observe(query, generators)


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


class Finite:
    def __init__(self, count=15, device="cpu", name="finite"):
        self.name = name
        self.count = count
        self._queries = Measure.dirac(grid(count, device))
        self._prior = GaussianProcess(rbf_kernel(0.15).to(device), 0.1)

    def start(self, generators):
        self._generators = generators
        self._tracked = self._prior.posterior(len(generators)).track(self._queries)

    def tell(self, query, observation):
        self._tracked.observe(query, observation)

    def recommend(self):
        return self._tracked.mean.argmax(-1)

    def trace(self):
        return {"width": self._tracked.variance.amax(-1).sqrt(), "means": self._tracked.mean}


class UCB(Finite):
    def ask(self):
        return (self._tracked.mean + 2.0 * self._tracked.variance.sqrt()).argmax(-1)


class Random(Finite):
    """Uniform choices; each replicate draws from its own generator."""

    def ask(self):
        draws = [torch.randint(self.count, (), generator=g) for g in self._generators]
        return torch.stack(draws).to(self._queries.points.device)


class Thompson(Finite):
    """Maximizes one draw of f on the grid, redrawn each round from the generators."""

    def start(self, generators):
        super().start(generators)
        self._posterior = self._prior.posterior(len(generators))

    def ask(self):
        return self._posterior.sample(self._queries, 1, self._generators).squeeze(-2).argmax(-1)

    def tell(self, query, observation):
        super().tell(query, observation)
        self._posterior = self._posterior.extend(self._queries[query.unsqueeze(-1)], observation.unsqueeze(-1))
