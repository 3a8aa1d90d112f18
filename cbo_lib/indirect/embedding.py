"""The conditional mean process: f and its conditional averages under one Gaussian process.

.. [Zhang2025] M. Zhang, S. Bouabid, C. S. Ong, S. Flaxman, D. Sejdinovic. Indirect Query Bayesian Optimization with
   Integrated Feedback. 2025.
.. [Chau2021] S. L. Chau, S. Bouabid, D. Sejdinovic. Deconditional Downscaling with Gaussian Processes. NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect.problem import ClippedGaussian, IndirectProblem
from cbo_lib.kernels import GaussianMeasureKernel, TabulatedKernel, rbf_kernel
from cbo_lib.measure import Measure, covariance
from cbo_lib.random import ReplicateGenerators


def embedding_weights(a: Tensor, kernel: Kernel, regularization: float, query: Tensor) -> Tensor:
    """``(L + N lambda I)^{-1} l(a, query)``, transposed: the weights of each query on the data ([Zhang2025]_, Eq. 12).

    Args:
        a: actions of the data, ``... x N x q``.
        kernel: ``l``, a GPyTorch kernel on actions.
        regularization: ``lambda``, positive.
        query: actions ``... x m x q``.

    Returns:
        A ``... x m x N`` tensor; rows need not be positive nor sum to one.

    Raises:
        ValueError: if there is no pair or ``regularization`` is not positive.
    """
    count = a.shape[-2]
    if count == 0:
        raise ValueError("a must hold at least one action, got none")
    if not regularization > 0:
        raise ValueError(f"regularization must be positive, got {regularization}")
    gram = kernel(a).to_dense() + count * regularization * torch.eye(count).to(a)
    return torch.cholesky_solve(kernel(a, query).to_dense(), torch.linalg.cholesky(gram)).mT


def conditional_mean_measure(x: Tensor, a: Tensor, kernel: Kernel, regularization: float, query: Tensor) -> Measure:
    """The estimated ``p(x | a)`` at some actions: weights on the inputs that were seen ([Zhang2025]_, Eq. 12).

    Averages of any function under it are kernel ridge regressions of its values on the actions.

    Args:
        x: inputs of the data, ``... x N x d``.
        a: their actions, ``... x N x q``.
        kernel: on actions.
        regularization: ``lambda``, positive; the ridge is ``N lambda``.
        query: actions ``... x m x q``.

    Returns:
        ``m`` measures of ``N`` points with signed weights.

    Raises:
        ValueError: if inputs and actions differ in number, there is no pair, or ``regularization`` is not positive.
    """
    if x.shape[:-1] != a.shape[:-1]:
        raise ValueError(f"x and a must hold one input an action, got {tuple(x.shape)} and {tuple(a.shape)}")
    weights = embedding_weights(a, kernel, regularization, query)
    return Measure(x.unsqueeze(-3).expand(*weights.shape, x.shape[-1]), weights)


def embedding_loss(x: Tensor, a: Tensor, kernel: Kernel, action_kernel: Kernel, regularization: float) -> Tensor:
    """Leave-one-out error of the estimated embedding: the mean of ``|phi(x_i) - mu_{-i}(a_i)|^2``.

    ``phi`` is the feature map of ``kernel``. With ``H = L (L + N lambda I)^{-1}`` the residual without pair ``i`` is
    row ``i`` of ``I - H`` divided by ``1 - H_ii``, as for any ridge regression. The ridge stays ``N lambda``.

    Args:
        x: inputs ``... x N x d``.
        a: actions ``... x N x q``.
        kernel: on inputs.
        action_kernel: on actions.
        regularization: ``lambda``, positive.
    """
    hat = embedding_weights(a, action_kernel, regularization, a)
    residual = (torch.eye(a.shape[-2]).to(a) - hat) / (1 - hat.diagonal(dim1=-2, dim2=-1)).unsqueeze(-1)
    return torch.einsum("...ij,...jk,...ik->...i", residual, kernel(x).to_dense(), residual).mean(-1)


def cross_validate(
    x: Tensor, a: Tensor, kernel: Kernel, lengthscales: Sequence[float], regularizations: Sequence[float]
) -> tuple[float, float]:
    """The lengthscale of an RBF kernel on actions, and ``lambda``, of the smallest leave-one-out error.

    Args:
        x: inputs ``N x d``.
        a: actions ``N x q``.
        kernel: on inputs.
        lengthscales: to choose from.
        regularizations: to choose from.

    Raises:
        ValueError: if all actions are the same: then nothing can be learned about other actions.
    """
    if bool((a == a[:1]).all()):
        raise ValueError("a must hold at least two different actions")
    losses = {
        (length, ridge): float(embedding_loss(x, a, kernel, rbf_kernel(length, 1.0, a.dtype).to(a), ridge))
        for length in lengthscales
        for ridge in regularizations
    }
    return min(losses, key=lambda pair: losses[pair])


def places(problem: IndirectProblem) -> Measure:
    """All places of a problem as indices, for a prior over a ``TabulatedKernel``."""
    return Measure.dirac(torch.arange(len(problem.table), dtype=problem.points.dtype)[:, None].to(problem.points))


def tabulated_prior(gram: Tensor, noise_std: float, mean: float = 0.0) -> GaussianProcess:
    """A Gaussian process over places from their covariances ``... x (n + m) x (n + m)``."""
    return GaussianProcess(TabulatedKernel(gram), noise_std, mean)


def known_prior(problem: IndirectProblem, lengthscale: float, variance: float = 1.0) -> GaussianProcess:
    """The prior of g and f at all places when ``p(x | a)`` is known ([Zhang2025]_, Eqs. 2 and 3).

    In closed form for a Gaussian ``p(x | a)`` and an RBF kernel, without regard to clipping; by the measure of
    ``p(x | a)`` otherwise.
    """
    conditional, points = problem.conditional, problem.points
    if isinstance(conditional, ClippedGaussian):
        centers, spread = conditional.center(problem.actions), conditional.scale(problem.actions)
        where = torch.cat([centers, points]), torch.cat([spread, torch.zeros_like(points[:, 0])])
        inputs = torch.cat([where[0], where[1].unsqueeze(-1)], -1)
        gram = GaussianMeasureKernel(lengthscale, variance)(inputs).to_dense()
    else:
        kernel = rbf_kernel(lengthscale, variance, points.dtype).to(points)
        gram = _joint_gram(kernel, conditional.measure(problem.actions, 8), points)
    return tabulated_prior((gram + gram.mT) / 2, float(problem.noise.amin()))


def estimated_prior(
    problem: IndirectProblem,
    x: Tensor,
    a: Tensor,
    lengthscale: float,
    action_lengthscale: float,
    regularization: float,
    variance: float = 1.0,
) -> GaussianProcess:
    """The prior of g and f at all places with ``p(x | a)`` estimated from data ([Zhang2025]_, Eq. 12).

    All actions share the points of the data, so with weights ``W`` the covariances are ``W K W'``, ``W K(x, points)``
    and ``K(points, points)``.

    Args:
        problem: see ``IndirectProblem``.
        x: inputs of the data, ``... x N x d``; a batch gives one prior a replicate.
        a: their actions, ``... x N x q``.
        lengthscale: of the RBF kernel of f.
        action_lengthscale: of the RBF kernel on actions.
        regularization: ``lambda``.
        variance: of the RBF kernel of f. Default 1.
    """
    kernel = rbf_kernel(lengthscale, variance, x.dtype).to(x)
    action_kernel = rbf_kernel(action_lengthscale, 1.0, a.dtype).to(a)
    measure = conditional_mean_measure(x, a, action_kernel, regularization, problem.actions)
    gram = _joint_gram(kernel, measure, problem.points)
    return tabulated_prior((gram + gram.mT) / 2, float(problem.noise.amin()))


def _joint_gram(kernel: Kernel, averages: Measure, points: Tensor) -> Tensor:
    """Covariances of ``n`` averages and ``m`` points, ``... x (n + m) x (n + m)``."""
    mixed = covariance(kernel, averages, Measure.dirac(points))
    among = covariance(kernel, averages, averages)
    plain = kernel(points).to_dense().expand(*mixed.shape[:-2], -1, -1)
    return torch.cat([torch.cat([among, mixed], -1), torch.cat([mixed.mT, plain], -1)], -2)


def estimate_policies(
    a: Tensor, pulled: Tensor, arms: int, degree: int = 3, ridge: float = 1e-3
) -> Callable[[Tensor], Tensor]:
    """Learn the policies of agents from the arms that they pulled ([Zhang2025]_, section 3.1).

    A classifier: multinomial logistic regression on powers of the covariates, fitted by L-BFGS.

    Args:
        a: covariates ``N x q`` in the unit box or near it.
        pulled: indices of arms, ``N`` integers in ``[0, arms)``.
        arms: how many arms ``K``.
        degree: highest power of each covariate. Default 3.
        ridge: penalty on the squared coefficients, positive.

    Returns:
        A function from covariates ``... x q`` to probability vectors ``... x K``.

    Raises:
        ValueError: if there is no pair, the numbers differ or an arm does not exist.
    """
    if len(a) == 0 or pulled.shape != a.shape[:1]:
        raise ValueError(f"a and pulled must hold one arm an agent, got {tuple(a.shape)} and {tuple(pulled.shape)}")
    if bool(((pulled < 0) | (pulled >= arms)).any()):
        raise ValueError(f"pulled must lie in [0, {arms}), got {int(pulled.min())} to {int(pulled.max())}")
    if degree < 1 or not ridge > 0:
        raise ValueError(f"degree must be at least 1 and ridge positive, got {degree} and {ridge}")

    def features(x: Tensor) -> Tensor:
        powers = [x**power for power in range(1, degree + 1)]
        return torch.cat([torch.ones_like(x[..., :1]), *powers], -1)

    inputs = features(a)
    coefficients = torch.zeros(inputs.shape[-1], arms, dtype=a.dtype, device=a.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([coefficients], max_iter=500, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(inputs @ coefficients, pulled) + ridge * coefficients.square().mean()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    fitted = coefficients.detach()
    return lambda x: (features(x) @ fitted).softmax(-1)


def draw_data(problem: IndirectProblem, count: int, seeds: Sequence[int], bounds: Tensor) -> tuple[Tensor, Tensor]:
    """``D1`` for each seed, inputs ``replicates x N x d`` and actions ``replicates x N x q``."""
    return problem.data(ReplicateGenerators(seeds, stream=4).generators, count, bounds)
