"""The worst cases for many decisions as one batch against one solve of their convex program for each decision."""

import numpy as np
import pytest
import torch

from cbo_lib.contexts import MMDBall, tv_worst_case
from tests.benchmarks.test_gpoo_speed import in_turn, report
from tests.contexts.programs import mmd_cone, root, tv_dual

F64 = torch.float64
DECISIONS, SAMPLES, CONTEXTS, SEEN = 64, 1024, 100, 100


def confidence_bounds(contexts):
    """Smooth functions of the context, one a decision, as upper confidence bounds are."""
    rng = np.random.default_rng(0)
    rates, shifts, sizes = (rng.uniform(a, b, (DECISIONS, 3, 1)) for a, b in ((1, 9), (0, 6), (0.2, 1)))
    return (sizes * np.sin(rates * contexts + shifts)).sum(1)


@pytest.mark.parametrize("radius", [10 ** (-2 / 5), 100 ** (-2 / 5)])
def test_the_closed_form_is_a_hundred_times_as_fast_as_the_papers_program(benchmark, capsys, radius):
    """The radii of DRBO-KDE at t = 10 and t = 100, for one context dimension."""
    contexts = np.clip(np.random.default_rng(1).normal(0.5, 0.15, SAMPLES), 0, 1)
    values, floor = confidence_bounds(contexts), confidence_bounds(np.linspace(0, 1, SAMPLES)).min(-1)
    floor = np.minimum(floor, values.min(-1))
    given = torch.as_tensor(values), torch.as_tensor(floor), radius

    def library():
        return tv_worst_case(*given)

    def solver():
        return [tv_dual(v, low, radius) for v, low in zip(values, floor, strict=True)]

    fast, slow, found, expected = in_turn(library, solver, 3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)
    benchmark(library)
    title = f"Worst case in total variation, {DECISIONS} decisions, {SAMPLES} samples, radius {radius:.2f}"
    report(capsys, benchmark, (title, "clarabel on the two-dimensional program, one solve a decision"), fast, slow)
    assert slow / fast >= 100


@pytest.mark.parametrize(("lengthscale", "t"), [(0.3, 20), (0.3, 100), (0.3, 350), (0.1, 100), (0.1, 350), (1.0, 100)])
def test_the_batched_cone_is_twenty_times_as_fast_as_a_conic_solver(benchmark, capsys, lengthscale, t):
    """The radius of DRBO-MMD after t contexts, on a grid of one dimension, with the learner's kernel."""
    contexts = np.linspace(0, 1, CONTEXTS)
    gram = np.exp(-0.5 * ((contexts[:, None] - contexts) / lengthscale) ** 2)
    counts = np.random.default_rng(2).normal(0.5, 0.15, t)
    reference = np.histogram(np.clip(counts, 0, 1), CONTEXTS, (0, 1))[0] / t
    radius = (2 + np.sqrt(2 * np.log(10))) / np.sqrt(t)
    values = confidence_bounds(contexts)
    bounds, *ball = *(torch.as_tensor(part) for part in (values, reference, gram)), float(radius)

    def library():
        return MMDBall(*ball).worst_case(bounds)

    def solver():
        half = root(gram)
        return [mmd_cone(v, reference, half, radius)[1] for v in values]

    fast, slow, found, expected = in_turn(library, solver, 3)
    assert float(np.abs(found.numpy() - expected).max()) <= 1e-4 * np.abs(values).max()
    benchmark(library)
    title = f"Worst case in mean discrepancy, {DECISIONS} decisions, {CONTEXTS} contexts, t = {t}, l = {lengthscale}"
    report(capsys, benchmark, (title, "clarabel, one solve a decision"), fast, slow)
    assert slow / fast >= 20
