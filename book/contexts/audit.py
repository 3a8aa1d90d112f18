"""Does the search effort of the stored runs matter? Asked at equal states, on every panel.

    python -m book run contexts.effort --scale paper --publish

takes a few minutes of one core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from book import harness
from book.contexts.claims import GRIDS, SHORT, Entry
from book.contexts.experiments import PANELS
from book.contexts.problem import ContextProblem
from book.harness import Scale
from cbo_lib.contexts.policies import ContextPolicy
from cbo_lib.former.maximize import maximize_box
from cbo_lib.random import ReplicateGenerators, uniform

#: The efforts of the stored runs.
EFFORTS: Mapping[str, Mapping[str, Any]] = {"library": {}, "short": SHORT}
POLICIES = ("SBO-KDE", "DRBO-KDE", "GP-UCB", "StableOpt")


def state(problem: ContextProblem, count: int, seeds: Sequence[int]) -> dict[str, Tensor]:
    """Random decisions and what they met, ``seeds x count`` of each."""
    generators = ReplicateGenerators(seeds).generators
    low, high = problem.space.decisions
    query = low + (high - low) * uniform(generators, (count, problem.space.decision_dim), low)
    context = problem.distribution.sample(generators, (count,))
    return {"query": query, "y": problem.f(problem.space.join(query, context)), "context": context}


def effort(
    *, scale: Scale = "paper", seeds: Sequence[int] | None = None, panels: Sequence[str] = tuple(PANELS)
) -> pd.DataFrame:
    """How much of the acquisition a search leaves, after 30 random evaluations.

    The decision of each effort and that of a much larger search are compared by one acquisition, that of the larger
    one: 2,048 samples (1,024 with four contexts), 256 raw points, four starts of 60 iterations. So what is found is
    what fewer samples and a shorter search cost together. All have the prior of one fit.

    Args:
        scale: two states or one.
        seeds: of the states.
        panels: which.

    Returns:
        One row a panel and policy: for each of ``EFFORTS`` the mean and the largest shortfall over the states, in
        standard deviations of the observations.
    """
    rows = {}
    seeds = harness.choose(scale, [0], range(2)) if seeds is None else seeds
    for panel in panels:
        problem = PANELS[panel].make()
        told, wide = state(problem, 30, seeds), 1024 if problem.space.context_dim > 2 else 2048
        for name in POLICIES:

            def ready(samples: int, told: Mapping[str, Tensor] = told, **options: Any) -> ContextPolicy:
                policy = Entry(panel, {}).policy(name, problem, samples, **options)  # noqa: B023
                policy.start(list(seeds))
                policy.tell(told["query"], told["y"], context=told["context"])
                return policy

            prior = ready(64).posteriors().prior
            large = ready(wide, prior=prior)
            acquisition, box = large.acquisition(large.posteriors()), problem.space.decisions
            sobol = torch.quasirandom.SobolEngine(problem.space.decision_dim, scramble=True, seed=1)
            raw = torch.lerp(box[0], box[1], sobol.draw(256, dtype=box.dtype).to(box))
            best = maximize_box(acquisition.values, box, raw, 4, 60)[1]
            row = []
            for options in EFFORTS.values():
                options = dict(GRIDS if options and problem.space.context_dim > 2 else options)
                asked = ready(options.pop("samples", 1024), prior=prior, **options).ask()
                with torch.no_grad():
                    lost = best - acquisition.values(asked.unsqueeze(-2))[:, 0]
                lost = (lost / told["y"].std(-1)).clamp_min(0.0)
                row += [round(float(lost.mean()), 5), round(float(lost.max()), 5)]
            rows[f"{panel}, {name}"] = row
    columns = [f"{name}, {part}" for name in EFFORTS for part in ("mean", "largest")]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)
