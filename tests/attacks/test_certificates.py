"""A certificate holds, or the target is refused by name: whatever arithmetic answers.

Answers waver and drift: one learner per kind of answer is attacked by them, in `make evidence`
every learner of `tests.laws`. Learners of one head are attacked with wide families of heads, and
with heads computed as libraries do.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.laws import CASES, KINDS, cases
from tests.truth import hidden

# -- how answers are disturbed


def jitter(size: float) -> Any:
    """Answers change from call to call, by a share of themselves."""

    def disturbed(oracle: Any, seed: int) -> Any:
        rng = np.random.default_rng([seed, 1])

        def answer(X: Any) -> Any:
            y = oracle(X)
            return y * (1 + size * rng.standard_normal(np.shape(y)))

        return answer

    return disturbed


def drift(size: float) -> Any:
    """Every answer is off by so much more of itself than the one before."""

    def disturbed(oracle: Any, seed: int) -> Any:
        asked = [0]

        def answer(X: Any) -> Any:
            y = oracle(X)
            numbers = asked[0] + np.arange(len(X))
            asked[0] += len(X)
            return y * (1 + size * numbers.reshape(-1, *[1] * (np.ndim(y) - 1)))

        return answer

    return disturbed


DISTURBED: dict[str, Any] = {
    "float64": lambda oracle, seed: oracle,
    "float32": lambda oracle, seed: lambda X: oracle(X).astype(np.float32).astype(float),
    "6 decimals": lambda oracle, seed: lambda X: np.round(oracle(X), 6),
    "jitter 1e-15": jitter(1e-15),
    "jitter 1e-12": jitter(1e-12),
    "jitter 1e-9": jitter(1e-9),
    "drift 1e-14": drift(1e-14),
    "drift 1e-11": drift(1e-11),
    "drift 1e-8": drift(1e-8),
}
# those of layers beside norms and of positions as well: each reads its answers in its own way
FEW = (
    *KINDS,
    "LowRankHead with rotary positions",
    "AttentionLayerLearner behind a LayerNorm",
    "FeedForwardLearner after a LayerNorm",
    "TransformerLearner",
)
WAVERING = [name for name in DISTURBED if "jitter" in name or "drift" in name]


def takes_noise(case: Any) -> bool:
    """Labels that waver are wrong labels; what is declared of answers is believed, toys' is too."""
    declared = getattr(case.learner(0), "tolerance", None) is not None
    return not declared and not case.name.startswith("Label") and "(tests)" not in case.name


@pytest.mark.few(4)
@pytest.mark.parametrize("how", WAVERING)
@cases([case for case in CASES if takes_noise(case)], few=FEW)
def test_answers_that_waver_are_covered_or_refused(case, how, trials, evidence):
    count, refused = trials(1, 60), 0
    for seed in range(count):
        target = case.target(seed)
        oracle = DISTURBED[how](case.oracle(target), seed)
        try:
            recovery = us.learn(oracle, case.learner(seed))
        except us.UnsoftmaxError:
            refused += 1
            continue
        assert case.within(recovery, target), (seed, recovery.certificate.errors)
    evidence(f"certificate, {case.name}, {how}", runs=count, broken=0, refused=refused)


# -- one head


def wide(seed: int, biases: bool) -> us.SingleHead:
    """Draw a head of any shape and size, from 1 to 16 dimensions."""
    rng = np.random.default_rng([34, seed])
    d = int(rng.choice([1, 2, 3, 4, 5, 8, 16]))
    G, g = rng.standard_normal((d, d)) / np.sqrt(d), rng.standard_normal(d)
    block = np.where(np.arange(d)[:, None] // 2 == np.arange(d) // 2, G, 0.0)
    W = [
        G,
        np.outer(np.eye(d)[0], np.eye(d)[d - 1]),
        np.eye(d)[rng.permutation(d)],
        np.triu(G, 1),
        G - G.T,
        block,
        1e6 * G,
        1e-6 * G,
        G * 10.0 ** rng.uniform(-3, 3, d),
        np.zeros((d, d)),
    ][seed % 10]
    v = [
        g,
        np.eye(d)[rng.integers(d)],
        rng.choice([-1.0, 1.0], d),
        rng.integers(1, 9, d) * rng.choice([-1.0, 1.0], d),
        g * 10.0 ** rng.uniform(-6, 0, d),
        1e-6 * g,
        1e6 * g,
    ][seed // 10 % 7]
    if not biases:
        return us.SingleHead(W, v)
    size = float(np.linalg.norm(W)) or 1.0
    w = size * 10.0 ** rng.uniform(-6, 0.5) * rng.standard_normal(d)
    return us.SingleHead(W, v, w, float(10.0 ** rng.uniform(-3, 3) * np.linalg.norm(v)))


LEARNERS: dict[str, Any] = {
    "ExactHead": lambda d, seed: us.learners.ExactHead(d, seed=seed),
    "ExactHead with biases": lambda d, seed: us.learners.ExactHead(d, biases=True, seed=seed),
    "LowRankHead": lambda d, seed: us.learners.LowRankHead(d, seed=seed),
    "LowRankHead with biases": lambda d, seed: us.learners.LowRankHead(d, biases=True, seed=seed),
    "SensingHead": lambda d, seed: us.learners.SensingHead(d, rank=d, seed=seed),
}


def held(recovery: Any, true: dict[str, Any]) -> dict[str, float]:
    """Return how many times the error of each parameter its bound is."""
    return {
        name: bound / max(float(np.linalg.norm(getattr(recovery.model, name) - true[name])), 1e-300)
        for name, bound in recovery.certificate.errors.items()
        if np.any(getattr(recovery.model, name) != true[name])
    }


def parameters(head: us.SingleHead) -> dict[str, Any]:
    return {name: getattr(head, name) for name in ("W", "v", "w", "c")}


def attacked(
    count: int, drawn: Callable[[int], Any], kinds: Any = us.UnsoftmaxError, of: str = "W"
) -> tuple[dict[str, Any], list[float]]:
    """Learn what is drawn by each seed: an oracle, a learner and the true parameters.

    Returns what is evidence, and how many times its error the bound of one parameter is.
    """
    refused, loose = 0, []
    for seed in range(count):
        oracle, learner, true = drawn(seed)
        try:
            recovery = us.learn(oracle, learner)
        except kinds:
            refused += 1
            continue
        shares = held(recovery, true)
        assert all(share >= 1 for share in shares.values()), (seed, shares)
        loose.append(shares.get(of, np.nan))
    return {"runs": count, "broken": 0, "refused": refused}, loose


@pytest.mark.few(3)
@pytest.mark.parametrize("how", DISTURBED)
@pytest.mark.parametrize("name", LEARNERS)
def test_wide_heads(name, how, trials, evidence):
    def drawn(seed):
        target = wide(seed, "biases" in name)
        oracle = DISTURBED[how](hidden(target), seed)
        return oracle, LEARNERS[name](target.dim, seed), parameters(target)

    ends, loose = attacked(trials(6, 2000), drawn)
    if how == "float64" and name.startswith("ExactHead"):
        assert ends["refused"] <= max(1, ends["runs"] / 500)
    evidence(f"wide heads, {name}, {how}", **ends, median_looseness=f"{np.nanmedian(loose):.0f}×")


@pytest.mark.parametrize("name", LEARNERS)
def test_heads_about_as_small_as_the_rounding(name, trials, evidence):
    """What was read while answers were taken for exact is bounded by what they turn out to be."""

    def drawn(seed):
        rng, biases = np.random.default_rng([38, seed]), "biases" in name
        d, size = int(rng.choice([1, 1, 2, 3])), 10.0 ** rng.uniform(-7.5, -4)
        W = 10.0 ** rng.choice([-9, -6, 0]) * rng.standard_normal((d, d)) * rng.choice([0, 1])
        w = 10.0 ** rng.choice([-6, -4, 0]) * rng.standard_normal(d) if biases else None
        v, c = size * rng.standard_normal(d), biases * size * rng.standard_normal()
        target = us.SingleHead(W, v, w, c)
        oracle = DISTURBED["6 decimals"](hidden(target), seed)
        return oracle, LEARNERS[name](d, seed), parameters(target)

    ends, _ = attacked(trials(8, 2000), drawn)
    evidence(f"heads about as small as 6 decimals, {name}", **ends)


class Library:
    """A head as libraries compute it: X → queries, keys, values → softmax → output, with biases."""

    def __init__(self, seed: int, dtype: Any, bias: float) -> None:
        rng = np.random.default_rng([35, seed])
        self.dim = d = int(rng.choice([2, 3, 4, 5, 8, 16]))
        self.width = h = int(rng.choice([d, max(1, d // 2), 2 * d, 32]))
        self.dtype = dtype

        def draw(*shape: int) -> Any:
            return rng.standard_normal(shape).astype(dtype)

        self.Q, self.K, self.V = (draw(d, h) / dtype(np.sqrt(d)) for _ in range(3))
        self.q, self.v, self.o = (draw(h) * dtype(bias) for _ in range(3))
        self.out, self.end = draw(h) / dtype(np.sqrt(h)), draw(1)[0] * dtype(bias)

    def __call__(self, X: Any) -> Any:
        X = X.astype(self.dtype)
        q, k, v = X[:, -1] @ self.Q + self.q, X @ self.K, X @ self.V + self.v
        scores = np.einsum("bnh,bh->bn", k, q) / self.dtype(np.sqrt(self.width))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return ((weights[:, None] @ v)[:, 0] @ self.out + self.end).astype(float)

    def parameters(self) -> dict[str, Any]:
        """Multiply out, without rounding."""
        Q, K, V, out = (x.astype(np.longdouble) for x in (self.Q, self.K, self.V, self.out))
        root = np.longdouble(np.sqrt(self.width).astype(self.dtype))
        W, w = K @ Q.T / root, K @ self.q.astype(np.longdouble) / root
        c = self.v.astype(np.longdouble) @ out + np.longdouble(self.end)
        return {"W": W.astype(float), "v": V @ out, "w": w.astype(float), "c": c}


@pytest.mark.few
@pytest.mark.parametrize("bias", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", [name for name in LEARNERS if "biases" in name])
def test_heads_computed_as_libraries_do(name, dtype, bias, trials, evidence):
    """Values and their biases are sums: rounding is theirs, however small v and c come out."""

    def drawn(seed):
        target = Library(seed, dtype, bias)
        return target, LEARNERS[name](target.dim, seed), target.parameters()

    ends, loose = attacked(trials(6, 700), drawn)
    assert dtype is np.float32 or not ends["refused"]
    claim = f"heads as libraries compute them, {name}, {dtype.__name__}, biases of {bias:g}"
    evidence(claim, **ends, median_looseness=f"{np.median(loose):.0f}×")


@pytest.mark.few
@pytest.mark.parametrize("bias", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_values_smaller_than_the_terms_they_are_sums_of(dtype, bias, trials, evidence):
    """v's rounding is that of its terms, and the last rounding beside a large c may hide it."""

    def drawn(seed):
        target = Library(seed, dtype, bias)
        target.dim = d = min(target.dim, 2 + seed % 2)
        target.Q, target.K, target.V = target.Q[:d], target.K[:d], target.V[:d]
        V = target.V.astype(float)
        target.out = (target.out - 0.7 * np.linalg.pinv(V) @ (V @ target.out)).astype(dtype)
        return target, LEARNERS["ExactHead with biases"](d, seed), target.parameters()

    ends, loose = attacked(trials(6, 700), drawn, us.NotIdentifiable, "v")
    evidence(
        f"values of two or three dimensions that cancel, {dtype.__name__}, biases of {bias:g}",
        **ends,
        median_looseness=f"{np.median(loose):.0f}×",
    )


@pytest.mark.parametrize("biases", [False, True])
def test_a_low_rank_with_a_tail(biases, trials, evidence):
    """What rank detection drops is in the bound."""

    def drawn(seed):
        rng = np.random.default_rng([36, seed])
        d = int(rng.choice([4, 8, 16, 24]))
        r = int(rng.integers(1, d // 3 + 2))
        W = rng.standard_normal((d, r)) @ rng.standard_normal((r, d)) / d
        tail = rng.standard_normal((d, [1, 2, d][seed % 3]))
        tail = tail @ rng.standard_normal((tail.shape[1], d))
        W += 10.0 ** rng.uniform(-14, -12) * np.linalg.norm(W) * tail / np.linalg.norm(tail)
        w = W @ rng.standard_normal(d) if biases else None
        target = us.SingleHead(W, rng.standard_normal(d), w, 0.5 * biases)
        learner = us.learners.LowRankHead(d, biases=biases, seed=seed)
        return target, learner, parameters(target)

    ends, loose = attacked(trials(6, 2000), drawn)
    claim = f"low rank and a tail of 1e-14 to 1e-12{', biases' * biases}"
    evidence(claim, **ends, median_looseness=f"{np.median(loose):.0f}×")


def test_small_scores_beside_a_large_constant(trials, evidence):
    """‖w‖ = 1e-12, ‖W‖ = 1e-6, c = 1e3‖v‖: logits that read as 0 at first set no scale."""

    def drawn(seed):
        head, rng = wide(seed, False), np.random.default_rng([37, seed])
        W = head.W / (np.linalg.norm(head.W) or 1.0)
        w = rng.standard_normal(head.dim)
        target = us.SingleHead(
            10.0 ** rng.choice([-12, -9, -6]) * W,
            head.v,
            10.0 ** rng.choice([-15, -12, -9]) * w / np.linalg.norm(w),
            10.0 ** rng.choice([-3, 0, 3]) * float(np.linalg.norm(head.v)),
        )
        return target, LEARNERS["ExactHead with biases"](head.dim, seed), parameters(target)

    ends, _ = attacked(trials(12, 2000), drawn, us.NotIdentifiable)
    assert ends["refused"] <= max(1, ends["runs"] / 500)
    evidence("small W and w beside a large c", **ends)
