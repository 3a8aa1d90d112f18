"""Runs of the map by features: what ``simulate`` gives for the policies of the library, many times faster.

The covariances of g and f at all places are those of features of a place, 70 to 440 by the lengthscale, ``K = F F^T``,
since f is smooth and averages are smoother. A run keeps one row of features for each answer, in the place of one row of
all places; a hundred functions, each with an estimate of ``p(x | a)`` of its own, need no matrix of all places. What a
policy on g asks does not depend on ``p``, so its runs are made once, and what they recommend is computed afterwards.

Random numbers, ties and rules are those of the library: a test compares both, run by run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.utils.probability.utils import phi
from torch import Tensor

from book.indirect.controls import noisy_log_gain
from cbo_lib.former.cholesky import pivoted_cholesky, rows_of
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.indirect import Nodes
from cbo_lib.indirect.embedding import ConditionalMeanEmbedding
from cbo_lib.indirect.entropy import conditional_max_value_entropy, gumbel_max_samples
from cbo_lib.kernels import matrix, rbf_kernel
from cbo_lib.random import ReplicateGenerators, standard_normal, uniform

SAMPLES = 10
#: The largest eigenvalue of a product of features that is left out.
_TOLERANCE = 1e-10


@functools.cache
def _along(length: float, tolerance: float) -> tuple[np.ndarray[Any, Any], ...]:
    """Of an RBF kernel on [0, 1]: nodes, what turns its rows at them into features, and the features' mean squares.

    Arrays, not tensors: what is kept here lies on no device.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    nodes, root = (nodes + 1) / 2, np.sqrt(weights / 2)
    kernel = np.exp(-0.5 * ((nodes[:, None] - nodes) / length) ** 2)
    values, vectors = np.linalg.eigh(kernel * root * root[:, None])
    kept = values > tolerance
    values, vectors = values[kept][::-1].copy(), vectors[:, kept][:, ::-1]
    return nodes, root[:, None] * vectors / np.sqrt(values), values


def features(
    x: Tensor, length: float, levels: tuple[Tensor, Tensor] | None = None, tolerance: float = _TOLERANCE
) -> Tensor:
    """Features of points of the unit square whose products are an RBF kernel, ``... x r``.

    Args:
        x: ``... x 2``.
        length: of the kernel.
        levels: more features of each point, ``... x s``, which the kernel's are multiplied by, and their mean squares.
        tolerance: the largest eigenvalue left out, of 1 in all.
    """
    nodes, into, values = (torch.as_tensor(part).to(x) for part in _along(length, tolerance))
    first, second = ((-0.5 * ((x[..., i, None] - nodes) / length).square()).exp() @ into for i in range(2))
    i, j = (values[:, None] * values > tolerance).nonzero().unbind(1)
    plane = first[..., i] * second[..., j]
    if levels is None:
        return plane
    more, sizes = levels
    p, s = ((values[i] * values[j])[:, None] * sizes > tolerance).nonzero().unbind(1)
    return plane[..., p] * more[..., s]


def level_features(level: Tensor, length: float, count: int = 6) -> tuple[Tensor, Tensor]:
    """Features of levels 1, 2, ... as of ``by_log_radius``, ``... x s``, whose products are an RBF kernel.

    Also their mean squares, for levels that are equally frequent.
    """
    own = matrix(rbf_kernel(length), torch.arange(1.0, count + 1, dtype=level.dtype).unsqueeze(-1))
    values, vectors = torch.linalg.eigh(own)
    kept = values > _TOLERANCE
    return (vectors[:, kept] * values[kept].sqrt())[level.round().long() - 1], values[kept] / count


def gram_features(gram: Tensor, tolerance: float = 1e-9) -> Tensor:
    """Features of places whose products are a matrix, ``n x r``."""
    found = pivoted_cholesky(rows_of(gram), gram.diagonal(), len(gram), tolerance)
    assert found is not None
    return found.mT.contiguous()


@dataclass(frozen=True)
class Places:
    """Features of actions, one set for all replicates or one each, and of points.

    Args:
        actions: ``n x r`` or ``replicates x n x r``.
        points: ``m x r``.
    """

    actions: Tensor
    points: Tensor

    @functools.cached_property
    def all(self) -> Tensor:
        """Actions, then points."""
        if self.actions.dim() == 2:
            return torch.cat([self.actions, self.points])
        return torch.cat([self.actions, self.points.expand(len(self.actions), -1, -1)], 1)


def _action_features(rows: Tensor, lengths: Sequence[float], tolerance: float = 10 * _TOLERANCE) -> Tensor:
    """Of actions, or of regions with their level in the third place, for the lengthscales of an embedding."""
    levels = level_features(rows[..., 2], lengths[2]) if rows.shape[-1] == 3 else None
    return features(rows[..., :2], lengths[0], levels, tolerance)


def embedded(
    embedding: ConditionalMeanEmbedding, actions: Tensor, points: Tensor, lengths: Sequence[float]
) -> list[Places]:
    """What ``Embedded`` tabulates for ``"exact"``, in features, one a lengthscale of f.

    With features ``P`` of actions and ``F`` of inputs ``l(a, A) (L + c I)^{-1} F`` is
    ``P(a) (P(A)^T P(A) + c I)^{-1} P(A)^T F``, a system of as many equations as there are features.

    Args:
        embedding: of pairs ``replicates x N``, with its parameters given.
        actions: ``n x q``.
        points: ``m x 2``.
        lengths: of the kernels of f.
    """
    length, ridge = embedding.parameters
    scales = [float(length)] if isinstance(length, float) else length.tolist()
    own = _action_features(actions, scales)
    sizes = [features(points[:1], some).shape[-1] for some in lengths]
    parts = [own.new_empty(len(embedding.x), len(actions), size) for size in sizes]
    for r, (x, a) in enumerate(zip(embedding.x, embedding.a, strict=True)):
        P = _action_features(a, scales)
        factor = torch.linalg.cholesky(P.mT @ P + len(a) * ridge * torch.eye(P.shape[-1]).to(P))
        inputs = torch.cat([features(x, some) for some in lengths], -1)
        found = own @ torch.cholesky_solve(P.mT @ inputs, factor)
        for part, some in zip(parts, found.split(sizes, -1), strict=True):
            part[r] = some
    return [Places(part, features(points, some)) for part, some in zip(parts, lengths, strict=True)]


def left_out(x: Tensor, a: Tensor, lengths: Sequence[float], ridges: Sequence[float]) -> list[float]:
    """``embedding_loss`` with lengthscale 0.2 of f for values of lambda, of one data set ``N x 2`` and ``N x q``."""
    P, F = _action_features(a, lengths, 1e-5), features(x, 0.2, tolerance=1e-6)
    values, vectors = torch.linalg.eigh(P.mT @ P)
    turned, target = P @ vectors, (P @ vectors).mT @ F
    losses = []
    for ridge in ridges:
        shrink = 1 / (values.clamp_min(0.0) + len(a) * ridge)
        share = (turned.square() * shrink).sum(-1, keepdim=True)
        losses.append(float((((F - turned @ (shrink.unsqueeze(-1) * target)) / (1 - share)).square().sum(-1)).mean()))
    return losses


class Draws:
    """The random numbers of the library's runs: of each round uniform ones and the noise; the first actions.

    Args:
        seeds: one a replicate.
        rounds: how many.
    """

    def __init__(self, seeds: Sequence[int], rounds: int) -> None:
        like = torch.zeros((), dtype=torch.float64)
        self.own, noise = ReplicateGenerators(seeds, stream=1), ReplicateGenerators(seeds, stream=0)
        self.noise = torch.stack([standard_normal(noise.at(t + 1), (), like) for t in range(rounds)], 1)
        self.uniform = torch.stack([self.uniforms(t, SAMPLES) for t in range(rounds)], 1)

    def uniforms(self, t: int, count: int) -> Tensor:
        """``count`` uniform numbers of round ``t`` from 0, ``replicates x count``."""
        return uniform(self.own.at(t + 1), (count,), torch.zeros((), dtype=torch.float64))

    def first(self, n: int, count: int) -> Tensor:
        """The random first actions, ``replicates x count``."""
        return torch.stack([torch.randint(n, (count,), generator=g) for g in self.own.at(0)])


class Belief:
    """A posterior of all places in features; of several priors each replicate believes the likeliest.

    Args:
        priors: one or more.
        replicates: how many.
        rounds: the most answers there will be.
    """

    def __init__(self, priors: Sequence[Places], replicates: int, rounds: int) -> None:
        self.features = [prior.all for prior in priors]
        self.squares = [F.square().sum(-1) for F in self.features]
        like = self.features[0]
        self.rows = [like.new_zeros(replicates, rounds, F.shape[-1]) for F in self.features]  # C, with A = C F^T
        self.weights = [like.new_zeros(replicates, F.shape[-1]) for F in self.features]
        self.likelihood = like.new_zeros(len(priors), replicates)
        self.count = 0
        self.chosen = torch.zeros(replicates, dtype=torch.long)
        self.mean = like.new_zeros(replicates, like.shape[-2])
        self.variance = self.squares[0].expand(replicates, -1).clone()

    def _of(self, b: int, r: int) -> Tensor:
        F = self.features[b]
        return F if F.dim() == 2 else F[r]

    def observe(self, where: Tensor, place: Tensor, y: Tensor, noise: Tensor) -> None:
        """Replicates ``where`` take in values of places."""
        t, moved, steps = self.count, [], []
        for b, (F, rows, weights) in enumerate(zip(self.features, self.rows, self.weights, strict=True)):
            own = F[place] if F.dim() == 2 else F[where, place]
            known = rows[where, :t]
            row = own - (known.mT @ (known @ own.unsqueeze(-1))).squeeze(-1)
            scale = ((own * row).sum(-1).clamp_min(0.0) + noise.square()).sqrt()
            step = (y - (own * weights[where]).sum(-1)) / scale
            row = row / scale.unsqueeze(-1)
            rows[where, t] = row
            weights[where] += row * step.unsqueeze(-1)
            self.likelihood[b, where] -= 0.5 * step.square() + scale.log()
            moved.append(row)
            steps.append(step)
        self.count += 1
        chosen = self.likelihood.argmax(0)
        for i, (r, b) in enumerate(zip(where.tolist(), chosen[where].tolist(), strict=True)):
            F = self._of(b, r)
            if b == int(self.chosen[r]):
                change = F @ moved[b][i]
                self.mean[r] += change * steps[b][i]
                self.variance[r] -= change.square()
            else:
                squares = self.squares[b] if self.squares[b].dim() == 1 else self.squares[b][r]
                self.mean[r] = F @ self.weights[b][r]
                self.variance[r] = squares - (F @ self.rows[b][r, : self.count].mT).square().sum(-1)
        self.chosen = chosen


@dataclass(frozen=True)
class Asked:
    """What runs asked.

    Args:
        query: of each round, ``replicates x T``; after the last of a replicate whatever.
        active: whether it asked.
        y: what it saw.
        recommended: the number of the recommended point, or none where that is found later.
    """

    query: Tensor
    active: Tensor
    y: Tensor
    recommended: Tensor | None = None


@dataclass(frozen=True)
class Setting:
    """What all policies of a cell have in common.

    Args:
        truth: of g at all actions, ``replicates x n``.
        noise: of all actions, ``n``.
        cost: of all actions, ``n``.
        draws: random numbers.
        rounds: the most of a run.
        budget: the whole cost.
        nodes: the tree, for what grows one.
    """

    truth: Tensor
    noise: Tensor
    cost: Tensor
    draws: Draws
    rounds: int
    budget: float = math.inf
    nodes: Nodes | None = None

    def play(self, policy: _Policy, first: Tensor | None = None) -> Asked:
        """Run a policy; the first actions may be given, ``replicates x k``."""
        R = len(self.truth)
        query, y = torch.zeros(R, self.rounds, dtype=torch.long), self.truth.new_zeros(R, self.rounds)
        asked, best = torch.zeros_like(query, dtype=torch.bool), torch.zeros_like(query)
        left = torch.full((R,), self.budget, dtype=self.truth.dtype)
        start = 0 if first is None else first.shape[1]
        for t in range(self.rounds):
            payable = policy.allowed() & (self.cost <= left.unsqueeze(-1) + 1e-9)
            where = payable.any(-1).nonzero().flatten()
            if not len(where):
                break
            if t < start:
                assert first is not None
                chosen = first[where, t]
            else:
                chosen = policy.choose(t, where, payable[where])
            seen = self.truth[where, chosen] + self.noise[chosen] * self.draws.noise[where, t]
            policy.learn(where, chosen, seen, self.noise[chosen])
            left[where] -= self.cost[chosen]
            query[where, t], y[where, t], asked[where, t] = chosen, seen, True
            best[:, t] = best[:, t - 1] if t else 0
            if policy.recommends:
                best[where, t] = policy.best(where)
        T = int(asked.any(0).sum())
        return Asked(query[:, :T], asked[:, :T], y[:, :T], best[:, :T] if policy.recommends else None)


class _Policy:
    """What asks."""

    recommends = False

    def allowed(self) -> Tensor:
        """Which actions may be asked if they can be paid, ``n`` or ``replicates x n``: all."""
        return torch.ones((), dtype=torch.bool)

    def choose(self, t: int, where: Tensor, payable: Tensor) -> Tensor:
        """The actions of replicates ``where`` in round ``t``, of those that are allowed and can be paid."""
        raise NotImplementedError

    def learn(self, where: Tensor, chosen: Tensor, y: Tensor, noise: Tensor) -> None:
        """Take in what was seen."""

    def best(self, where: Tensor) -> Tensor:
        """The points to recommend."""
        raise NotImplementedError


class Entropy(_Policy):
    """``CMES``, or, if it grows a tree, ``CMETS``; by Eq. 14, or by the form of Appendix A.

    Args:
        setting: what it plays.
        priors: one, or several to learn the lengthscale.
        noisy: Appendix A.
        grows: whether only leaves and their children may be asked.
    """

    recommends = True

    def __init__(self, setting: Setting, priors: Sequence[Places], noisy: bool = False, grows: bool = False) -> None:
        self.setting, self.noisy, self.n = setting, noisy, len(setting.cost)
        self.belief = Belief(priors, len(setting.truth), setting.rounds)
        self.leaf: Tensor | None = None
        if grows:
            self.leaf = torch.zeros(len(setting.truth), self.n, dtype=torch.bool)
            self.leaf[:, 0] = True

    def allowed(self) -> Tensor:
        """All, or the leaves and their children."""
        if self.leaf is None:
            return super().allowed()
        assert self.setting.nodes is not None
        child = self.leaf[:, self.setting.nodes.parent]
        child[:, 0] = False
        return self.leaf | child

    def choose(self, t: int, where: Tensor, payable: Tensor) -> Tensor:
        """The most information per cost, as the library has it for all that could win; the others are left out."""
        n, belief = self.n, self.belief
        mean, std = belief.mean[where], belief.variance[where].clamp_min(0.0).sqrt()
        samples = _maxima(mean[:, n:], std[:, n:].clamp_min(1e-9), self.setting.draws.uniform[where, t])
        scores = mean.new_full((len(where), n), -torch.inf)
        r, a = payable.nonzero().unbind(1)
        if (
            self.leaf is None
        ):  # the gain falls with f*, so that of the least sample is between the mean and ten times it
            least = samples.amin(-1, keepdim=True)
            scores[r, a] = self._scores(mean[r, a], std[r, a], least[r], a)
            likely = scores > scores.amax(-1, keepdim=True) - math.log(SAMPLES) - 1e-6
            scores.fill_(-torch.inf)
            r, a = likely.nonzero().unbind(1)
        scores[r, a] = self._scores(mean[r, a], std[r, a], samples[r], a)
        return argmax_finite(scores)

    def _scores(self, mean: Tensor, std: Tensor, samples: Tensor, action: Tensor) -> Tensor:
        """Of single actions, with the samples of their replicates ``k x S``."""
        if self.noisy:
            std = std.clamp_min(1e-12)
            gamma = (samples - mean.unsqueeze(-1)) / std.unsqueeze(-1)
            ratio = (std / self.setting.noise[action]).log().unsqueeze(-1)
            gain = noisy_log_gain(gamma, ratio).logsumexp(-1) - math.log(samples.shape[-1])
        else:
            plain = conditional_max_value_entropy(mean.unsqueeze(-1), std.unsqueeze(-1), samples).squeeze(-1)
            nearest = (samples.amin(-1) - mean) / std.clamp_min(1e-12)
            gain = torch.where(plain > 0, plain.log(), -0.5 * nearest.square())
        return gain - self.setting.cost[action].log()

    def learn(self, where: Tensor, chosen: Tensor, y: Tensor, noise: Tensor) -> None:
        """Take in what was seen, and split what was asked, and its parent if that is a leaf still."""
        self.belief.observe(where, chosen, y, noise)
        if self.leaf is not None:
            nodes = self.setting.nodes
            assert nodes is not None
            for node in (nodes.parent[chosen], chosen):
                inner = self.leaf[where, node] & (nodes.children[node, 0] >= 0)
                self.leaf[where[inner], node[inner]] = False
                self.leaf[where[inner].unsqueeze(-1), nodes.children[node[inner]]] = True

    def best(self, where: Tensor) -> Tensor:
        """The largest posterior mean of f."""
        return argmax_finite(self.belief.mean[where, self.n :])


def _maxima(mean: Tensor, std: Tensor, draws: Tensor) -> Tensor:
    """``gumbel_max_samples`` without the points that cannot matter."""
    draws = draws.clamp(1e-6, 1 - 1e-6)
    low = (mean - 0.7 * std).amax(-1, keepdim=True)  # below the first quartile of the maximum
    many = int((mean + 8 * std > low).sum(-1).amax())
    if many < mean.shape[-1]:
        which = ((mean - low) / std).topk(many, -1).indices
        mean, std = mean.gather(-1, which), std.gather(-1, which)
    return gumbel_max_samples(mean, std, draws)


class OnActions(_Policy):
    """A usual policy on g, ``ActionPolicy``; with ``paid`` its score is divided by the cost.

    Args:
        setting: what it plays.
        priors: of g, one or several; their points don't count.
        acquisition: ``"mes"``, ``"ucb"`` or ``"ei"``.
        paid: whether costs count.
    """

    def __init__(self, setting: Setting, priors: Sequence[Places], acquisition: str, paid: bool = False) -> None:
        self.setting, self.acquisition, self.paid, self.n = setting, acquisition, paid, len(setting.cost)
        self.belief = Belief(priors, len(setting.truth), setting.rounds)
        self.incumbent = setting.truth.new_full((len(setting.truth),), -torch.inf)

    def choose(self, t: int, where: Tensor, payable: Tensor) -> Tensor:
        """The largest score."""
        mean = self.belief.mean[where, : self.n]
        std = self.belief.variance[where, : self.n].clamp_min(0.0).sqrt().clamp_min(1e-9)
        if self.acquisition == "ucb":
            score = mean + 2.0 * std
        elif self.acquisition == "ei":
            gap = (mean - self.incumbent[where].unsqueeze(-1).clamp_min(-1e3)) / std
            score = (std * (phi(gap) + gap * torch.special.log_ndtr(gap).exp())).clamp_min(0.0).log()
        else:
            samples = _maxima(mean, std, self.setting.draws.uniform[where, t])
            score = conditional_max_value_entropy(mean, std, samples).log()
        if self.paid:
            score = score - self.setting.cost.log()
        return argmax_finite(score, payable)

    def learn(self, where: Tensor, chosen: Tensor, y: Tensor, noise: Tensor) -> None:
        """Take in what was seen; EI compares with the largest posterior mean of what was asked."""
        self.belief.observe(where, chosen, y, noise)
        self.incumbent[where] = torch.maximum(self.incumbent[where], self.belief.mean[where, chosen])


class Uniform(_Policy):
    """Random actions: ``RandomQueries``, or with a tree ``RandomLevels``.

    Args:
        setting: what it plays.
        places: how many numbers the library's policy draws.
        levels: whether a level comes first.
    """

    def __init__(self, setting: Setting, places: int, levels: bool = False) -> None:
        self.setting, self.places, self.levels, self.n = setting, places, levels, len(setting.cost)

    def choose(self, t: int, where: Tensor, payable: Tensor) -> Tensor:
        """The largest of the draws."""
        if self.levels:
            values, which = self.setting.cost.unique(return_inverse=True)
            draws = self.setting.draws.uniforms(t, self.n + 1)[where]
            score = draws[:, 1:] + (which == (draws[:, :1] * len(values)).long())
        else:
            score = self.setting.draws.uniforms(t, self.places)[where, : self.n]
        return argmax_finite(score, payable)


def recommended(setting: Setting, priors: Sequence[Places], asked: Asked) -> Tensor:
    """The number of the point with the largest posterior mean of f after every round, ``replicates x T``."""
    noise = torch.where(asked.active, setting.noise[asked.query], 1.0)
    y = torch.where(asked.active, asked.y, 0.0).unsqueeze(-1)
    weights, likelihoods = [], []
    for prior in priors:
        F = prior.actions
        own = F[asked.query] if F.dim() == 2 else F.gather(1, asked.query.unsqueeze(-1).expand(-1, -1, F.shape[-1]))
        own = own * asked.active.unsqueeze(-1)
        factor = torch.linalg.cholesky(own @ own.mT + torch.diag_embed(noise.square()))
        white = torch.linalg.solve_triangular(factor, y, upper=False)
        weights.append((torch.linalg.solve_triangular(factor, own, upper=False) * white).cumsum(1))
        each = 0.5 * white.squeeze(-1).square() + factor.diagonal(dim1=-2, dim2=-1).log()
        likelihoods.append(-(each * asked.active).cumsum(-1))
    best = torch.stack([argmax_finite(w @ prior.points.mT) for w, prior in zip(weights, priors, strict=True)])
    chosen = torch.stack(likelihoods).argmax(0, keepdim=True)
    return best.gather(0, chosen).squeeze(0)
