"""A learned lengthscale is that of the largest marginal likelihood."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from book.indirect.controls import RandomQueries
from book.indirect.online import online
from book.indirect.problems import known_prior
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMES, ActionPolicy
from cbo_lib.kernels import rbf_kernel
from tests.indirect.helpers import square

LENGTHS = (0.1, 0.3, 0.8)


@pytest.fixture(scope="module")
def problem():
    return square()


def bank(problem):
    return [known_prior(problem.space, length) for length in LENGTHS]


def test_the_belief_is_that_of_the_likeliest_prior(problem):
    policy = online(RandomQueries)(problem.space, bank=bank(problem), initial=2)
    history = simulate(problem, policy, 9, [0, 4, 6], progress=False)
    for r in range(3):
        asked, y = history["query"][r].numpy(), history["observation"][r].numpy()
        grams = [prior.kernel.gram.numpy() for prior in bank(problem)]
        noise = 0.2**2 * np.eye(9)
        likelihood = [multivariate_normal(cov=g[np.ix_(asked, asked)] + noise).logpdf(y) for g in grams]
        best = int(np.argmax(likelihood))
        assert int(policy.belief.chosen[r]) == best
        gram = grams[best]
        mean = gram[:, asked] @ np.linalg.solve(gram[np.ix_(asked, asked)] + noise, y)
        np.testing.assert_allclose(policy.mean[r], mean, atol=1e-8)


def test_one_lengthscale_is_no_choice(problem):
    single = bank(problem)[1:2]
    on_g = GaussianProcess(rbf_kernel(0.3), 0.2)
    pairs = [
        (online(CMES)(problem.space, bank=single, initial=2), CMES(problem.space, prior=single[0], initial=2)),
        (
            online(ActionPolicy)(problem.space, acquisition="ei", bank=single, action_bank=[on_g], initial=2),
            ActionPolicy(problem.space, acquisition="ei", prior=single[0], action_prior=on_g, initial=2),
        ),
    ]
    for learned, fixed in pairs:
        a, b = (simulate(problem, policy, 6, [1, 2], progress=False) for policy in (learned, fixed))
        assert torch.equal(a["query"], b["query"])
        np.testing.assert_allclose(a["recommended_value"], b["recommended_value"])
