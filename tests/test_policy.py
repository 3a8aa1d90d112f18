"""The base of all policies: a single run in the user's forms, a batch, and what is refused."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbo_lib.former.policy import Policy
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators, standard_normal

F64 = torch.float64
X0, Y0, C0 = [[1.0, 2.0], [3.0, 1.0], [0.5, 0.5]], [0.1, 0.4, -0.2], [[1.0], [2.0], [3.0]]


@dataclass(frozen=True)
class Box:
    bounds: torch.Tensor

    @property
    def like(self):
        return self.bounds


BOX = Box(torch.tensor([[0.0, 0.0], [4.0, 2.0]], dtype=F64))


class Sampler(Policy):
    """Asks the best of some random points under a draw of the posterior; two rounds of design; sees a context."""

    sees: ClassVar = {"context": 1, "price": 0}
    optional: ClassVar = frozenset({"price"})

    def __init__(self, space=BOX, *, seed=0, initial=2, budget=float("inf"), **options):
        super().__init__(space, seed=seed, initial=initial, **options)
        self.budget = budget
        self.gp = GaussianProcess(rbf_kernel(1.0), 0.1)

    def begin(self):
        self.learned = []
        self.grown = self.gp.posterior(self.replicates)

    def design(self, n):
        return self.rounded(self.sobol(n, self.space.bounds), self.space.bounds)

    def propose(self):
        points = self.rounded(self.sobol(16, self.space.bounds), self.space.bounds)
        best = self.grown.sample(Measure.dirac(points), 1, self.generators).squeeze(-2).argmax(-1)
        return points[torch.arange(len(best)), best]

    def learn(self, row, asked):
        self.learned.append((row, asked))
        self.grown = self.grown.extend(Measure.dirac(row["query"].unsqueeze(1)), row["y"].unsqueeze(1))
        self.active = self.active & (self.count + 1 < self.budget)

    def best(self):
        return self.data["query"][torch.arange(self.replicates), self.data["y"].argmax(-1)]

    def record(self):
        return {"learned": torch.full_like(self.data["y"][:, -1], len(self.learned))}

    def posteriors(self):
        return self.grown


@dataclass(frozen=True)
class Plant:
    def value(self, query):
        return query.sin().sum(-1)

    def observe(self, query, generators):
        context = standard_normal(generators, (1,), query)
        return {"y": self.value(query) + 0.1 * context.squeeze(-1), "context": context}


def play(policy, seed, steps):
    """By hand what ``simulate`` does for one replicate."""
    noise, asked = ReplicateGenerators([seed], stream=0), []
    for t in range(1, steps + 1):
        x = policy.ask()
        seen = Plant().observe(x.unsqueeze(0), noise.at(t))
        policy.tell(x, seen["y"][0], context=seen["context"][0])
        asked.append(x)
    return torch.stack(asked) if asked else None


def test_a_single_run_has_no_replicate_axis():
    policy = Sampler()
    assert policy.ask().shape == (2,)
    policy.tell(policy.ask(), 0.3, context=[0.1])
    assert policy.recommend().shape == (2,) and policy.count == 1 and policy.replicates == 1
    assert policy.posterior.batch_shape == torch.Size([])
    assert policy.posterior.mean(Measure.dirac(torch.zeros(3, 2, dtype=F64))).shape == (3,)
    policy.start([0, 1, 2])
    assert policy.ask().shape == (3, 2) and policy.count == 0
    assert policy.posterior.batch_shape == torch.Size([3])


def test_asking_twice_asks_the_same():
    policy = Sampler()
    play(policy, 0, 3)
    assert torch.equal(policy.ask(), policy.ask())


FORMS = {
    "lists": (X0, Y0, C0),
    "arrays": (np.array(X0), np.array(Y0), np.array(C0)),
    "tensors": (torch.tensor(X0), torch.tensor(Y0), torch.tensor(C0, dtype=F64)),
    "frames": (pd.DataFrame(X0), pd.Series(Y0), pd.DataFrame(C0)),
    "columns": (pd.DataFrame(X0), pd.DataFrame(Y0), C0),
}


@pytest.mark.parametrize("form", FORMS)
def test_old_data_come_in_any_form_and_as_many_rows_as_there_are(form):
    x, y, c = FORMS[form]
    policy, one_by_one = Sampler(), Sampler()
    policy.tell(x, y, context=c)
    for row in zip(X0, Y0, C0, strict=True):
        one_by_one.tell(row[0], row[1], context=row[2])
    assert policy.count == one_by_one.count == 3
    assert policy.data["query"].shape == (1, 3, 2) and policy.data["price"].isnan().all()
    torch.testing.assert_close(policy.data["y"], one_by_one.data["y"], rtol=1e-6, atol=0)
    if form != "tensors":  # single precision
        assert torch.equal(policy.ask(), one_by_one.ask())
    assert policy.ask().dtype == F64


def test_a_batch_takes_several_rows_too():
    policy, rows = Sampler(), torch.rand(2, 3, 2, dtype=F64)
    policy.start([1, 2])
    policy.tell(rows, rows.sum(-1), context=rows[..., :1])
    assert policy.count == 3 and torch.equal(policy.data["query"], rows)


def test_a_finished_run_says_so():
    policy = Sampler(budget=3)
    play(policy, 0, 3)
    assert policy.finished and not Sampler().finished
    with pytest.raises(ValueError, match="the run is over"):
        policy.ask()


@pytest.mark.parametrize(("sqrt_beta", "expected"), [(0.0, [0.0, 0.0]), (3, [3, 3]), (lambda t: 1.0 / t, [1.0, 0.25])])
def test_sqrt_beta_is_a_number_or_a_function_of_the_round(sqrt_beta, expected):
    policy = Sampler(sqrt_beta=sqrt_beta)
    policy.ask()
    first = policy.multiplier()
    play(policy, 0, 3)
    assert [first, policy.multiplier()] == expected


@given(st.floats(0, 4), st.floats(0, 2), st.sampled_from([2**-4, 2**-13, 0.3]))
def test_queries_have_the_resolution_of_the_box(a, b, resolution):
    x = torch.tensor([a, b], dtype=F64)
    rounded = Sampler(resolution=resolution).rounded(x, BOX.bounds)
    side = BOX.bounds[1] - BOX.bounds[0]
    inside = rounded < BOX.bounds[1]
    steps = rounded / side / resolution
    assert bool((((steps - steps.round()).abs() < 1e-9) | ~inside).all())
    assert bool(((rounded - x).abs() <= resolution * side / 2 + 1e-9).all())
    assert torch.equal(Sampler(resolution=None).rounded(x, BOX.bounds), x)


def test_starting_again_forgets_everything():
    policy = Sampler()
    first = play(policy, 0, 4)
    policy.start([0])
    assert policy.count == 0 and not policy.learned
    assert torch.equal(policy.ask()[0], first[0])


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"query": X0, "y": Y0}, r"tell takes query, y, context, price; context is missing$"),
        ({"query": X0, "y": Y0, "context": None}, r"tell takes query, y, context, price; context is missing$"),
        ({"query": X0, "y": Y0, "context": C0, "wind": 1}, r"; wind is unknown$"),
        ({"query": X0, "y": Y0[:2], "context": C0}, "y must hold as many rows as query, 3, got 2"),
        ({"query": X0, "y": Y0, "context": C0[:2]}, "context must hold as many rows as query, 3, got 2"),
        ({"query": X0, "y": [0.0, float("nan"), 1.0], "context": C0}, "y must be finite"),
        ({"query": X0, "y": Y0, "context": [[1.0], [float("inf")], [0.0]]}, "context must be finite"),
        ({"query": [X0], "y": Y0, "context": C0}, "query must have 1 dimensions, or 2 for several"),
        ({"query": "somewhere", "y": 0.0, "context": [0.0]}, "query must be numbers"),
        ({"query": [1.0, 2.0, 3.0], "y": 0.0, "context": [0.0]}, r"query must have the shape \(2,\) of those told"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_learned(told, match):
    policy = Sampler()
    policy.tell(X0, Y0, context=C0)
    before = policy.ask()
    with pytest.raises(ValueError, match=match):
        policy.tell(**told)
    assert policy.count == 3 and torch.equal(policy.ask(), before)


def test_recommend_and_trace_need_something_to_speak_of():
    policy = Sampler()
    with pytest.raises(ValueError, match="recommend must follow an observation"):
        policy.recommend()
    with pytest.raises(ValueError, match="trace must follow ask and tell"):
        policy.trace()
    play(policy, 0, 1)
    policy.ask()
    with pytest.raises(ValueError, match="trace must follow ask and tell"):
        policy.trace()
