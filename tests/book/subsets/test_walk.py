"""The walk through the proof and the map of runs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from book import outputs, registry, tasks
from book.subsets import factors, walk
from cbo_lib.former.history import History

RESULTS = Path(walk.__file__).parent / "results"


def test_deterministic_steps_hold_in_stored_runs() -> None:
    problem, process = walk.setup("plant", "x64")
    history = History.load(walk.file_of(RESULTS, "plant", "x64"))
    steps = walk.steps(history, problem, process)
    for name in (
        "3 others, explored",
        "4 Lemma 6",
        "6 least under average",
        "7 threshold under U",
        "7 U under today's",
    ):
        assert float(steps[name].kept.min()) == 1.0, name
    radii = steps["10 radii under the new bound"]
    assert bool((radii.left <= radii.right).all())


def test_sum_of_radii_is_below_the_sharper_bound_for_any_plays() -> None:
    generator = torch.Generator().manual_seed(0)
    for tau in (1, 3, 20):
        picks = torch.randint(0, 4, (500,), generator=generator).sort().values if tau == 3 else torch.zeros(500).long()
        counts, total = [tau] * 4, 0.0
        for i in picks.tolist():
            total += counts[i] ** -0.5
            counts[i] += 1
        assert total <= 2 * (4 * 500) ** 0.5


def test_map_holds_twenty_seeds_a_run() -> None:
    runs = factors.load()
    assert {len(run["count"]) for run in runs.values()} == {factors.SEEDS}
    assert all(run["regret"].shape == (factors.SEEDS, 51) for run in runs.values())


def test_a_run_keeps_its_curves_and_every_play(tmp_path: Path) -> None:
    experiment = registry.load("subsets.map")
    names = [f"plant-cheap-0.04-12/pilot/repaired:{repair}" for repair in ("none", "ties")]
    results = {name: experiment.work(name, range(2), "reader", 9) for name in names}
    for file, content in outputs.stored(experiment, results, "").items():
        outputs.put(content, tmp_path / file)
    found = factors.load(tmp_path)
    assert list(found) == names and "plays.subset" not in found[names[0]]
    assert found[names[0]]["plays"][:, -1].sum(-1).tolist() == [9, 9]
    assert factors.plays(names[1], tmp_path)["subset"].shape == (2, 9)
    measures = outputs.scores(experiment, results, tasks.plan("subsets.map", "reader", seeds=range(2), parts=names))
    assert len(measures[names[0]]["measures"]["regret"]) == 2


@pytest.mark.parametrize("name", ["plant-cheap-0.04-12/pilot/repaired:all", "plant-cheap-0.04-25/pilot/proposed"])
def test_stored_plays_give_the_stored_curves(name: str) -> None:
    stored, plays = factors.load()[name], factors.plays(name)
    for key, values in factors.curves_of(plays, name).items():
        np.testing.assert_allclose(values, stored[key], rtol=0, atol=1e-6)


def test_every_run_of_the_map_has_a_name_that_is_run_once() -> None:
    known = list(factors.names())
    assert len(set(known)) == len(known) and set(factors.load()) <= set(known)
    assert all(isinstance(factors.parse(name)[0], factors.Panel) for name in known)


def test_unfitted_prior_is_refused_by_the_walk() -> None:
    with pytest.raises(ValueError, match="prior must be one"):
        walk.setup("plant", "refitted")


def test_priors_of_the_map_differ_as_they_are_named() -> None:
    panel = factors.Panel("plant", "cheap", 0.04, 25)
    found = {name: factors.prior_of(panel, name) for name in ("pilot", "x16", "shared", "shared-x16")}
    kernels = {name: process.kernel for name, process in found.items() if process is not None}
    for wide, narrow in (("x16", "pilot"), ("shared-x16", "shared")):
        torch.testing.assert_close(kernels[wide].outputscale, 16 * kernels[narrow].outputscale)
        assert bool((kernels[wide].base_kernel.lengthscale == kernels[narrow].base_kernel.lengthscale).all())
    assert kernels["shared"].base_kernel.lengthscale.unique().numel() == 1 < panel.problem.space.dim
    assert all(factors.prior_of(panel, name) is None for name in factors.FITTED)


def test_initial_designs_are_of_problems_with_a_set_of_all_variables() -> None:
    assert {name.split("-")[0] for name in factors.names() if "/refitted-5" in name} == {"ackley", "hartmann", "plant"}
    panel = factors.Panel("plant", "cheap", 0.04, 25)
    made = {name: factors.policy_of(panel, name, "UCB-PSQ").model(1) for name in factors.FITTED}
    assert [(model.refit_every, getattr(model, "first", 0)) for model in made.values()] == [(20, 2), (20, 5), (None, 5)]
