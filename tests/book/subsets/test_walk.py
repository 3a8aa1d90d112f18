"""The walk through the proof and the map of runs."""

from pathlib import Path

import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize("name", ["plant-cheap-0.04-12/pilot/repaired:all", "plant-cheap-0.04-25/pilot/proposed"])
def test_stored_plays_give_the_stored_curves(name: str) -> None:
    stored, plays = factors.load()[name], factors.plays(name)
    for key, values in factors.curves_of(plays, name).items():
        np.testing.assert_allclose(values, stored[key], rtol=0, atol=1e-6)
