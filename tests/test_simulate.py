import os
import pickle
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from book.harness import rounds
from cbo_lib.former import history as history_module
from cbo_lib.former.simulate import ObservationError, simulate
from tests.oracles import condition, rbf
from tests.toys import UCB, Broken, Bumps, Finite, Random, Rows, Thompson, Watched

F64 = torch.float64
POLICIES = [UCB, Thompson, Random]


def run(policy=UCB, steps=8, seeds=(0, 1, 2), problem=None, **options):
    return simulate(problem or Bumps(), policy(), steps, seeds, **options)


def equal(one, other):
    assert list(one.tensors) == list(other.tensors)
    for name in one.tensors:
        assert one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]), name
    assert list(one.seeds) == list(other.seeds) and one.config == other.config


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replicate_is_the_same_alone_or_among_thirty(policy):
    together, alone = run(policy, 20, range(30)), run(policy, 20, [7])
    assert torch.equal(together["query"][7], alone["query"][0])
    assert torch.equal(together["recommendation"][7], alone["recommendation"][0])
    for name in ("observation", "value", "recommended_value", "width", "means"):
        torch.testing.assert_close(together[name][7], alone[name][0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
def test_replicates_do_not_depend_on_their_company(policy):
    one, other = run(policy, 10, [4, 7, 9]), run(policy, 10, [9, 100, 7, 0])
    assert torch.equal(one["query"][1], other["query"][2]) and torch.equal(one["query"][2], other["query"][0])


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_seeds_give_equal_runs_and_other_seeds_others(policy):
    one, other = run(policy, 12, [3, 3, 5]), run(policy, 12, [3, 3, 5])
    equal(one, other)
    assert torch.equal(one["observation"][0], one["observation"][1])
    assert not torch.equal(one["observation"][0], one["observation"][2])


def test_the_state_of_torch_does_not_matter():
    one = run(Thompson)
    torch.rand(17)
    equal(one, run(Thompson))


@pytest.mark.parametrize("policy", [UCB, Random])
def test_fewer_steps_are_the_beginning_of_more(policy):
    short, long = run(policy, 5), run(policy, 9)
    for name in short.tensors:
        assert torch.equal(short[name], long[name][:, :5])


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
    assert torch.equal(h["value"], Bumps().value(h["query"]))
    assert torch.equal(h["recommended_value"], Bumps().value(h["recommendation"]))
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


def test_noise_and_choices_come_from_different_streams():
    drawn = {}

    @dataclass(frozen=True)
    class Noisy(Bumps):
        def observe(self, query, generators):
            drawn.setdefault("noise", []).append(torch.randn(3, generator=generators[0]).tolist())
            return self.value(query)

    class Drawing(Random):
        def propose(self):
            drawn.setdefault("choice", []).append(torch.randn(3, generator=self.generators[0]).tolist())
            return super().propose()

    simulate(Noisy(), Drawing(), 5, [0])
    every = [tuple(z) for stream in drawn.values() for z in stream]
    assert len(every) == len(set(every)) == 10


def test_no_gradients_are_kept():
    class Learning(UCB):
        def record(self):
            return {"grad": torch.tensor([float(torch.is_grad_enabled())] * 3)}

    assert float(run(Learning)["grad"].sum()) == 0


def test_no_steps_make_an_empty_history():
    h = run(steps=0)
    assert h.steps == 0 and dict(h.tensors) == {} and h.replicates == 3


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


@pytest.mark.parametrize("progress", [False, None])
def test_no_progress_bar_shows_otherwise(capsys, progress):
    run(progress=progress)
    assert capsys.readouterr() == ("", "")


# Checkpoints


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path / "side")


def evaluations(tmp_path):
    side = tmp_path / "side"
    return len(side.read_text().splitlines()) if side.exists() else 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_checkpoint_does_not_change_the_run(tmp_path, policy):
    equal(run(policy, checkpoint=tmp_path / "log"), run(policy))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("done", [0, 1, 5, 8])
def test_a_resumed_run_equals_the_uninterrupted_one_and_observes_nothing_twice(tmp_path, watched, policy, done):
    run(policy, done, problem=watched, checkpoint=tmp_path / "log")
    before = evaluations(tmp_path)
    resumed = run(policy, 8, problem=watched, checkpoint=str(tmp_path / "log"))
    assert (before, evaluations(tmp_path)) == (done, 8)
    equal(resumed, run(policy, 8, problem=Watched(tmp_path / "other")))


def test_a_finished_checkpoint_gives_back_the_beginning_of_its_run(tmp_path, watched):
    whole = run(problem=watched, checkpoint=tmp_path / "log")
    short = run(steps=3, problem=watched, checkpoint=tmp_path / "log")
    for name in whole.tensors:
        assert torch.equal(short[name], whole[name][:, :3])
    assert evaluations(tmp_path) == 8


@pytest.mark.parametrize("policy", [UCB, Thompson])
def test_a_killed_run_resumes_and_loses_one_step_at_most(tmp_path, policy):
    script = (
        "import sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from pathlib import Path\n"
        "from cbo_lib.former.simulate import simulate\n"
        f"from tests.toys import {policy.__name__} as Policy, Watched\n"
        "folder = Path(sys.argv[1])\n"
        "simulate(Watched(folder / 'side', 0.05), Policy(), 200, [3, 4], checkpoint=folder / 'log')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment) as process:
        deadline = time.monotonic() + 120
        while evaluations(tmp_path) < 6 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    killed_after = evaluations(tmp_path)
    assert 6 <= killed_after < 200
    steps = killed_after + 4
    resumed = run(policy, steps, [3, 4], Watched(tmp_path / "side"), checkpoint=tmp_path / "log")
    assert steps <= evaluations(tmp_path) <= steps + 1
    equal(resumed, run(policy, steps, [3, 4], Watched(tmp_path / "other")))


def test_a_run_resumes_from_a_torn_record(tmp_path, watched):
    log = tmp_path / "log"
    run(steps=4, problem=watched, checkpoint=log)
    end = log.stat().st_size
    whole = run(steps=5, problem=watched, checkpoint=log)
    content = log.read_bytes()
    for cut in [*range(end, len(content), 211), end + 1, len(content) - 1]:
        log.write_bytes(content[:cut])
        before = evaluations(tmp_path)
        equal(run(steps=5, problem=watched, checkpoint=log), whole)
        assert evaluations(tmp_path) == before + 1
        assert log.read_bytes() == content


def test_an_interrupted_policy_resumes_its_own_run(tmp_path):
    """In a notebook the object that was interrupted is run again; what it learned is no setting."""

    class Counting(UCB):
        def begin(self):
            super().begin()
            self.learned = 0

        def learn(self, row, asked):
            super().learn(row, asked)
            self.learned += 1

    policy = Counting()
    simulate(Bumps(), policy, 5, [1, 2], checkpoint=tmp_path / "log")
    again = simulate(Bumps(), policy, 8, [1, 2], checkpoint=tmp_path / "log")
    for name, tensor in simulate(Bumps(), Counting(), 8, [1, 2]).tensors.items():
        assert torch.equal(again[name], tensor)


@pytest.mark.parametrize(
    "other",
    [
        {"seeds": (0, 1, 3)},
        {"seeds": (0, 1)},
        {"seeds": (1, 0, 2)},
        {"policy": Thompson},
        {"policy": lambda: UCB(name="another")},
        {"problem": Bumps(noise_std=0.2)},
    ],
    ids=[
        "seed",
        "fewer seeds",
        "order of seeds",
        "policy",
        "setting of the policy",
        "setting of the problem",
    ],
)
def test_the_checkpoint_of_another_run_is_refused_and_left_alone(tmp_path, other):
    run(checkpoint=tmp_path / "log")
    before = (tmp_path / "log").read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint must belong to this run, .*, got .*log of .*"):
        run(checkpoint=tmp_path / "log", **other)
    assert (tmp_path / "log").read_bytes() == before


def test_a_checkpoint_with_other_queries_is_refused(tmp_path):
    """The settings that a header can hold are equal; the policy is not."""

    class Greedy(UCB):
        def propose(self):
            return self.tracked.mean.argmax(-1)

    Greedy.__name__ = "UCB"
    run(UCB, checkpoint=tmp_path / "log")
    before = (tmp_path / "log").read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint must belong to this run at step \d+, got other queries in .*log"):
        run(Greedy, checkpoint=tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == before


def test_a_problem_that_differs_in_a_tensor_is_another_run(tmp_path):
    class Table:
        def __init__(self, values):
            self.values = values

        def value(self, query):
            return self.values[query]

        def observe(self, query, generators):
            return self.value(query)

    one, other = torch.zeros(15, dtype=F64), torch.arange(15, dtype=F64)
    simulate(Table(one), Random(), 5, [0], checkpoint=tmp_path / "log")
    with pytest.raises(ValueError, match="checkpoint must belong to this run"):
        simulate(Table(other), Random(), 8, [0], checkpoint=tmp_path / "log")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "log").write_text("notes")
    with pytest.raises(
        ValueError, match="checkpoint must name a log that simulate wrote, no earlier version of it, or a new file"
    ):
        run(checkpoint=tmp_path / "log")
    assert (tmp_path / "log").read_text() == "notes"


# Bad observations


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_observation_stops_the_run_with_the_history_up_to_it(tmp_path, bad):
    log = tmp_path / "log"
    with pytest.raises(
        ObservationError,
        match=r"observations must be finite, got a NaN or an infinity at step 4 for seeds \[8\]",
    ) as caught:
        run(problem=Broken(bad=bad), seeds=[5, 8, 2], checkpoint=log)
    h = caught.value.history
    assert isinstance(caught.value, ValueError) and h.steps == 3 and h.seeds == [5, 8, 2]
    reference = run(steps=3, seeds=[5, 8, 2])
    for name in reference.tensors:
        assert torch.equal(h[name], reference[name])
    # the checkpoint holds the three good steps, however often the next one fails
    size = log.stat().st_size
    with pytest.raises(ObservationError, match="at step 4"):
        run(problem=Broken(bad=bad, after=0), seeds=[5, 8, 2], checkpoint=log)
    assert log.stat().st_size == size
    mended = run(problem=Broken(after=-1), seeds=[5, 8, 2], checkpoint=log)
    equal(mended, run(problem=Broken(after=-1), seeds=[5, 8, 2]))


def test_a_bad_first_observation_leaves_an_empty_history():
    with pytest.raises(ObservationError, match="at step 1 for seeds") as caught:
        run(problem=Broken(after=0))
    assert caught.value.history.steps == 0 and caught.value.history.replicates == 3


@dataclass(frozen=True)
class Frozen(Exception):
    """Takes no attributes."""

    code: int = 3


class Silent(Exception):
    """Has a property where the history goes."""

    @property
    def args(self):
        return ("silent",)


ERRORS = [
    ZeroDivisionError("in f"), torch.linalg.LinAlgError("not positive"), ValueError("no"), OSError(28, "disk full"),
    MemoryError(), KeyboardInterrupt(), SystemExit(3), Frozen(), Silent(),
]  # fmt: skip


PLACES = ["value", "propose", "learn", "best", "record", "stop"]


@pytest.mark.parametrize(
    ("error", "place"), [*((error, "observe") for error in ERRORS), *((ERRORS[0], place) for place in PLACES)], ids=str
)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_every_exception_carries_the_history(tmp_path, error, place, checkpoint):
    left = 3
    if place == "value":  # once a query, and once a recommendation that was not valued in the step before
        named = run(steps=3)["recommendation"].reshape(3, 3, -1)
        left += 1 + int((named[:, 1:] != named[:, :-1]).any(-1).any(0).sum())

    def failing(function):
        def fails(*arguments):
            nonlocal left
            left -= 1
            if left < 0:
                raise error
            return function(*arguments)

        return fails if function.__name__ == place else function

    def stop(record):
        return torch.zeros(3, dtype=torch.bool)

    bumps, log = Bumps(), tmp_path / "log" if checkpoint else None
    problem, good = Problematic(failing(bumps.observe), failing(bumps.value)), Problematic(bumps.observe, bumps.value)
    policy = type("UCB", (UCB,), {name: failing(getattr(UCB, name)) for name in ("propose", "learn", "best", "record")})
    with pytest.raises(type(error)) as caught:
        simulate(problem, policy(), 8, [0, 1, 2], checkpoint=log, stop=failing(stop))
    assert caught.value is error
    h, steps = error.history, 4 if place == "stop" else 3
    assert h.steps == steps and h.seeds == [0, 1, 2]
    reference = run(steps=steps)
    for name in reference.tensors:
        assert torch.equal(h[name], reference[name]) and h[name].device == reference[name].device
    assert error.__notes__[-1] == f"The {steps} steps before this are error.history."
    h.save(tmp_path / "kept.npz")
    if checkpoint:  # and the file is free, and goes on from there
        mended = run(problem=good, checkpoint=log)
        assert all(torch.equal(mended[name], tensor) for name, tensor in run().tensors.items())


class Problematic:
    """Made of two functions that no description sees."""

    def __init__(self, observe, value):
        self._observe, self._value = observe, value

    def observe(self, query, generators):
        return self._observe(query, generators)

    def value(self, query):
        return self._value(query)


def test_an_observation_that_is_no_number_survives_a_pool():
    """Exceptions travel between processes pickled."""
    with pytest.raises(ObservationError) as caught:
        run(problem=Broken())
    back = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(back, ObservationError) and back.history.steps == 3 and str(back) == str(caught.value)


@pytest.mark.parametrize("shape", [(2, 1, 1), (2, 1), (2, 3), (1,), (3,), (3, 2), ()])
def test_observations_of_another_shape_are_refused(tmp_path, shape):
    class Shaped(Bumps):
        def observe(self, query, generators):
            return torch.zeros(shape, dtype=F64)

    message = f"observations must be one value a replicate, y of shape (2,), got {shape}"
    with pytest.raises(ValueError, match=re.escape(message)):
        simulate(Shaped(), Recording(), 3, [0, 1], checkpoint=tmp_path / "log")


@pytest.mark.parametrize("value", [torch.zeros(2, 1), torch.zeros(()), 1.0])
def test_values_of_another_shape_are_refused_at_the_first_step(value):
    class Shaped(Bumps):
        def observe(self, query, generators):
            return torch.zeros(len(query), dtype=F64)

        def value(self, query):
            return value

    with pytest.raises(ValueError, match="values must be one value a replicate, y of shape") as caught:
        simulate(Shaped(), Recording(), 3, [0, 1])
    assert caught.value.history.steps == 0


@pytest.mark.parametrize("name", ["query", "observation", "recommended_value"])
def test_a_problem_does_not_write_over_the_record(name):
    class Showing(Bumps):
        def observe(self, query, generators):
            return {"y": torch.zeros(len(query), dtype=F64), name: torch.zeros(len(query), dtype=F64)}

    with pytest.raises(ValueError, match=re.escape(f"must not use the names ['{name}']")):
        simulate(Showing(), Recording(), 3, [0, 1])


class Recording(Finite):
    """Takes whatever it is told."""

    def propose(self):
        return torch.zeros(self.replicates, dtype=torch.long)

    def learn(self, row, asked):
        pass


def test_a_trace_that_shadows_a_record_is_refused():
    class Shadowing(UCB):
        def record(self):
            return {"value": torch.zeros(3)}

    with pytest.raises(ValueError, match="value"):
        run(Shadowing)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": -1}, "steps must be an integer of at least 0, got"),
        ({"seeds": []}, r"seeds must be (one or more|an integer).*, got"),
        ({"seeds": [1, -2]}, r"seeds must be (one or more|an integer).*, got"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(tmp_path, watched, arguments, message):
    with pytest.raises(ValueError, match=message):
        run(problem=watched, checkpoint=tmp_path / "log", **arguments)
    assert evaluations(tmp_path) == 0 and not (tmp_path / "log").exists()


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


@pytest.mark.parametrize("shape", [(3,), (3, 2), ()])
def test_what_else_is_seen_holds_one_row_a_replicate(shape):
    class Shaped(Bumps):
        def observe(self, query, generators):
            return {"y": torch.zeros(2, dtype=F64), "context": torch.zeros(shape, dtype=F64)}

    with pytest.raises(ValueError, match="observations must hold one row a replicate, got context"):
        simulate(Shaped(), Last(), 3, [0, 1])


def test_a_problem_without_y_is_refused():
    class Mute(Bumps):
        def observe(self, query, generators):
            return {"context": torch.zeros(2, dtype=F64)}

    with pytest.raises(ValueError, match=r"y of shape \(2,\), got the names \['context'\]"):
        simulate(Mute(), Last(), 3, [0, 1])


def test_a_replicate_of_rows_is_the_same_alone_or_in_company(tmp_path):
    together, alone = simulate(Rows(), Last(), 12, range(8)), simulate(Rows(), Last(), 12, [5])
    assert torch.equal(together["query"][5], alone["query"][0])
    torch.testing.assert_close(together["observation"][5], alone["observation"][0], rtol=0, atol=1e-12)
    together.save(tmp_path / "run.npz")
    equal(history_module.History.load(tmp_path / "run.npz"), together)


@pytest.mark.parametrize("done", [1, 5, 8])
def test_rows_are_resumed_from_a_checkpoint(tmp_path, done):
    problem = Watched(tmp_path / "side", bumps=Rows())
    simulate(problem, Last(), done, [3, 4], checkpoint=tmp_path / "log")
    resumed = simulate(problem, Last(), 8, [3, 4], checkpoint=tmp_path / "log")
    assert evaluations(tmp_path) == 8
    equal(resumed, simulate(Watched(tmp_path / "other", bumps=Rows()), Last(), 8, [3, 4]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("places", "seeds"),
    [([("y", 1)], [8]), ([("context", 2)], [2]), ([("y", 0), ("y", 2), ("context", 2)], [5, 2])],
)
def test_a_bad_number_in_one_column_stops_the_run(tmp_path, bad, places, seeds):
    class BrokenRows(Rows):
        def observe(self, query, generators):
            rows = super().observe(query, generators)
            if evaluations(tmp_path) == 3:
                for name, replicate in places:
                    rows[name][replicate] = bad
            with open(tmp_path / "side", "a") as file:
                file.write("evaluated\n")
            return rows

    with pytest.raises(ObservationError, match="got a NaN or an infinity at step 4 for seeds") as caught:
        simulate(BrokenRows(), Last(), 8, [5, 8, 2], checkpoint=tmp_path / "log")
    assert str(caught.value).endswith(f"for seeds {seeds}")
    h = caught.value.history
    assert h["observation"].shape == (3, 3)
    good = simulate(Rows(), Last(), 3, [5, 8, 2])
    assert all(torch.equal(h[name], good[name]) for name in good.tensors)


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
    for name in h.tensors:  # those that were done early went on as they would have
        assert torch.equal(h[name], whole[name][:, : h.steps])
    assert bool((h["spent"][:, -1] >= 3.0).all()) and bool((h["spent"][:, -2] < 3.0).any())


@pytest.mark.parametrize("steps", [(3, 6, 2), (1, 1, 1), (1, 8, 8), (6, 1, 3)])
def test_what_was_said_once_holds(steps):
    assert run(Spending, 8, stop=at(*steps)).steps == max(steps)


@pytest.mark.parametrize("steps", [(1, 1, 9), (9, 9, 9), (0, 3, 4)])
def test_a_replicate_that_is_never_done_keeps_all_going(steps):
    equal(run(Spending, 8, stop=at(*steps)), run(Spending, 8))


def test_stop_sees_every_step_once_as_it_is_recorded():
    seen = []

    def stop(record):
        seen.append(dict(record))
        return torch.zeros(3, dtype=torch.bool)

    h = run(Spending, 5, stop=stop)
    assert len(seen) == 5
    for step, record in enumerate(seen):
        assert list(record) == list(h.tensors)
        assert all(torch.equal(record[name], h[name][:, step]) for name in record)
    assert run(Spending, 0, stop=stop).steps == 0 and len(seen) == 5


def test_a_replicate_does_not_depend_on_when_others_are_done():
    together, alone = run(Spending, 40, [6, 7, 8], stop=broke), run(Spending, 40, [7], stop=broke)
    assert alone.steps <= together.steps and float(alone["spent"][0, -1]) >= 3.0
    assert torch.equal(together["query"][1, : alone.steps], alone["query"][0])
    torch.testing.assert_close(together["spent"][1, : alone.steps], alone["spent"][0], rtol=0, atol=0)


@pytest.mark.parametrize("done", [0, 1, 4, 7, 20])
@pytest.mark.parametrize("stop", [broke, at(3, 5)], ids=["from then on", "once"])
def test_a_stopped_run_resumes_as_if_it_had_not_been_interrupted(tmp_path, watched, stop, done):
    """Also from checkpoints that hold more steps than it needs."""
    uninterrupted = run(Spending, 20, [0, 1], Watched(tmp_path / "other"), stop=stop)
    length = uninterrupted.steps
    assert 4 < length < 20
    run(Spending, done, [0, 1], watched, checkpoint=tmp_path / "log")  # killed, or run on without a stop
    for _ in range(2):
        equal(run(Spending, 20, [0, 1], watched, checkpoint=tmp_path / "log", stop=stop), uninterrupted)
        assert evaluations(tmp_path) == max(done, length)


def test_a_stopped_run_may_go_on_without_its_stop(tmp_path, watched):
    short = run(Spending, 12, [0, 1], watched, checkpoint=tmp_path / "log", stop=at(3, 5))
    assert short.steps == evaluations(tmp_path) == 5
    longer = run(Spending, 12, [0, 1], watched, checkpoint=tmp_path / "log")
    assert longer.steps == evaluations(tmp_path) == 12
    equal(longer, run(Spending, 12, [0, 1], Watched(tmp_path / "other")))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            torch.zeros(3),
            r"stop must give a tensor, one boolean a replicate, shape \(3,\), got torch.float32 of shape \(3,\)",
        ),
        (torch.zeros(3, dtype=torch.long), r"stop must give a tensor, one boolean .* got torch.int64 of shape \(3,\)"),
        (torch.zeros(2, dtype=torch.bool), r"stop must give a tensor, one boolean .* got torch.bool of shape \(2,\)"),
        (
            torch.zeros(3, 1, dtype=torch.bool),
            r"stop must give a tensor, one boolean .* got torch.bool of shape \(3, 1\)",
        ),
        (torch.tensor(True), r"stop must give a tensor, one boolean .* got torch.bool of shape \(\)"),
        (True, r"stop must give a tensor, one boolean a replicate, shape \(3,\), got True"),
        ([True, False, True], r"stop must give a tensor, one boolean a replicate, shape \(3,\), got \[True"),
    ],
)
@pytest.mark.parametrize("recorded", [0, 4])
def test_an_answer_of_another_kind_is_refused(tmp_path, answer, message, recorded):
    run(steps=recorded, checkpoint=tmp_path / "log")
    with pytest.raises(ValueError, match=message):
        run(steps=6, checkpoint=tmp_path / "log", stop=lambda record: answer)
    equal(run(steps=6, checkpoint=tmp_path / "log"), run(steps=6))  # the checkpoint is still good


@pytest.mark.parametrize("policy", [UCB, Thompson])
def test_rounds_are_the_steps_of_one_replicate(policy):
    problem = Bumps()
    told, asked, seen = policy(), [], []
    with torch.no_grad():
        for step, query, shown in rounds(problem, told, 6, 2):
            assert step == len(asked) + 1 == told.count + 1
            asked.append(query)
            seen.append(shown["y"])
            if step % 2:  # else it is told with the next question
                told.tell(**shown)
    alone = simulate(problem, policy(), 6, [2])
    assert torch.equal(torch.stack(asked, 1), alone["query"])
    assert torch.equal(torch.stack(seen, 1), alone["observation"])


def test_a_recommendation_that_stays_is_valued_once():
    calls, bumps = [], Bumps()

    def value(query):
        calls.append(query)
        return bumps.value(query)

    history = simulate(Problematic(bumps.observe, value), UCB(), 8, [0, 1])
    named = history["recommendation"].reshape(2, 8, -1)
    moves = int((named[:, 1:] != named[:, :-1]).any(-1).any(0).sum())
    assert len(calls) == 8 + 1 + moves < 16
    assert torch.equal(history["recommended_value"], bumps.value(history["recommendation"]))
