"""The same choices on a GPU as on the CPU."""

import pytest
import torch

from book.indirect.problems import unit_grid
from cbo_lib.indirect import CMES, CMETS, ClippedGaussian, Nodes
from tests.accelerator import DEVICE, NEEDED
from tests.indirect.helpers import UNIT, identity, known, problem_of, ripple, run

pytestmark = NEEDED


@pytest.mark.parametrize("settings", [{}, {"sampling": "thompson"}, {"noisy": True, "samples": 2}])
def test_cmes_asks_the_same(settings):
    histories = []
    for device in ("cpu", DEVICE):
        grid = unit_grid(6).to(device)
        problem = problem_of(ripple, grid, grid, ClippedGaussian(identity, 0.1, UNIT.to(device)), 0.2, order=15)
        histories.append(run(problem, CMES(problem.space, prior=known(problem), initial=2, **settings), 5))
    on_cpu, on_gpu = histories
    assert on_gpu["query"].device.type == DEVICE
    assert torch.equal(on_gpu["query"].cpu(), on_cpu["query"])
    torch.testing.assert_close(on_gpu["mean"].cpu(), on_cpu["mean"], rtol=0, atol=1e-7)


def test_cmets_asks_the_same():
    queries = []
    for device in ("cpu", DEVICE):
        nodes = Nodes.complete(UNIT.to(device), 3)
        cost = nodes.cost()
        conditional = ClippedGaussian(identity, 0.1, UNIT.to(device))
        problem = problem_of(ripple, unit_grid(6).to(device), nodes.actions, conditional, 0.5 / cost, cost, 15)
        queries.append(
            run(problem, CMETS(problem.space, nodes=nodes, prior=known(problem), budget=10.0), 5)["query"].cpu()
        )
    assert torch.equal(*queries)
