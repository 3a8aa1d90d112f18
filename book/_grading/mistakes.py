"""Typical wrong answers: what students do, what it is worth, and what they are told.

The tests mark each of them, and the page of the instructor guide shows them, so both say the same. An answer is an
expression in which ``s`` is the solution; it may use what the notebook defines.
"""

from typing import NamedTuple


class Mistake(NamedTuple):
    """A wrong answer.

    Attributes:
        number: of the exercise.
        what: the mistake in words.
        answer: the answer, an expression.
        points: what each part of the answer still gets.
        says: what is said of the first part that is wrong.
    """

    number: int
    what: str
    answer: str
    points: tuple[int, ...]
    says: str


#: A policy that is right, for the eighth exercise or the seventh of ``aggregated``, with the two numbers.
POLICIES = {
    "aggregated": """
class Right(GPOO):
    def __init__(self, space, first, **options):
        super().__init__(space, **options)
        self.first, self.places = first, None

    def pick(self, deviations):
        places = self.space.measure(self.places)
        upper = self.posterior.mean(places) + deviations * self.posterior.variance(places).sqrt()
        return self.places[torch.arange(len(upper)), upper.argmax(-1)]

    def ask(self):
        if self.round <= self.first:
            return super().ask()
        if self.places is None:
            self.places = single_places(super().recommend())
        return self.pick(2)

    def tell(self, cell, y):
        if self.round <= self.first:
            super().tell(cell, y)
        else:
            super(GPOO, self).tell(cell, y)

    def recommend(self):
        return super().recommend() if self.places is None else self.pick(0)


run = simulate(islands, Right(islands.space, first=20, **options), 40, seeds)
change = islands.optimum - run["recommended_value"][:, -1] - gpoo_regret
s = (Right, change.mean(), change.std() / math.sqrt(40))
""",
    "contexts": """
class Right(SBOKDE):
    def draw(self, generators):
        return self.seen


change = cumulative_regret(run_policy(Right), beach)[:, -1] - base_regret
s = (Right, change.mean(), change.std() / math.sqrt(20))
""",
    "hyperparameters": """
class Right(CandidatePolicy):
    def __init__(self, space, **options):
        super().__init__(space, **options)
        self.ranks = torch.zeros_like(self.likelihood)

    def ask(self):
        rows, trusted = torch.arange(len(self.y)), self.ranks.argmin(-1)
        self.asked = self.search(lambda mean, std: self.upper(mean, std)[rows, trusted])
        self.predict()
        return self.asked

    def tell(self, x, y):
        errors = (y.unsqueeze(-1) - self.mean).abs()
        self.ranks = self.ranks + (errors.unsqueeze(-2) < errors.unsqueeze(-1) - 1e-9).sum(-1)
        super().tell(x, y)


own = cumulative_regret(simulate(problem, Right(space), 100, seeds), problem)[:, -1]
change = own - he_regret
s = (Right, change.mean(), change.std() / math.sqrt(20))
""",
    "indirect": """
class Right(IndirectPolicy):
    def ask(self):
        if self.round <= 2:
            return self.space.actions[self.first[:, self.round - 1]]
        mean, std = self.belief()
        target = (mean + 2 * std)[:, self.space.n :].argmax(-1)
        joint = covariance_with_points(self)[torch.arange(len(mean)), :, target]
        score = joint**2 / (std[:, : self.space.n] ** 2 + 0.1**2)
        return self.space.actions[score.argmax(-1)]


own = last_regret(simulate(problem, Right(space, **options), ROUNDS, seeds))
change = own - cmes_regret
s = (Right, change.mean(), change.std() / math.sqrt(20))
""",
    "subsets": """
class Right(SubsetPolicy):
    def choose(self):
        found = self.search(torch.ones_like(self.plays, dtype=torch.bool))
        if self.round <= self.space.m:
            return torch.full_like(self.plays[:, 0], self.round - 1), found.points
        early = self.spent < self.space.budget / 2
        learn = found.std * self.plays / self.paid
        score = torch.where(early[:, None], learn, found.mean + self.sqrt_beta * found.std)
        return score.argmax(-1), found.points


change = end_regret(run_policy(Right(space, **known))) - base_regret
s = (Right, change.mean(), change.std() / math.sqrt(20))
""",
}

MISTAKES: dict[str, list[Mistake]] = {
    "aggregated": [
        Mistake(
            1,
            "the covariance of the two values is forgotten",
            "(lambda w: 0.5, s[1])",
            (0, 2),
            "The two values are correlated: do not forget their covariance.",
        ),
        Mistake(
            1,
            "the variance of the sum",
            "(lambda w: 4 * s[0](w), s[1])",
            (0, 2),
            "This is the variance of the sum of both values, not of their mean.",
        ),
        Mistake(
            1,
            "the distance of the points in the place of the width",
            "(s[0], s[1] / 2)",
            (2, 0),
            "This is how far apart the two points are. How wide is their cell?",
        ),
        Mistake(
            2,
            "the width of the root is missing",
            "(delta(0), s[1], s[2])",
            (0, 1, 2),
            "The b-value of the root also holds its confidence width.",
        ),
        Mistake(
            2,
            "the slack of a child is missing",
            "(s[0], s[1] - delta(1), s[2])",
            (1, 0, 2),
            "The b-value of a child also holds delta(1).",
        ),
        Mistake(
            2,
            "the depth without a comparison",
            "(s[0], s[1], 0)",
            (1, 1, 0),
            "Compare the width with delta at each depth, from the root down.",
        ),
        Mistake(
            3,
            "beta for its root",
            "(lambda *case: s[0](*case) ** 2, *s[1:])",
            (0, 1, 1),
            "This is beta. Take its square root.",
        ),
        Mistake(
            3,
            "every node of the full tree",
            "(lambda K, t, q: union_bound_sqrt_beta(2047, t, q), *s[1:])",
            (0, 1, 1),
            "You counted every node of a full tree. Round t needs its leaves alone.",
        ),
        Mistake(
            3,
            "the share of the round is forgotten",
            "(lambda K, t, q: math.sqrt(2 * math.log((1 + (K - 1) * (t - 1)) / q)), *s[1:])",
            (0, 1, 1),
            "This holds in one round. Use the share of round t.",
        ),
        Mistake(
            3,
            "the leaves after the round",
            "(lambda K, t, q: union_bound_sqrt_beta(1 + (K - 1) * t, t, q), *s[1:])",
            (0, 1, 1),
            "These are the leaves after round t. It chooses among those before.",
        ),
        Mistake(3, "a factor upside down", "(s[0], 1 / s[1], s[2])", (2, 0, 1), "This is its inverse."),
        Mistake(
            4,
            "the deviation for the variance",
            "(lambda *case: math.sqrt(s[0](*case)), s[1])",
            (0, 2),
            "This is the standard deviation.",
        ),
        Mistake(
            4, "draws teach nothing", "(lambda c, noise, T: c, s[1])", (0, 2), "Every draw must lower the variance."
        ),
        Mistake(
            4,
            "the precision",
            "(lambda *case: 1 / s[0](*case), s[1])",
            (0, 2),
            "This is the posterior precision. The variance is its inverse.",
        ),
        Mistake(5, "delta is not squared", "(s[0] * 14, s[1], s[2])", (0, 2, 2), "Delta is squared in the lemma."),
        Mistake(5, "sigma is not squared", "(s[0] * 10, s[1], s[2])", (0, 2, 2), "Sigma is squared in the lemma."),
        Mistake(
            5,
            "a constant that is larger than needed",
            "(s[0], 3, s[2])",
            (2, 0, 2),
            "The first constant is safe, but a smaller one does.",
        ),
        Mistake(
            6,
            "the b-value itself",
            "(lambda mean, width, delta: mean + width + delta, *s[1:])",
            (0, 2, 2),
            "With this score no sign fails. It draws a leaf of the largest b-value, as line 2 wants it.",
        ),
        Mistake(
            6,
            "a rule that splits later",
            "(s[0], lambda width, delta: width <= delta / 2, s[2])",
            (2, 0, 2),
            "With this rule no sign fails. It splits no leaf before its width is at most delta.",
        ),
        Mistake(
            6,
            "the whole promise is doubled",
            "(s[0], s[1], 6)",
            (2, 2, 0),
            "Twice the promise is too much: only the widths grow, the delta of the b-value stays.",
        ),
        Mistake(
            7,
            "the policy is left as it was",
            "(type('Same', s[:1], {'ask': GPOO.ask, 'tell': GPOO.tell, 'recommend': GPOO.recommend}), *s[1:])",
            (0, 0, 0),
            "After round 20 it still asks regions. A place is a region without extent, see single_places.",
        ),
        Mistake(
            7,
            "what was asked last is recommended",
            "(type('Last', s[:1], {'recommend': lambda self: self.queries[:, -1]}), *s[1:])",
            (0, 0, 0),
            "After round 25, 20 of 40 recommendations do not have the largest posterior mean of the four.",
        ),
        Mistake(
            7,
            "the sign of the difference is reversed",
            "(s[0], -s[1], s[2])",
            (6, 0, 2),
            "The sign is reversed: inside - GPOO.",
        ),
        Mistake(
            7,
            "the deviation of one difference stands for that of the mean",
            "(s[0], s[1], s[2] * math.sqrt(40))",
            (6, 2, 0),
            "This is the standard deviation of one difference. The mean of 40 varies less.",
        ),
        Mistake(
            8,
            "the dimension may become negative",
            "(lambda p, q: 1 / q - 1 / p, s[1])",
            (0, 4),
            "For p = 0.5, q = 1: d is the smallest number that is not negative: at least one ball always fits.",
        ),
        Mistake(
            8,
            "solved for q = 1 alone",
            "(lambda p, q: max(0.0, 1 - 1 / p), s[1])",
            (0, 4),
            "For p = 2, q = 2: This is for q = 1. How wide is the ball for another q?",
        ),
        Mistake(
            8,
            "a fit at scales that are too large",
            "(s[0], 0.9)",
            (6, 0),
            "The fitted dimension 0.90 is far from dimension(2, 1). Use small scales and a small eta.",
        ),
    ],
    "contexts": [
        Mistake(
            1,
            "the sum of the bells",
            "(lambda c, seen: s[0](c, seen) * len(seen), *s[1:])",
            (0, 1, 1),
            "This is the sum of the bells. Divide by n.",
        ),
        Mistake(1, "the integral upside down", "(s[0], 1 / s[1], s[2])", (2, 0, 1), "This is its inverse."),
        Mistake(1, "solved for one context", "(s[0], s[1], 32)", (2, 1, 0), "So it is for one context."),
        Mistake(
            2,
            "the stock is not paid for",
            "(lambda x, b, *p: s[0](x, b, *p) + b * x, *s[1:])",
            (0, 1, 1),
            "The stock must be bought.",
        ),
        Mistake(
            2,
            "the mean demand as the best stock",
            "(s[0], 0.5, s[2])",
            (2, 0, 1),
            "This is the mean demand. It ignores the prices.",
        ),
        Mistake(
            2,
            "a gain in the place of a loss",
            "(s[0], s[1], -s[2])",
            (2, 1, 0),
            "A loss is what the best stock earns minus what this one earns.",
        ),
        Mistake(
            3,
            "the mass for the radius",
            "(s[0], s[1] / 2, s[2])",
            (2, 0, 1),
            "This is the mass that moves. The radius is twice that.",
        ),
        Mistake(
            3,
            "the function gives the mass, too",
            "(lambda a, b: s[0](a, b) / 2, *s[1:])",
            (0, 1, 1),
            "This is the mass that moves. The radius is twice that.",
        ),
        Mistake(3, "one round late", "(s[0], s[1], 15)", (2, 1, 0), "bold is chosen a round earlier."),
        Mistake(
            4,
            "no ball at all",
            "(lambda v, w, floor, radius: float(w @ v), *s[1:])",
            (0, 2, 2),
            "This is the average without any ball.",
        ),
        Mistake(
            4,
            "what is lost for what is left",
            "(s[0], 0.21875, s[2])",
            (2, 0, 2),
            "This is what is lost. Subtract it from 1/2.",
        ),
        Mistake(
            4, "a ratio for a difference", "(s[0], s[1], 2.25)", (2, 2, 0), "This is the ratio. Give the difference."
        ),
        Mistake(5, "alpha becomes negative", "(lambda *case: -1.0, *s[1:])", (0, 2, 2), "alpha must not be negative."),
        Mistake(5, "the sign of beta is reversed", "(s[0], s[1], -s[2])", (2, 2, 0), "Check the sign of beta."),
        Mistake(
            5,
            "kappa for alpha",
            "(s[0], 0.8, s[2])",
            (2, 0, 2),
            "This is kappa = alpha - beta. Which constraint gives alpha?",
        ),
        Mistake(6, "the root is forgotten", "(lambda *case: s[0](*case) ** 2, *s[1:])", (0, 2, 2), "Take the root."),
        Mistake(
            6,
            "the kernel is taken to vanish",
            "(s[0], math.sqrt(2), s[2])",
            (2, 0, 2),
            "So it is if the kernel vanishes. At distance 1 it does not.",
        ),
        Mistake(6, "one round early", "(s[0], s[1], 21)", (2, 2, 0), "In this round the radius is still larger."),
        Mistake(
            7,
            "all signs are reversed",
            "(lambda *case: [-v for v in s[0](*case)], *s[1:])",
            (0, 3, 2, 2),
            "All signs are reversed.",
        ),
        Mistake(
            7,
            "an example that loses nothing as there is nothing to lose",
            "(s[0], lambda: (torch.tensor([[0.0, 1], [0, 1]]), torch.eye(2)[0], torch.eye(2)[1]), *s[2:])",
            (3, 0, 2, 2),
            "All decisions are worth the same. Then nothing can be lost.",
        ),
        Mistake(
            7, "one context and four are exchanged", "(*s[:2], s[3], s[2])", (3, 3, 0, 0), "So it is for 4 contexts."
        ),
        Mistake(
            8,
            "the method gives nothing",
            "(MyPolicy, *s[1:])",
            (0, 0, 0),
            "The answer cannot be used: ValueError: draw must give shape (20, M, 1), got None",
        ),
        Mistake(
            8,
            "the policy is left as it was",
            "(SBOKDE, 0.0, 0.0)",
            (0, 0, 0),
            "These are SBO-KDE's queries: change something.",
        ),
        Mistake(
            8,
            "the sign of the difference is reversed",
            "(s[0], -s[1], s[2])",
            (6, 0, 2),
            "The sign is reversed: yours - SBO-KDE.",
        ),
        Mistake(
            8,
            "the deviation of one difference stands for that of the mean",
            "(s[0], s[1], s[2] * math.sqrt(20))",
            (6, 2, 0),
            "This is the deviation of one difference. A mean varies less.",
        ),
    ],
    "hyperparameters": [
        Mistake(
            1,
            "absolute values before the sum",
            "(lambda e, w, xi, n: e.abs().sum(-1) > (xi * n).sqrt() + w.sum(-1), s[1])",
            (0, 2),
            "Errors of both signs cancel: sum first.",
        ),
        Mistake(
            1,
            "errors below zero are let go",
            "(lambda e, w, xi, n: e.sum(-1) > (xi * n).sqrt() + w.sum(-1), s[1])",
            (0, 2),
            "A sum far below zero refutes too.",
        ),
        Mistake(
            1,
            "the threshold of round one",
            "(s[0], 12)",
            (2, 0),
            "xi belongs to the round of the test, not to round 1: it grows.",
        ),
        Mistake(
            2,
            "tested at the end alone",
            "(lambda e, w, xi: e.abs().sum(-1) > (xi[-1] * len(xi)).sqrt() + w.sum(), *s[1:])",
            (0, 1, 1),
            "The rule is tested after every round, not after the last one alone.",
        ),
        Mistake(
            2,
            "line 12 for the colleague's rule",
            "(lambda e, w, xi: (e.cumsum(-1).abs() > (xi * torch.arange(1, len(w) + 1)).sqrt() + w.cumsum(-1)).any(-1),"
            " 0.0, s[2])",
            (0, 0, 1),
            "This is line 12, without absolute errors.",
        ),
        Mistake(
            2,
            "the deviation for the mean size",
            "(*s[:2], 0.1)",
            (2, 1, 0),
            "This is the standard deviation of the noise. Its mean size is smaller.",
        ),
        Mistake(
            3,
            "the variance",
            "(lambda *case: s[0](*case) ** 2, *s[1:])",
            (0, 2, 2),
            "This is the variance. Take its square root.",
        ),
        Mistake(3, "the factor upside down", "(s[0], 1 / s[1], s[2])", (2, 0, 2), "This is its inverse."),
        Mistake(3, "one side of two", "(s[0], s[1], s[2] / 2)", (2, 2, 0), "The error may be far below zero as well."),
        Mistake(
            4,
            "the largest gain for all kernels",
            "(lambda T, gains, *rest: s[0](T, [max(gains)] * len(gains), *rest), *s[1:])",
            (0, 2, 2),
            "Each kernel has its own gain.",
        ),
        Mistake(
            4,
            "one term for the whole bound",
            "(s[0], math.sqrt(33 * max(most[100]) / sum(most[100])), s[2])",
            (2, 0, 2),
            "So does the term of the widths shrink. Take the whole bound.",
        ),
        Mistake(
            4,
            "a round too early",
            "(s[0], s[1], s[2] - 1)",
            (2, 2, 0),
            "There it still lies above 2 B T, or T is too small.",
        ),
        Mistake(
            5,
            "all of delta for the bands",
            "(lambda norm, gain, failure: s[0](norm, gain, 2 * failure), *s[1:])",
            (0, 2, 2),
            "Half of delta pays for the noise: log(2 / delta).",
        ),
        Mistake(
            5,
            "what is added for what is asked",
            "(s[0], s[1] / 2, s[2])",
            (2, 0, 2),
            "This is what the multiplier adds to B / 2. Solve for B.",
        ),
        Mistake(
            5,
            "bands that fail for truths that are dropped",
            "(s[0], s[1], 20)",
            (2, 2, 0),
            "In so many a band fails. Who drops the truth?",
        ),
        Mistake(
            6,
            "the norm for its square",
            "(lambda *case: math.sqrt(s[0](*case)), *s[1:])",
            (0, 3, 2),
            "This is the norm. Its square is asked for.",
        ),
        Mistake(
            6,
            "the factor for squared norms",
            "(s[0], 3.0, s[2])",
            (3, 0, 2),
            "This is the factor for squared norms.",
        ),
        Mistake(6, "the square of the ratio", "(s[0], s[1], 2.0)", (3, 3, 0), "This is the square of the ratio."),
        Mistake(
            7,
            "a candidate reaches to s times its length",
            "(lambda n, slack: s[0](n, slack**0.5), *s[1:])",
            (0, 2, 2),
            "It reaches to q^2 times its length.",
        ),
        Mistake(7, "rounded down", "(s[0], s[1] - 1, s[2])", (2, 0, 2), "With so many a little is missed."),
        Mistake(
            7,
            "one candidate, its slack forgotten",
            "(s[0], s[1], 1)",
            (2, 2, 0),
            "Without slack one would be best. But its slack is more than 4.",
        ),
        Mistake(
            8,
            "the method gives nothing",
            "(MyPolicy, *s[1:])",
            (0, 0, 0),
            "The answer cannot be used: ValueError: ask must give (20, 1), got None",
        ),
        Mistake(
            8,
            "the policy is left as it was",
            "(HEGPUCB, 0.0, 0.0)",
            (0, 0, 0),
            "These are HE-GP-UCB's queries: change something.",
        ),
        Mistake(
            8,
            "the sign of the difference is reversed",
            "(s[0], -s[1], s[2])",
            (6, 0, 2),
            "The sign is reversed: yours - HE-GP-UCB.",
        ),
        Mistake(
            8,
            "the deviation of one difference stands for that of the mean",
            "(s[0], s[1], s[2] * math.sqrt(20))",
            (6, 2, 0),
            "This is the deviation of one difference. A mean varies less.",
        ),
    ],
    "indirect": [
        Mistake(
            1,
            "the covariance of the arms is left out",
            "(lambda *case: (s[0](*case)[0], torch.diag(s[0](*case)[1].diagonal())), *s[1:])",
            (0, 1, 1),
            "A sum was seen: it couples both rewards.",
        ),
        Mistake(
            1,
            "one arm is always pulled",
            "(s[0], 1.0, s[2])",
            (2, 0, 1),
            "This agent pulls one arm only. What it says about this arm, it says about the difference too.",
        ),
        Mistake(
            1,
            "the arms are exchanged",
            "(s[0], s[1], 0.8)",
            (2, 1, 0),
            "The arms are exchanged: the uncertain arm must be pulled less.",
        ),
        Mistake(
            2,
            "the variance is left out",
            "(lambda *case: s[0](*case) / case[-1], *s[1:])",
            (0, 1, 1),
            "The variance v is missing.",
        ),
        Mistake(
            2, "no root in one dimension", "(s[0], 1 / 3, s[2])", (2, 0, 1), "The factor is a root in one dimension."
        ),
        Mistake(2, "the square of the correlation", "(s[0], s[1], s[2] ** 2)", (2, 1, 0), "This is its square."),
        Mistake(
            3,
            "the prior is forgotten",
            "(lambda prior, p, y: p if y else 1 - p, *s[1:])",
            (0, 1, 1),
            "The prior counts too.",
        ),
        Mistake(
            3,
            "deviations instead of variances",
            "(s[0], 8, s[2])",
            (2, 0, 1),
            "Square the ratio of the deviations.",
        ),
        Mistake(3, "one answer too few", "(s[0], s[1], 3)", (2, 1, 0), "After three the odds are 64 to 1."),
        Mistake(
            4,
            "the error of the fit",
            "(lambda *case: 0 * s[0](*case), *s[1:])",
            (0, 2, 2),
            "The errors are wrong for lambda = 0.01.",
        ),
        Mistake(
            4,
            "the same lambda",
            "(s[0], 0.01, s[2])",
            (2, 0, 2),
            "Then the ridge is 11 lambda. The formula has 12 lambda.",
        ),
        Mistake(
            4,
            "the smallest lambda",
            "(s[0], s[1], min(lambdas))",
            (2, 2, 0),
            "The smallest lambda fits best, and predicts badly.",
        ),
        Mistake(5, "the sign is reversed", "(lambda gamma: -s[0](gamma), *s[1:])", (0, 2, 2), "The sign is reversed."),
        Mistake(5, "two equal samples", "(s[0], (2.2, 2.2), s[2])", (2, 0, 2), "Two equal samples are one sample."),
        Mistake(5, "the larger root", "(s[0], s[1], 1.5)", (2, 2, 0), "This is the larger gamma."),
        Mistake(
            6,
            "rounded down",
            "(lambda *case: s[0](*case) - 1, *s[1:])",
            (0, 2, 2),
            "Round up: fewer rounds miss too often.",
        ),
        Mistake(
            6,
            "a fair coin in each round",
            "(s[0], 2**-6, s[2])",
            (2, 0, 2),
            "So it is if each round tosses a fair coin. Here the draws share one f*.",
        ),
        Mistake(
            6,
            "groups taken for independent",
            "(s[0], s[1], 6 / 7 * 8 / 9)",
            (2, 2, 0),
            "The groups share one W: they are not independent.",
        ),
        Mistake(
            7,
            "the last round whatever it cost",
            "(lambda values, spent, budget: values[:, -1], *s[1:])",
            (0, 2, 2),
            "Some rounds cost more than the budget.",
        ),
        Mistake(7, "the sign is reversed", "(s[0], -s[1], s[2])", (6, 0, 2), "The sign is reversed: finest - CMETS."),
        Mistake(
            7,
            "the sign is reversed again",
            "(s[0], s[1], -s[2])",
            (6, 2, 0),
            "The sign is reversed: all nodes - CMETS.",
        ),
        Mistake(
            8,
            "the method gives nothing",
            "(MyPolicy, *s[1:])",
            (0, 0, 0),
            "The answer cannot be used: ValueError: ask must give (20, 2), got None",
        ),
        Mistake(
            8,
            "the policy is left as it was",
            "(CMES, 0.0, 0.0)",
            (0, 0, 0),
            "These are CMES's queries: change something.",
        ),
        Mistake(
            8,
            "the sign of the difference is reversed",
            "(s[0], -s[1], s[2])",
            (6, 0, 2),
            "The sign is reversed: yours - CMES.",
        ),
        Mistake(
            8,
            "the deviation of one difference stands for that of the mean",
            "(s[0], s[1], s[2] * math.sqrt(20))",
            (6, 2, 0),
            "This is the deviation of one difference. A mean varies less.",
        ),
    ],
    "subsets": [
        Mistake(
            1,
            "the variance before the truncation",
            "(lambda scale: scale**2, *s[1:])",
            (0, 1, 1),
            "This is the variance of Z. Truncation lowers it.",
        ),
        Mistake(
            1,
            "the limit of a coin",
            "(s[0], 0.25, s[2])",
            (2, 0, 1),
            "Only half the mass at each end has this. No bell does.",
        ),
        Mistake(
            1,
            "the deviation before the truncation",
            "(s[0], s[1], 0.2)",
            (2, 1, 0),
            "So it is before the truncation, which lowers the variance.",
        ),
        Mistake(
            2,
            "nothing is set",
            "(lambda f, controls, x, nodes: f(nodes).mean(), *s[1:])",
            (0, 1, 1),
            "The controlled variables are not set.",
        ),
        Mistake(
            2,
            "the variances are left out",
            "(s[0], 3.46, s[2])",
            (2, 0, 1),
            "This is f at the means. The variances are missing.",
        ),
        Mistake(
            2,
            "the sign is reversed",
            "(s[0], s[1], -s[2])",
            (2, 1, 0),
            "The sign is reversed: without variation it is worth more.",
        ),
        Mistake(
            3,
            "the best, whatever it costs",
            "(lambda v, c, a: int(v.argmax()), *s[1:])",
            (0, 1, 1),
            "Only acceptable subsets count.",
        ),
        Mistake(3, "an index that may be the goal", "(s[0], 0, s[2])", (2, 0, 1), "For alpha = 0.11 this one is i_*."),
        Mistake(
            3,
            "a difference for a share",
            "(s[0], s[1], 0.42)",
            (2, 1, 0),
            "This is the difference to f*. Divide by the new f*.",
        ),
        Mistake(
            4,
            "the largest upper bound",
            "(lambda u, *case: int(u.argmax()), *s[1:])",
            (0, 2, 2),
            "The cheapest is wanted.",
        ),
        Mistake(4, "counted from one", "(s[0], s[1] + 1, s[2])", (2, 0, 2), "Indices count from zero."),
        Mistake(
            4, "the share for the number", "(s[0], s[1], s[2] / 120)", (2, 2, 0), "This is the share of the orders."
        ),
        Mistake(
            5,
            "one radius for two",
            "(lambda gap, T: math.floor(2 * math.log(T) / gap**2) + 1, *s[1:])",
            (0, 2, 2),
            "A play costs two radii too much, not one.",
        ),
        Mistake(
            5, "the exploration twice", "(s[0], s[1] + 14, s[2])", (2, 0, 2), "most_plays counts the exploration too."
        ),
        Mistake(
            5, "all five waste", "(s[0], s[1], s[2] * 5 / 4)", (2, 2, 0), "There are m - 1 subsets besides the goal."
        ),
        Mistake(
            6,
            "rounded down",
            "(lambda *case: s[0](*case) - 1, *s[1:])",
            (0, 2, 2),
            "Round up: there the radius is not small enough yet.",
        ),
        Mistake(
            6, "one play too few", "(s[0], s[1] - 1, s[2])", (2, 0, 2), "There the bound is still cut off at zero."
        ),
        Mistake(
            6,
            "one interval for two",
            "(s[0], s[1], 1382)",
            (2, 2, 0),
            "Both have a radius: two of them must fit into the difference.",
        ),
        Mistake(
            7,
            "values for sums",
            "(lambda *case: [torch.diff(t, prepend=t[:1] * 0) for t in s[0](*case)], *s[1:])",
            (0, 4, 2),
            "R^f is a sum over the plays so far: cumsum.",
        ),
        Mistake(
            7,
            "the best is played",
            "(s[0], lambda T: torch.zeros(T, dtype=torch.long), s[2])",
            (4, 0, 2),
            "R^c_T / T goes from 0.000 to 0.000: no money is wasted for good. Which subset does R_T not mind?",
        ),
        Mistake(7, "a cost of one", "(s[0], s[1], 1.0)", (4, 4, 0), "Then R_T = R^f_T for its plays."),
        Mistake(
            8,
            "the method gives nothing",
            "(MyPolicy, *s[1:])",
            (0, 0, 0),
            "The answer cannot be used: ValueError: choose must give a tuple: subset, points",
        ),
        Mistake(
            8,
            "the policy is left as it was",
            "(CheapestGoodSubset, 0.0, 0.0)",
            (0, 0, 0),
            "These are Algorithm 1's queries: change something.",
        ),
        Mistake(
            8,
            "the sign of the difference is reversed",
            "(s[0], -s[1], s[2])",
            (6, 0, 2),
            "The sign is reversed: yours - Algorithm 1.",
        ),
        Mistake(
            8,
            "the deviation of one difference stands for that of the mean",
            "(s[0], s[1], s[2] * math.sqrt(20))",
            (6, 2, 0),
            "This is the deviation of one difference. A mean varies less.",
        ),
    ],
}

#: What each exercise teaches.
TEACHES = {
    "aggregated": [
        "the variance of an average of correlated values",
        "b-values, and how delta forces the order of the first draws",
        "a union bound over leaves and rounds, and what a smaller union saves",
        "the posterior variance under repeated draws of one cell",
        "to test a lemma on its smallest case, and to repair it",
        "which line of an algorithm each step of a proof needs",
        "to change a policy and to compare it by paired differences",
        "how peaks and metrics decide how many cells stay in play",
    ],
    "contexts": [
        "a kernel density estimate and its bandwidth, and the curse of dimension",
        "stochastic optimization by quantiles, and what lost data cost",
        "that the radius of a ball orders decisions",
        "the worst distribution in a total variation ball, in closed form",
        "a linear program solved by its kinks and constraints",
        "distances of distributions by kernels, and when a ball is everything",
        "the three parts of regret under an estimated distribution",
        "to write a policy, and to judge it by paired differences",
    ],
    "hyperparameters": [
        "a test of a model by its sum of errors",
        "why noise must cancel before it is judged",
        "why it matters which round a width belongs to",
        "what a regret bound counts, candidates or kernels",
        "what a wrong constant costs, the promise first",
        "norms of functions in the space of another kernel",
        "how many candidates a plant needs",
        "to write a policy over candidates, and to judge it",
    ],
    "indirect": [
        "how an average couples what it averages",
        "a blurred kernel in closed form",
        "what a single hidden draw says beside an average",
        "cross-validation without refitting, and its ridge",
        "what an acquisition by entropy sees in a sample of the maximum",
        "independent draws, and draws that share what they are compared with",
        "curves by cost, and fair rivals",
        "to write a policy of one's own, and to judge it",
    ],
    "subsets": [
        "the variance of a truncated normal",
        "the worth of a play as an expectation over what is not set",
        "the goal of the chapter: acceptable first, cheap second",
        "one step of Algorithm 1, with all its ties",
        "how often a dear subset is played, and where the logarithm comes from",
        "how plays narrow a cost interval",
        "three notions of regret, and what each does not see",
        "to spend a budget, and to judge how it was spent",
    ],
}
