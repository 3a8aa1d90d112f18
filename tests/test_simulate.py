from typing import ClassVar

import numpy as np
import pytest
import torch

from cbo_lib.former import history as history_module
from cbo_lib.former.simulate import ObservationError, simulate
from tests.oracles import condition, rbf
from tests.toys import UCB, Broken, Bumps, Random, Rows, Thompson

F64 = torch.float64
POLICIES = [UCB, Thompson, Random]


def run(policy=UCB, steps=8, seeds=(0, 1, 2), problem=None, **options):
    return simulate(problem or Bumps(), policy(), steps, seeds, **options)


def equal(one, other):
    assert list(one.tensors) == list(other.tensors)
    for name in one.tensors:
        assert one[name].dtype == other[name].dtype and torch.allclose(one[name], other[name]), name
    assert list(one.seeds) == list(other.seeds) and one.config == other.config


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_seeds_give_equal_runs_and_other_seeds_others(policy):
    one, other = run(policy, 12, [3, 3, 5]), run(policy, 12, [3, 3, 5])
    assert torch.equal(one["query"], other["query"]) and torch.allclose(one["observation"], other["observation"])
    assert torch.allclose(one["observation"][0], one["observation"][1])
    assert not torch.allclose(one["observation"][0], one["observation"][2])


def test_the_loop_is_ucb_by_the_textbook():
    """Replicate 1 again, its posterior computed anew each round by dense formulas."""
    h = run(UCB, 12)
    x = np.linspace(0, 1, 15)[:, None]
    every = [(point[None], np.ones(1)) for point in x]
    for t in range(12):
        seen, y = h["query"][1, :t].tolist(), h["observation"][1, :t].numpy()
        if t:
            mean, cov = condition(lambda a, b: rbf(a, b, 0.15), [every[i] for i in seen], y, 0.1, every)
            scores = mean + 2 * np.sqrt(np.diag(cov))
        else:
            scores = np.full(15, 2.0)
        assert scores[int(h["query"][1, t])] >= scores.max() - 1e-9
        if t:
            assert int(h["recommendation"][1, t - 1]) == int(mean.argmax())


def test_what_is_recorded():
    h = run(steps=8, seeds=[5, 6])
    assert list(h.tensors) == [
        "query", "observation", "value", "recommendation", "recommended_value", "width", "means",
    ]  # fmt: skip
    assert h["query"].shape == h["value"].shape == (2, 8) and h["means"].shape == (2, 8, 15)
    assert torch.allclose(h["value"], Bumps().value(h["query"]))
    assert torch.allclose(h["recommended_value"], Bumps().value(h["recommendation"]))
    assert torch.equal(h["recommendation"], h["means"].argmax(-1))  # after the step, not before
    assert h.seeds == [5, 6] and (h.replicates, h.steps) == (2, 8)
    codes = [h.config["problem"].pop("class code"), h.config["policy"]["space"].pop("class code")]
    assert all(code.startswith("crc32 ") for code in codes)
    assert h.config == {
        "problem": {"class": "Bumps", "count": 15, "noise_std": 0.1, "device": "cpu"},
        "policy": {
            "class": "UCB",
            "name": "finite",
            "space": {"class": "Grid", "count": 15, "device": "cpu"},
            "initial": 0,
            "resolution": 2**-13,
            "sqrt_beta": 2.0,
        },
    }
    assert h.provenance["device"] == "cpu" and "torch" in h.provenance["versions"]


def test_noise_has_the_standard_deviation_that_the_problem_states():
    h = run(Random, 50, range(40))
    z = (h["observation"] - h["value"]) / 0.1
    assert abs(float(z.mean())) < 5 / z.numel() ** 0.5 and abs(float(z.std()) - 1) < 5 / (2 * z.numel()) ** 0.5


def test_a_history_of_a_run_survives_saving(tmp_path):
    h = run(Thompson)
    h.save(tmp_path / "run.npz")
    loaded = history_module.History.load(tmp_path / "run.npz")
    equal(h, loaded)
    assert loaded.provenance == h.provenance


# Progress


def test_a_progress_bar_shows_on_request(capsys):
    run(progress=True)
    err = capsys.readouterr().err
    assert "UCB" in err and "8/8" in err


# Bad observations


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_observation_stops_the_run_with_the_history_up_to_it(bad):
    with pytest.raises(
        ObservationError,
        match=r"observations must be finite, got a NaN or an infinity at step 4 for seeds \[8\]",
    ) as caught:
        run(problem=Broken(bad=bad), seeds=[5, 8, 2])
    h = caught.value.history
    assert isinstance(caught.value, ValueError) and h.steps == 3 and h.seeds == [5, 8, 2]
    reference = run(steps=3, seeds=[5, 8, 2])
    for name in reference.tensors:
        assert torch.allclose(h[name], reference[name])


# More than one number a round


class Last(UCB):
    """Is shown a context too, and keeps it."""

    sees: ClassVar = {"context": 0}


def test_all_that_is_seen_is_told_and_recorded():
    policy = Last()
    h = simulate(Rows(), policy, 6, [3, 4, 5])
    context, y = h["context"], h["observation"]
    assert torch.equal(policy.data["context"], context) and torch.equal(policy.data["y"], y)
    assert bool(((context >= 0) & (context <= 1)).all()) and context.unique().numel() == 18
    assert 0 < (y - h["value"]).abs().max() < 1


def test_what_was_played_is_told_in_the_place_of_what_was_asked():
    class Clumsy(Bumps):
        def observe(self, query, generators):
            played = (query + 1) % 15
            return {"played": played, "y": super().observe(played, generators)}

    policy = UCB()
    h = simulate(Clumsy(), policy, 6, [3, 4])
    assert torch.equal(h["played"], (h["query"] + 1) % 15) and torch.equal(policy.data["query"], h["played"])


# Stopping


class Spending(UCB):
    """Pays a random price a step, and records the step and what it has spent."""

    def begin(self):
        super().begin()
        self._spent, self._step = torch.zeros(self.replicates, dtype=F64), 0

    def learn(self, row, asked):
        super().learn(row, asked)
        self._spent = self._spent + torch.stack([torch.rand((), generator=g, dtype=F64) for g in self.generators])
        self._step += 1

    def record(self):
        return {"spent": self._spent, "step": torch.full_like(self._spent, self._step)}


def broke(record):
    return record["spent"] >= 3.0


def at(*steps):
    """Says yes of each replicate in one step and never again."""
    return lambda record: record["step"] == torch.tensor(steps, dtype=F64)


def test_a_run_stops_once_every_replicate_is_done():
    seeds = [0, 1, 2, 3]
    h, whole = run(Spending, 40, seeds, stop=broke), run(Spending, 40, seeds)
    steps = (whole["spent"] < 3.0).sum(-1) + 1  # each replicate's own
    assert h.steps == int(steps.max()) and len(set(steps.tolist())) > 1 and h.steps < 40
    assert bool((h["spent"][:, -1] >= 3.0).all()) and bool((h["spent"][:, -2] < 3.0).any())
