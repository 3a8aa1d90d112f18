"""The proofs of both theorems, link by link, on the paper's own problems and on draws of a prior.

    python -m book run contexts.proof --scale paper --publish

runs SBO-KDE and DRBO-KDE with the multiplier of Theorem 1 and stores both sides of every link in ``proof.npz`` beside
this file. On two cores that takes about a quarter of an hour.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import ProductKernel
from IPython.display import HTML
from torch import Tensor

from book import proofs
from book.contexts import problems
from book.contexts.problem import ContextProblem
from book.contexts.regret import Constants, accounts, density_error
from book.contexts.theory import drawn_problem, slope_tail, theorem_constants
from book.harness import run
from book.information import greedy_information_gain
from book.proofs import Link
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE
from cbo_lib.contexts.space import Space
from cbo_lib.former.fit import fit_gaussian_process
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matern_kernel, rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators

#: Problems of the paper, with one context, with two and with four.
PROBLEMS: dict[str, Callable[[], ContextProblem]] = {
    "newsvendor": problems.newsvendor,
    "ackley": problems.ackley,
    "hartmann": problems.hartmann,
    "complicated": problems.complicated_hartmann,
    "branin, 2": problems.modified_branin,
    "ackley, 4": functools.partial(problems.ackley, 4),
}
NOISE = 0.1
#: Rounds and replicates of a setting: fewer where there are several contexts.
SIZES = {name: (25, 10) if "," in name else (40, 20) for name in ("draws", *PROBLEMS)}
#: Where the results are stored.
STORED = Path(__file__).with_name("proof.npz")


def sobol(dim: int, count: int) -> Tensor:
    """The first points of the sequence in the unit box, ``count x dim``."""
    points = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0).draw(count, dtype=torch.float64)
    return points.to(torch.zeros(()).device)


@dataclass(frozen=True, eq=False)
class Setting:
    """A problem in units in which a prior of variance one fits it, that prior, and the constants of the bounds.

    Args:
        problem: with noise of standard deviation ``NOISE``.
        prior: fitted once to many points, then known.
        constants: with the multiplier of Theorem 1.
    """

    problem: ContextProblem
    prior: GaussianProcess
    constants: Constants

    def gain(self, rounds: int) -> Tensor:
        """An upper bound of the maximum information gain of 1, ..., ``rounds`` observations at 512 Sobol points.

        It is ``e / (e - 1)`` times the gain of greedy choice, or what variances of one would tell if that is less.
        """
        points = sobol(self.problem.space.dim, 512)
        greedy = greedy_information_gain(self.prior.kernel, points, NOISE, rounds)[1:]
        most = torch.arange(1, rounds + 1).to(greedy) * math.log1p(NOISE**-2) / 2
        return (greedy * math.e / (math.e - 1)).minimum(most)


def setting(name: str, seeds: int = 20, points: int = 150) -> Setting:
    """One of ``PROBLEMS``, standardized, with the Matern-5/2 prior that fits it best; or draws of a prior.

    Args:
        name: of the problem, or ``"draws"``.
        seeds: how many draws.
        points: Sobol points that the prior is fitted to.
    """
    if name == "draws":
        known = GaussianProcess(rbf_kernel(0.2), NOISE)
        return Setting(drawn_problem(range(seeds)), known, theorem_constants())
    problem = PROBLEMS[name]()
    space = problem.space
    z = sobol(space.dim, points)
    fit = fit_gaussian_process(Measure.dirac(z[None]), problem.f(z)[None], space.bounds, "matern", _groups(space))
    shift, factor = float(fit.mean), float(problem.f(z).std())

    def f(points: Tensor) -> Tensor:
        return (problem.f(points) - shift) / factor

    def expectation(x: Tensor) -> Tensor:
        return (problem.value(x) - shift) / factor

    lengths = fit.lengthscale[0]
    kernels = [matern_kernel(lengths[list(group)]).base_kernel for group in _groups(space)]
    for kernel, group in zip(kernels, _groups(space), strict=True):
        kernel.active_dims = torch.tensor(group)
    prior = GaussianProcess(ProductKernel(*kernels), NOISE)
    # Averages of widths need no product rule.
    law = problem.distribution if space.context_dim == 1 else replace(problem.distribution, sobol=2048)
    unit = replace(problem, f=f, expectation=expectation, noise_std=NOISE, distribution=law)
    return Setting(unit, prior, _constants(unit, lengths))


def _groups(space: Space) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(range(space.decision_dim)), tuple(range(space.decision_dim, space.dim))


def _constants(problem: ContextProblem, lengths: Tensor) -> Constants:
    """``b`` is twice the standard deviation of the steepest derivative, ``a`` the least that covers 100 draws."""
    dim, draws, waves = problem.space.dim, 100, 512
    rng = torch.Generator().manual_seed(0)
    # Waves of a Matern-5/2 kernel have frequencies with Student's distribution; a product has independent ones.
    normal = torch.randn(draws, waves, dim, generator=rng, dtype=torch.float64)
    spread = []
    for group in _groups(problem.space):
        chi = torch.randn(draws, waves, 5, generator=rng, dtype=torch.float64).square().sum(-1, keepdim=True)
        spread.append((5 / chi).sqrt().expand(-1, -1, len(group)))
    frequency = normal * torch.cat(spread, -1) / lengths
    phase = 2 * math.pi * torch.rand(draws, waves, 1, generator=rng, dtype=torch.float64)
    height = torch.randn(draws, waves, generator=rng, dtype=torch.float64) * math.sqrt(2 / waves)
    at = sobol(dim, 1024)
    slopes = []
    for k in range(draws):
        angle = (frequency[k] @ at.T + phase[k]).sin()
        slopes.append(((height[k, :, None] * frequency[k]).T @ angle).abs().amax(-1))
    b = float(2 * math.sqrt(5 / 3) / lengths.min())
    seen = problem.distribution.sample(ReplicateGenerators(range(20)).generators, (100,))
    counts = [5, 10, 20, 50, 100]
    space = problem.space
    dims = space.context_dim
    errors = density_error(seen, problem, counts).mean(0) * torch.tensor(counts) ** (2 / (4 + dims))
    tail = slope_tail(torch.stack(slopes), b)
    return Constants(tail, b, 1.0, space.decision_dim, space.context_dim, NOISE, float(errors.max()))


#: Both sides of an inequality, summed up to every round and averaged over the replicates, ``rounds`` each.
Sides = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Proof:
    """What the runs of one policy say of the proof.

    Args:
        links: every step of the walk. Those whose name ends in ``in mean`` hold for expectations; others in every run.
        terms: every term of the regret beside its own bound.
        regret: of every round after the initial design, ``replicates x rounds``.
    """

    links: dict[str, Sides]
    terms: dict[str, Sides]
    regret: Tensor


@dataclass(frozen=True, eq=False)
class Run:
    """Runs of one policy in one setting, and what the proof says of them.

    Args:
        setting: which.
        robust: whether the policy is DRBO-KDE.
        record: see ``accounts``.
        start: observations of the initial design.
        regret: of every round after it, ``replicates x rounds``.
    """

    setting: Setting
    robust: bool
    record: dict[str, Tensor]
    start: int
    regret: Tensor

    def links(self) -> dict[str, Sides]:
        """Both sides of every step, in the order of the walk; see ``Proof``."""
        record, constants = self.record, self.setting.constants
        shape = record["width"].shape[-1]
        t = torch.arange(self.start + 1, self.start + 1 + shape)
        gain = self.setting.gain(self.start + shape)[self.start :]
        root = torch.tensor([constants.sqrt_beta(int(i)) for i in t], dtype=torch.float64)
        share = record["distance"] / 2

        def total(values: Tensor) -> Tensor:
            return values.cumsum(-1).mean(0)

        seen = record["width seen"].cumsum(-1)
        squares = record["variance seen"].cumsum(-1)
        spent = 2 / math.log1p(NOISE**-2)
        realized = 0.5 * torch.log1p(record["variance seen"] / NOISE**2).cumsum(-1)
        count = torch.arange(1, shape + 1)
        links = {
            "estimate at x*": (total(record["estimate at x*"]), total(share * record["range at x*"])),
            "estimate at x_t": (total(record["estimate at x_t"]), total(share * record["range at x_t"])),
            "grid": (total(record["grid"]), (1 / t**2).cumsum(0)),
            "optimism": (total(record["optimism"]), total(record["excess"])),
            "excess in mean": (total(record["excess"]), (1 / t**2).cumsum(0)),
            "maximization": (total(record["maximization"]), torch.zeros(shape)),
        }
        if self.robust:
            half = record["delta"] / 2
            links |= {
                "radius at x*": (total(record["radius at x*"]), total(half * record["range at x*"])),
                "radius at x_t": (total(record["radius at x_t"]), torch.zeros(shape)),
                "worst q for f": (total(record["width"]), total(record["above, under q"])),
                "q to estimate": (
                    total(record["above, under q"]),
                    total(record["above"] + half * record["above, range"]),
                ),
                "range in mean": (
                    total(half * record["above, range"]),
                    (half.mean(0) * (2 * constants.largest + root)).cumsum(0),
                ),
                "the short way": (total(record["average maximization"]), total(half * record["bound range"])),
            }
        links |= {
            "width in mean": (total(record["above"]), total(record["estimated width"])),
            "estimate to p": (
                total(record["estimated width"]),
                total(record["mean width"] + share * record["width range"]),
            ),
            "p to seen in mean": (total(record["mean width"]), total(record["width seen"])),
            "Cauchy-Schwarz": (seen.mean(0), (root * (count * squares).sqrt()).mean(0)),
            "information": (squares.mean(0), spent * realized.mean(0)),
            "most information": (spent * realized.mean(0), spent * gain),
        }
        return links

    def terms(self) -> dict[str, Sides]:
        """Every term of the regret beside its own bound; see ``Proof``."""
        record, shape = self.record, self.record["width"].shape[-1]
        radius = DRBOKDE(self.setting.problem.space).radius if self.robust else None
        assert radius is None or callable(radius)
        bounds = self.setting.constants.proven(self.setting.gain(self.start + shape), radius)
        estimate, moved, zero = bounds["estimate"] / 2, bounds["widths moved"], torch.zeros(self.start + shape)
        own = {
            "estimate at x*": estimate,
            "estimate at x_t": estimate,
            "grid": bounds["grid"],
            "optimism": bounds["optimism"],
            "maximization": zero,
            "width": bounds["widths"] + moved,
        }
        if radius is not None:
            sizes = torch.tensor([radius(i) for i in range(1, self.start + shape + 1)]).cumsum(0)
            largest = self.setting.constants.largest
            own["radius at x*"], own["radius at x_t"] = largest * sizes, zero
            own["width"] = own["width"] + bounds["radius"]  # Lemma 10 charges as much as the short way in all
        return {name: (record[name].cumsum(-1).mean(0), bound[self.start :]) for name, bound in own.items()}


def runs(name: str, rounds: int = 40, seeds: int = 20, multiplier: float | None = None) -> dict[str, Run]:
    """SBO-KDE and DRBO-KDE in one setting.

    Args:
        name: see ``setting``.
        rounds: observations, of which five are the initial design.
        seeds: how many replicates.
        multiplier: of the standard deviation. Default: that of Theorem 1.
    """
    here = setting(name, seeds)
    root = here.constants.sqrt_beta if multiplier is None else multiplier
    options: dict[str, Any] = {"initial": 5, "prior": here.prior, "samples": 256, "sqrt_beta": root, "raw": 64}
    space = here.problem.space
    policies = {"SBO-KDE": SBOKDE(space, **options), "DRBO-KDE": DRBOKDE(space, cover=256, **options)}
    found = run(here.problem, policies, rounds, range(seeds)).histories
    result = {}
    for key, policy in policies.items():
        history = found[key]
        record = accounts(history, here.problem, policy, here.constants)
        regret = here.problem.optimum.unsqueeze(-1) - history["value"]
        result[key] = Run(here, key == "DRBO-KDE", record, 5, regret[:, 5:])
    return result


def arrays_of(name: str, rounds: int, seeds: int) -> dict[str, np.ndarray]:
    """What is stored of a setting, by policy: regret, and both sides of every link and term."""
    arrays: dict[str, np.ndarray] = {}
    for policy, found in runs(name, rounds, seeds).items():
        arrays[f"{policy}/regret"] = found.regret.numpy().astype(np.float32)
        for kind, table in (("link", found.links()), ("term", found.terms())):
            for part, sides in table.items():
                arrays[f"{policy}/{kind}/{part}"] = torch.stack(sides).numpy().astype(np.float32)
    return arrays


def load(name: str, policy: str, path: Path = STORED) -> Proof:
    """What is stored of a policy, ``"SBO-KDE"`` or ``"DRBO-KDE"``, in a setting; see ``setting``."""
    tables: dict[str, dict[str, Sides]] = {"link": {}, "term": {}}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            where, who, kind, *part = key.split("/", 3)
            if (where, who) == (name, policy) and part:
                left, right = torch.as_tensor(file[key]).double()
                tables[kind][part[0]] = left, right
        regret = torch.as_tensor(file[f"{name}/{policy}/regret"]).double()
    return Proof(tables["link"], tables["term"], regret)


#: What each link of the proof of Theorem 1 leads to; the empty name is the regret.
_LEADS_TO = {
    "estimate at x*": "",
    "grid": "",
    "optimism": "",
    "excess in mean": "optimism",
    "estimate at x_t": "",
    "width in mean": "",
    "estimate to p": "width in mean",
    "p to seen in mean": "estimate to p",
    "Cauchy-Schwarz": "p to seen in mean",
    "information": "Cauchy-Schwarz",
    "most information": "information",
}
#: Links that are equalities in mean.
_EQUALITIES = ("width in mean", "p to seen in mean")
#: The part of the right side by which the left may exceed it: some links hold in mean alone, and few runs estimate it.
_SLACK = 0.1


def picture(found: Proof, caption: str = "", name: str = "") -> HTML:
    """The proof of Theorem 1 round by round: the terms of the regret, and each link with its two sides.

    Args:
        found: the terms and the links.
        caption: of the figure.
        name: by which text refers to it.
    """
    links = [
        Link(name, *found.links[name], supports=target, slack=_SLACK, sign="≈" if name in _EQUALITIES else "≤")
        for name, target in _LEADS_TO.items()
    ]
    terms = {name: left for name, (left, _) in found.terms.items()}
    return proofs.regret(found.regret.cumsum(-1).mean(0), terms, links, caption=caption, name=name)


def verdict(left: float, right: float) -> str:
    """What the picture says of a link with these sides: ``tight``, ``loose`` or ``broken``."""
    return Link("", torch.tensor([left]), torch.tensor([right]), slack=_SLACK).state(0)
