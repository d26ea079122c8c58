"""One head with rotary positions: counts, accuracy, certificates, and what is refused."""

import itertools
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.nearly_rotary import nearly_rotary
from tests.rotary_heads import longest_miss, rotary_head, scores_apart, within_bounds
from tests.truth import Counted, hidden, rank_of_jacobian

NEAR = range(21)


def learn(target, rank=None, **settings) -> us.Recovery[Any]:
    learner = us.learners.LowRankHead(target.dim, rank, rotary=True, **settings)
    return us.learn(hidden(target), learner)


def bound(d, r, biases=False):
    return us.theory.counts.rotary_head(d, r, biases=biases)


# -- what is promised


@pytest.mark.parametrize(
    ("d", "r", "spread", "most"),
    [(8, 8, 0, 1.15), (64, 16, 0, 1.02), (64, 64, 0, 1.02),
     (8, 8, 0.3, 1.2), (64, 16, 0.3, 1.03), (64, 64, 0.3, 1.02)],
)  # fmt: skip
def test_nearly_as_many_queries_as_parameters(d, r, spread, most, trials, evidence):
    """With biases, of spread 0.3, errors are those of most heads; without, of every one."""
    near, far, long, shares, biases = [], [], [], [], bool(spread)
    for seed in range(trials(3 if d < 10 and not biases else 1, 100)):
        target = rotary_head(d, r, seed, base=(1e4, 5e5, 1e6)[seed % 3], biases=spread)
        oracle = Counted(hidden(target))
        learner = us.learners.LowRankHead(d, r, biases=biases, seed=seed, rotary=True)
        recovery = us.learn(oracle, learner)
        assert oracle.queries == recovery.queries
        assert recovery.evidence.passed
        assert recovery.queries - 32 <= learner.plan().at_most
        assert within_bounds(recovery, target)
        shares.append((oracle.queries - 32) / bound(d, r, biases))
        near.append(scores_apart(recovery.model, target, NEAR))
        far.append(scores_apart(recovery.model, target, (100, 500, 2000)))
        long.append(longest_miss(recovery.model, target, seed))
    assert max(shares) <= most
    found = {"W_0_to_20": near, "W_to_2000": far, "of_512_tokens": long}
    for errors, allowed in zip(found.values(), (1e-9, 1e-7, 1e-7), strict=True):
        assert (np.median if biases else max)(errors) <= allowed
    evidence(
        f"rotary head{' with biases' * biases}, d = {d}, r = {r}",
        runs=len(near),
        queries=f"{max(shares):.3f} × the parameters",
        **{
            name: f"median {np.median(x):.1e}, worst {max(x):.1e}" if biases else max(x)
            for name, x in found.items()
        },
    )


def test_the_frequencies_are_found(trials):
    for seed, base in itertools.product(range(trials(1, 30)), (1e4, 5e5, 1e6)):
        target = rotary_head(16, 16, seed, base=base)
        model: us.RotaryHead = us.canonical(learn(target, 16, seed=seed).model)
        found = model.rotary.frequencies
        assert np.allclose(found, target.rotary.frequencies, rtol=0, atol=1e-10)


@pytest.mark.few(4)
@pytest.mark.parametrize("biases", [0.0, 0.3])
@pytest.mark.parametrize(
    "frequencies",
    [[1, 0.1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0.1], [3, 4, -1, 0.2], [np.pi, np.pi, 1, 0]],
)
def test_planes_that_do_not_turn_or_turn_alike(frequencies, biases):
    like = rotary_head(8, 8, 5, biases=biases)
    arrays = {**like.arrays(), "frequencies": np.array(frequencies)}
    target = us.RotaryHead.from_arrays(arrays)
    recovery = learn(target, 8, biases=bool(biases))
    assert scores_apart(recovery.model, target, [*NEAR, 300]) <= 1e-10
    assert within_bounds(recovery, target)
    assert us.equivalent(recovery.model, target, rtol=1e-9)


def test_frequencies_that_are_known():
    target = rotary_head(8, 8, 0)
    for settings in ({"rotary": us.Rotary.of(1e4, 8)}, {"rotary_base": 1e4}):
        recovery = us.learn(hidden(target), us.learners.LowRankHead(8, 8, **settings))
        assert us.equivalent(recovery.model, target)
        found: Any = us.canonical(recovery.model)
        assert np.array_equal(found.rotary.frequencies, target.rotary.frequencies)
    for settings in ({"rotary": us.Rotary.of(1.01e4, 8)}, {"rotary_base": 1.01e4}):
        with pytest.raises(us.ModelMismatch, match=r"other frequencies.* without rotary_base"):
            us.learn(hidden(target), us.learners.LowRankHead(8, 8, **settings))


def test_a_head_without_positions_is_said_to_have_none():
    K, Q = np.random.default_rng(0).standard_normal((2, 4, 8))
    plain = us.SingleHead.from_factors(K, Q, np.ones(8))
    with pytest.raises(us.ModelMismatch, match=r"do not turn with distance.*Leave out rotary"):
        us.learn(hidden(plain), us.learners.LowRankHead(8, 4, rotary_base=1e4))
    for biases in (False, True):
        found = us.learn(hidden(plain), us.learners.LowRankHead(8, 4, biases, rotary=True))
        assert any("do not turn with distance" in note for note in found.notes)


@pytest.mark.parametrize(
    "learner",
    [
        us.learners.LowRankHead(12, rotary=True),
        us.learners.LowRankHead(12, 6, rotary=True),
        us.learners.ExactHead(12, rotary=True),
    ],
    ids=["not given", "given too large", "ExactHead"],
)
def test_the_rank_is_found(learner):
    target = rotary_head(12, 4, 3)
    recovery = us.learn(hidden(target), learner)
    assert len(recovery.model.K) == 4
    assert within_bounds(recovery, target)
    assert us.equivalent(recovery.model, target)


def test_scores_that_are_zero():
    target = us.RotaryHead(np.zeros((4, 6)), np.zeros((4, 6)), np.ones(6), us.Rotary.of(1e4, 4))
    assert us.equivalent(learn(target, 4).model, target)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e3, 1e9])
def test_any_scale(scale):
    target = rotary_head(12, 4, 0, scale=scale)
    assert scores_apart(learn(target, 4).model, target, NEAR) <= 1e-10


def test_answers_in_float32():
    target = rotary_head(12, 4, 1)
    recovery = us.learn(
        lambda X: target(X).astype(np.float32), us.learners.LowRankHead(12, 4, rotary=True)
    )
    assert scores_apart(recovery.model, target, NEAR) <= 1e-4
    assert within_bounds(recovery, target)


# -- certificates


def test_the_certificate_holds(trials, evidence):
    looseness, shapes = [], [(6, 2), (8, 8), (16, 4), (24, 12)]
    count = trials(3, 500)
    for seed in range(count):
        d, r = shapes[seed % len(shapes)]
        biases, turning = 0.4 * (seed % 2), (1.0, 0.5)[seed % 3 == 0]
        target = rotary_head(d, r, seed, biases=biases, turning=turning)
        try:
            recovery = learn(target, r, biases=bool(biases), seed=seed)
        except us.NotIdentifiable:
            assert biases
            continue
        assert within_bounds(recovery, target), (d, r, biases, turning, seed)
        error = scores_apart(recovery.model, target, NEAR)
        size = np.linalg.norm(target.scores.whole(1))
        looseness.append(recovery.certificate.W_error / size / error)
        share = us.equivalent(recovery.model, target, errors=recovery.certificate.errors)
        assert share.verdict == "equal"
    assert len(looseness) >= 0.95 * count
    evidence(
        "rotary head, certificate",
        trials=count,
        broken=0,
        median_looseness=f"{np.median(looseness):.0f}×",
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("spread", [1.0, 2.0, 3.0])
def test_large_biases_are_recovered_within_bounds_or_refused(spread, trials, evidence):
    said, count, near = [], trials(8, 60), []
    for seed in range(count):
        target = rotary_head(8, 8, seed, biases=spread)
        try:
            recovery = learn(target, 8, biases=True, seed=seed)
        except us.NotIdentifiable as refusal:
            said.append(str(refusal))
            continue
        assert within_bounds(recovery, target)
        near.append(scores_apart(recovery.model, target, NEAR))
    reasons = "Large biases", "out of the answers' reach", "they leave undetermined"
    assert all(any(reason in text for reason in reasons) for text in said)
    evidence(
        f"rotary head, biases of spread {spread:g}, d = r = 8",
        refused=f"{len(said)} of {count}",
        median=np.median(near),
        worst=np.max(near),
    )


# -- what is refused


@pytest.mark.few(8)
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("name", nearly_rotary(rotary_head(4, 2, 0)))
def test_impostors_are_refused(name, biases, trials, evidence):
    count = trials(1, 200)
    for seed in range(count):
        target = nearly_rotary(rotary_head(8, 4, seed, scale=2.0))[name]
        learner = us.learners.LowRankHead(8, 4, biases=biases, seed=seed, rotary=True)
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            us.learn(target, learner)
    evidence(f"rotary impostor: {name}", refused=f"{count} of {count}")


def test_with_biases_a_rank_above_that_of_the_keys_is_named():
    with pytest.raises(us.ModelMismatch, match="rank=4"):
        learn(rotary_head(8, 4, 0, biases=0.3), 8, biases=True)


def test_keys_of_a_rank_below_that_of_their_planes_are_refused():
    target = rotary_head(8, 8, 0)
    K = target.K.copy()
    K[4] = K[0]
    with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
        learn(us.RotaryHead(K, target.Q, target.v, target.rotary), 8)


def test_exact_head_asks_balanced_offsets_alone():
    with pytest.raises(ValueError, match="balanced"):
        us.learners.ExactHead(8, probes="paper", rotary=True)


# -- the information bound


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("d", "r", "turning"), [(5, 4, 1.0), (4, 4, 0.5), (6, 2, 1.0), (5, 4, 0)])
def test_the_count_is_the_rank_of_the_jacobian(d, r, turning, biases):
    """What the answers' derivatives span is what answers can tell."""
    target = rotary_head(d, r, 1, turning=turning, biases=0.5)
    names = ("K", "Q", "v", *(("k_bias", "q_bias", "c") if biases else ()))
    arrays = target.arrays()
    if not biases:
        arrays |= {name: 0 * arrays[name] for name in ("k_bias", "q_bias", "c")}
    X = np.random.default_rng(0).standard_normal((400, 6, d))
    X[:, 0] *= np.arange(400)[:, None] % 2

    def answers(name, array):
        return us.RotaryHead.from_arrays({**arrays, name: array})(X)

    still = round(r * (1 - turning))
    count = us.theory.counts.rotary_head(d, r, biases=biases, still=still)
    assert rank_of_jacobian({name: arrays[name] for name in names}, answers, 1e-7) == count
