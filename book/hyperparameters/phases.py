"""Where the claims of Figure 2 hold: every panel over what the paper leaves open.

    python -m book.hyperparameters.phases                    # lists the panels
    python -m book.hyperparameters.phases mean               # makes results/phases-mean.json
    python -m book.hyperparameters.phases mean --device cuda --workers 6

A table has one row for each setting, horizon and policy: regret over 200 seeds, and the paired difference to HE-GP-UCB
of the same seeds. What is stored is one run's; other processors may differ in the last digits of a run.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from book.harness import load_table, save_table
from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.problems import (
    DECOMPOSITIONS,
    LENGTHSCALES,
    decomposition_candidates,
    draws_of_candidates,
    four_sines,
    hidden_corner,
    hill_candidates,
    landscape_problem,
    lengthscale_candidates,
    period_candidates,
    random_truth,
    slope_and_peak,
)
from book.hyperparameters.regret import cumulative_regret, simple_regret
from book.hyperparameters.slips import printed_sqrt_beta
from book.hyperparameters.variants import READINGS, EveryoneTested, TemperedUCB
from book.hyperparameters.widths import frequentist_sqrt_beta
from book.verdict import paired
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.hyperparameters import AGPUCB, HEGPUCB, AveragedUCB, Candidates, MaximumLikelihood, Space
from cbo_lib.measure import Function
from cbo_lib.simulate import simulate

#: A run has failed if it never came this near to the optimum, in units of f.
NEAR = 0.1
QUANTILES = (0.1, 0.5, 0.9)
RESULTS = Path(__file__).parent / "results"
Setting = Mapping[str, Any]


def settings(panel: str) -> list[Setting]:
    """What is varied in a panel of Figure 2."""
    readings = ("printed", "root", "half", "derived")
    if panel == "lengthscale":
        peak = grid(reading=("peak",), multiplier=readings, noise=(0.01, 0.1, 0.5), norm=(1.0, 2.0, 4.0))
        return peak + grid(reading=("density",), multiplier=readings, noise=(0.01, 0.1, 0.5), norm=(2.0,))
    if panel == "period":
        return grid(shared=(None, 0.16, 0.4, 0.83), multiplier=readings, noise=(0.03, 0.1, 0.5), norm=(2.0,))
    if panel == "decomposition":
        family = grid(hills=(0.5, 1.0), peak=(1.5, 2.0), width=(0.1, 0.15, 0.25), multiplier=readings, noise=(0.1,))
        return family + grid(hills=(1.0,), peak=(1.5,), width=(0.15,), multiplier=readings, noise=(0.03, 0.5))
    if panel == "mean":
        hills = ((2.0, 2.0), (5.0, 2.0), (5.0, 5.0), (2.0, 10.0))
        return [
            {"height": height, "extra": extra, **rest}
            for height, extra in hills
            for rest in grid(multiplier=readings[:3], noise=(0.03, 0.1, 0.5))
        ]
    if panel == "landscape":
        return grid(multiplier=readings[:3], noise=(0.1,))
    raise ValueError(f"panel must be one of {', '.join(PANELS)}, got {panel!r}")


def grid(**values: Sequence[Any]) -> list[Setting]:
    """All combinations."""
    return [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]


def moved(candidates: Candidates, device: str) -> Candidates:
    """Candidates on another device; their kernels are moved in place."""
    return Candidates(candidates.names, tuple(k.to(device) for k in candidates.kernels), candidates.means)


def line(low: float, high: float, count: int, device: str) -> Tensor:
    """Equally spaced points ``count x 1``."""
    return torch.linspace(low, high, count, dtype=torch.float64)[:, None].to(device)


def multiplier(space: Space, setting: Setting, steps: int, initial: int) -> Callable[[int], Tensor]:
    """The multipliers of a frequentist panel as the setting reads them."""
    norm, reading = setting.get("norm", 2.0), setting["multiplier"]
    if reading == "derived":
        kernel = space.candidates.prior(space.noise_std).kernel
        return frequentist_sqrt_beta(kernel, space.finite(), space.noise_std, norm, steps, initial)
    return partial(_read, reading, printed_sqrt_beta(space, norm, steps, initial))


def _read(reading: str, schedule: Callable[[int], Tensor | float], t: int) -> Tensor:
    return READINGS[reading](torch.as_tensor(schedule(t)))


def lengthscale(setting: Setting, seeds: Sequence[int], device: str) -> Iterator[dict[str, Any]]:
    """Figure 2a."""
    points = line(0, 1, 500, device)
    space = Space(moved(lengthscale_candidates(LENGTHSCALES), device), points=points, noise_std=setting["noise"])
    problem = UnknownPriorProblem(space, partial(slope_and_peak, reading=setting["reading"]), truth=0)
    schedule = multiplier(space, setting, 50, 3)
    more = {"A-GP-UCB": AGPUCB(space, lengthscales=LENGTHSCALES, sqrt_beta=schedule, initial=3)}
    return rows(problem, schedule, 50, 3, seeds, (50,), more)


def period(setting: Setting, seeds: Sequence[int], device: str) -> Iterator[dict[str, Any]]:
    """Figure 2b."""
    noise, points = setting["noise"], line(0, 2, 500, device)
    candidates = moved(period_candidates(four_sines, setting["shared"], noise), device)
    space = Space(candidates, points=points, noise_std=noise)
    problem = UnknownPriorProblem(space, four_sines, truth=0)
    return rows(problem, multiplier(space, setting, 50, 5), 50, 5, seeds, (50,))


def decomposition(setting: Setting, seeds: Sequence[int], device: str) -> Iterator[dict[str, Any]]:
    """Figure 2c, on a family of functions with the property that the paper describes."""
    points = torch.cartesian_prod(*[torch.linspace(0, 1, n, dtype=torch.float64) for n in (15, 15, 5)]).to(device)
    candidates = moved(decomposition_candidates(DECOMPOSITIONS, 0.3), device)
    space = Space(candidates, points=points, noise_std=setting["noise"])
    f = partial(hidden_corner, **{name: setting[name] for name in ("hills", "peak", "width")})
    problem = UnknownPriorProblem(space, f, truth=1)
    return rows(problem, multiplier(space, setting, 100, 3), 100, 3, seeds, (25, 50, 100))


def mean(setting: Setting, seeds: Sequence[int], device: str) -> Iterator[dict[str, Any]]:
    """Figure 2d."""
    candidates = hill_candidates(setting["height"], setting["extra"])
    truth, points = random_truth(len(candidates), seeds), line(0, 1, 200, "cpu")
    values = draws_of_candidates(candidates, truth, seeds)(points.expand(len(seeds), -1, -1)).to(device)
    space = Space(moved(candidates, device), points=points.to(device), noise_std=setting["noise"])
    problem = UnknownPriorProblem(space, looked_up(values), truth=truth.to(device), replicates=len(seeds))
    schedule = partial(_read, setting["multiplier"], partial(union_bound_sqrt_beta, 200, failure=0.05))
    return rows(problem, schedule, 100, 0, seeds, (50, 100))


def landscape(setting: Setting, seeds: Sequence[int], device: str) -> Iterator[dict[str, Any]]:
    """The highest place of a real landscape; no candidate is true, so what is said of the truth means nothing."""
    candidates, points, f = landscape_problem()
    space = Space(moved(candidates, device), points=points.to(device), noise_std=setting["noise"])
    schedule = partial(_read, setting["multiplier"], partial(union_bound_sqrt_beta, len(points), failure=0.05))
    return rows(UnknownPriorProblem(space, f, truth=0), schedule, 60, 4, seeds, (60,))


def looked_up(values: Tensor) -> Function:
    """The function of equally spaced points of [0, 1] with these values, ``replicates x n``."""
    last = values.shape[-1] - 1

    def f(points: Tensor) -> Tensor:
        index = (points[..., 0] * last).round().long()
        return values.gather(-1, index.reshape(len(values), -1)).reshape(index.shape)

    return f


def rows(
    problem: UnknownPriorProblem,
    schedule: Callable[[int], Tensor],
    steps: int,
    initial: int,
    seeds: Sequence[int],
    horizons: Sequence[int],
    more: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Run the policies and give one row for each horizon and policy."""
    options: dict[str, Any] = {"sqrt_beta": schedule, "initial": initial}
    policies = {
        "HE-GP-UCB": HEGPUCB(problem.space, **options),
        "everyone tested": EveryoneTested(problem.space, **options),
        "no elimination": HEGPUCB(problem.space, elimination="never", **options),
        "MLE": MaximumLikelihood(problem.space, **options),
        "ExpectedUCB": AveragedUCB(problem.space, **options),
        "tempered": TemperedUCB(problem.space, **options),
        **(more or {}),
    }
    runs: dict[str, tuple[Tensor, Tensor]] = {}
    left: dict[str, Tensor] = {}
    for name, policy in policies.items():
        history = simulate(problem, policy, steps + initial, seeds)
        curves = [notion(history, problem).cpu() for notion in (cumulative_regret, simple_regret)]
        runs[name] = curves[0], curves[1]
        if "alive" in history.tensors:
            left[name] = history["alive"][:, initial:].cpu()
    truth = torch.as_tensor(problem.truth).cpu().expand(len(seeds))
    for name, horizon in itertools.product(runs, horizons):
        (cumulative, best), at = runs[name], horizon - 1
        regret = cumulative[:, at]
        row = {"policy": name, "horizon": horizon, "mean": regret.mean(), "error": regret.std() / len(seeds) ** 0.5}
        row |= {f"q{100 * q:.0f}": regret.quantile(q) for q in QUANTILES}
        row |= {"best": best[:, at].mean(), "failed": (best[:, at] > NEAR).double().mean()}
        if name in left:
            row["left"] = left[name][:, at].sum(-1).double().mean()
            row["lost"] = 1 - left[name][:, at].gather(-1, truth[:, None]).double().mean()
        own = runs["HE-GP-UCB"][0]
        pairs = {
            "end": (own[:, at], regret),
            "rounds": (own[:, :horizon].mean(-1), cumulative[:, :horizon].mean(-1)),
            "mle": (regret, runs["MLE"][0][:, at]),
        }
        for when, pair in pairs.items():
            found = paired(*pair)
            row |= {f"{when}_{key}": getattr(found, key) for key in ("mean", "low", "high")}
            if when == "end":
                row["end_median"] = found.median
        row["wins"] = (own[:, at] < regret - 1e-9).double().mean()
        yield {key: round(float(v), 3) if isinstance(v, (float, Tensor)) else v for key, v in row.items()}


PANELS = {
    "lengthscale": lengthscale,
    "period": period,
    "decomposition": decomposition,
    "mean": mean,
    "landscape": landscape,
}


def one(panel: str, setting: Setting, seeds: Sequence[int], device: str) -> list[dict[str, Any]]:
    """All rows of one setting."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    found = [{**setting, **row} for row in PANELS[panel](setting, seeds, device)]
    print(panel, dict(setting), f"{time.perf_counter() - start:.0f} s", flush=True)
    return found


def table(panel: str, seeds: Sequence[int], device: str = "cpu", workers: int = 1) -> pd.DataFrame:
    """All settings of a panel."""
    work = partial(one, panel, seeds=seeds, device=device)
    if workers == 1:
        parts = list(map(work, settings(panel)))
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(work, settings(panel)))
    frame = pd.DataFrame([row for part in parts for row in part])
    frame.attrs = {"command": f"python -m book.hyperparameters.phases {panel}", "seeds": len(seeds), "near": NEAR}
    return frame


def stored(panel: str) -> pd.DataFrame:
    """The stored table of a panel."""
    return load_table(RESULTS / f"phases-{panel}.json")


def main() -> None:
    """Make the tables by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("panels", nargs="*", help=", ".join(PANELS))
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    print("\n".join(PANELS) if not chosen.panels else "")
    for panel in chosen.panels:
        frame = table(panel, range(chosen.seeds), chosen.device, chosen.workers)
        chosen.out.mkdir(parents=True, exist_ok=True)
        save_table(frame, chosen.out / f"phases-{panel}.json")


if __name__ == "__main__":
    main()
