"""Theorem 5.1 as the paper writes it: Gaussian measurements and the nuclear norm.

Ground truth is built here and never shown to the learner: it sees a callable. Queries are
counted by the oracle.
"""

import itertools
import pickle

import numpy as np
import pytest

import unsoftmax as us
from tests.impostors import impostors as nearly_heads
from tests.truth import Counted, hidden, relative
from unsoftmax.learners.single_head.sensing import nuclear_norm, rank_one
from unsoftmax.learners.single_head.sensing.sensing_head import GaussianReadings
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.theory import counts


def low_rank(d, rank, seed, v="dense", scale=1.0):
    rng = np.random.default_rng([d, rank, seed])
    K, Q = rng.standard_normal((2, rank, d))
    values = rng.standard_normal(d)
    shapes = {
        "dense": values,
        "half zeros": np.where(rng.permutation(d) < d // 2, 0.0, values),
        "one-hot": 1.7 * np.eye(d)[rng.integers(d)],
        "1e-8 beside 1": np.where(rng.permutation(d) < d // 2, 1e-8 * values, values),
    }
    return us.SingleHead(scale * K.T @ Q, shapes[v])


V_SHAPES = ("dense", "half zeros", "one-hot", "1e-8 beside 1")


# -- what is promised: counts and accuracy


@pytest.mark.few
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("d", [3, 8, 16, 32])
def test_as_many_queries_as_said(d, rank):
    target = Counted(hidden(low_rank(d, rank, 0)))
    learner = us.learners.SensingHead(d, rank)
    recovery = us.learn(target, learner)
    m = min(d * d, 3 * rank * (2 * d - rank) + 4 * d)
    again = recovery.counts.get("again", 0)
    assert learner.plan().queries == d + m == d + counts.sensing(d, rank)
    assert recovery.counts["data"] + recovery.counts["pilot"] == d + m
    assert target.queries == d + m + again + 32 == recovery.queries
    assert d + m + again <= learner.plan().at_most
    assert learner.plan().tokens == d + 2 * m


def test_measurements_are_as_many_as_one_says():
    target = Counted(hidden(low_rank(12, 1, 0)))
    learner = us.learners.SensingHead(12, 1, measurements=100)
    recovery = us.learn(target, learner)
    assert learner.plan().queries == 112
    assert target.queries == 112 + 32 + recovery.counts.get("again", 0)
    assert "100" in learner.plan().formula


@pytest.mark.parametrize(("d", "rank"), [(8, 1), (8, 3), (16, 1), (16, 2), (24, 3), (32, 2)])
def test_accuracy(d, rank, trials, evidence):
    """Relative error ≤ 1e-12 with the default number of measurements, whatever v looks like."""
    errors, again, loose = [], [], []
    for seed in range(trials(2, 100)):
        target = low_rank(d, rank, seed, V_SHAPES[seed % 4])
        recovery = us.learn(hidden(target), us.learners.SensingHead(d, rank, seed=seed))
        assert recovery.evidence.passed
        error = np.linalg.norm(recovery.model.W - target.W)
        assert error <= recovery.certificate.W_error
        loose.append(recovery.certificate.W_error / error)
        errors.append(relative(recovery.model.W, target.W))
        again.append(recovery.counts.get("again", 0))
        assert len(recovery.model.arrays()["K"]) == rank
    assert np.max(errors) <= 1e-12
    assert np.median(again) <= 8
    evidence(
        f"SensingHead, d = {d:2}, rank {rank}, m = {counts.sensing(d, rank)}: error of W",
        runs=len(errors),
        median=np.median(errors),
        worst=np.max(errors),
        asked_again=f"{np.median(again):.0f} in the median",
        certificate_loose=f"{np.median(loose):.0f}×",
    )


@pytest.mark.parametrize(("d", "rank"), [(12, 1), (16, 3), (24, 2)])
def test_without_a_matrix_of_measurements(d, rank, monkeypatch):
    """The way of d = 384: the same accuracy, and a certificate that is no worse by much."""
    learner = us.learners.SensingHead(d, rank, measurements=4 * counts.of_rank(d, rank))
    target = low_rank(d, rank, 0)
    dense = us.learn(hidden(target), learner)
    monkeypatch.setattr(nuclear_norm, "INVERTED", 0)
    monkeypatch.setattr(rank_one, "WRITTEN_OUT", 0)
    monkeypatch.setattr(rank_one, "CHUNK", 1000)
    recovery = us.learn(hidden(target), learner)
    assert relative(recovery.model.W, target.W) <= 1e-12
    error = np.linalg.norm(recovery.model.W - target.W)
    assert error <= recovery.certificate.W_error <= 1.3 * dense.certificate.W_error
    assert recovery.queries == dense.queries


def test_zero_is_found_and_bounded():
    for rank in (0, 1, 2):
        target = us.SingleHead(np.zeros((9, 9)), np.arange(9.0))
        recovery = us.learn(hidden(target), us.learners.SensingHead(9, rank))
        assert np.linalg.norm(recovery.model.W) <= recovery.certificate.W_error <= 1e-20
        assert recovery.evidence.passed


def test_a_rank_below_the_given_is_found(trials):
    for seed, rank in itertools.product(range(trials(1, 3)), (0, 1, 2)):
        target = low_rank(12, rank, seed)
        recovery = us.learn(hidden(target), us.learners.SensingHead(12, 3, seed=seed))
        assert len(recovery.model.arrays()["K"]) == rank
        assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error


@pytest.mark.parametrize("d", [1, 2, 5])
def test_full_rank_takes_every_measurement_there_is(d, trials):
    for seed in range(trials(1, 5)):
        target = low_rank(d, d, seed)
        learner = us.learners.SensingHead(d, d, seed=seed)
        assert learner.plan().queries == d + d * d
        recovery = us.learn(hidden(target), learner)
        assert relative(recovery.model.W, target.W) <= 1e-10
        assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error


def test_singular_values_far_apart():
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((16, 3)))[0] for _ in range(2))
    for smallest in (1e-2, 1e-4, 1e-6):
        W = (U * [1.0, np.sqrt(smallest), smallest]) @ V.T
        target = us.SingleHead(W, rng.standard_normal(16))
        recovery = us.learn(hidden(target), us.learners.SensingHead(16, 3))
        assert relative(recovery.model.W, W) <= 1e-12
        assert len(recovery.model.arrays()["K"]) == 3


# -- too few measurements


def test_around_the_transition_nothing_is_silently_wrong(trials, evidence):
    """Recovered to 1e-9, or refused as not identifiable."""
    found = refused = 0
    grid = [(8, 1), (12, 2), (16, 1), (16, 2), (20, 1)]
    for seed in range(trials(8, 200)):
        d, rank = grid[seed % len(grid)]
        ratio = np.random.default_rng(seed).uniform(1.0, 3.0)
        m = max(1, round(ratio * counts.of_rank(d, rank)))
        target = low_rank(d, rank, seed, V_SHAPES[seed % 4])
        learner = us.learners.SensingHead(d, rank, measurements=m, seed=seed)
        try:
            recovery = us.learn(hidden(target), learner)
        except us.NotIdentifiable:
            refused += 1
            continue
        assert relative(recovery.model.W, target.W) <= 1e-9
        assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error
        found += 1
    assert found > 0
    assert refused > 0
    evidence(
        "SensingHead around the transition, 1 to 3 measurements per parameter",
        runs=found + refused,
        found=found,
        refused=refused,
        silently_wrong=0,
    )


def outcome(target, learner):
    """Whether W was returned, and the error of the matrix of least nuclear norm."""
    try:
        return True, relative(us.learn(hidden(target), learner).model.W, target.W)
    except us.NotIdentifiable as refusal:
        return False, relative(refusal.determined["least_norm_W"], target.W)


@pytest.mark.few(2)
@pytest.mark.parametrize(("d", "rank"), [(16, 1), (16, 2), (24, 3), (32, 2)])
def test_how_often_the_least_norm_is_another_matrix(d, rank, trials, evidence):
    """The theorem's failure rate by measurements; with the default number it was never seen.

    Every failure is refused, and nothing else is.
    """
    parameters, default = counts.of_rank(d, rank), counts.sensing(d, rank)
    rates = {}
    for ratio in (1.5, 2.0, 2.5, 3.0, default / parameters):
        m, failed = round(ratio * parameters), 0
        runs = trials(1, 100) if m < default else trials(2, 500)
        for seed in range(runs):
            learner = us.learners.SensingHead(d, rank, measurements=m, seed=seed)
            returned, error = outcome(low_rank(d, rank, seed), learner)
            assert returned == (error <= 1e-9)
            failed += not returned
        rates[f"at {ratio:.1f}:"] = f"{failed} of {runs}"
        assert failed == 0 or m < default
    evidence(f"SensingHead, d = {d:2}, rank {rank}: Ŵ ≠ W, by measurements per parameter", **rates)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_as_few_measurements_as_parameters_in_few_dimensions(d, trials):
    """Here the nuclear norm may pick a wrong matrix of the right rank: the hold-out sees it."""
    for seed in range(trials(4, 100)):
        target = low_rank(d, 1, seed)
        learner = us.learners.SensingHead(d, 1, measurements=2 * d - 1, seed=seed)
        try:
            recovery = us.learn(hidden(target), learner)
        except us.NotIdentifiable:
            continue
        assert relative(recovery.model.W, target.W) <= 1e-9


def test_too_few_says_how_many_suffice():
    learner = us.learners.SensingHead(16, 2, measurements=62)
    with pytest.raises(us.NotIdentifiable, match="244 usually suffice") as refused:
        us.learn(hidden(low_rank(16, 2, 0)), learner)
    assert "rank" in str(refused.value)
    assert relative(refused.value.determined["v"], low_rank(16, 2, 0).v) <= 1e-15


def test_fewer_measurements_than_parameters_are_refused_before_asking():
    with pytest.raises(ValueError, match="at least 60"):
        us.learners.SensingHead(16, 2, measurements=59)


@pytest.mark.parametrize(
    ("rank", "measurements", "queries"),
    [(32, None, 384 + 3 * 23552 + 4 * 384), (11, 9000, 9384), (2, 30000, 30384)],
)
def test_more_than_the_programme_can_take_is_refused_before_asking(rank, measurements, queries):
    learner = us.learners.SensingHead(384, rank, measurements=measurements)
    assert learner.plan().queries == queries
    target = Counted(hidden(low_rank(384, 1, 0)))
    with pytest.raises(ValueError, match="LowRankHead"):
        us.learn(target, learner)
    assert target.queries == 0


def test_a_dense_system_has_a_limit_of_its_own():
    with pytest.raises(ValueError, match="8,192"):
        us.learn(hidden(low_rank(92, 1, 0)), us.learners.SensingHead(92, 92))


@pytest.mark.parametrize("scale", [2.0**-70, 2.0**-9, 1.0, 2.0**12, 2.0**40])
def test_probes_survive_float32_at_any_scale(scale):
    """Offsets and query tokens are scaled apart, but never so far that their sum is rounded."""
    target = low_rank(9, 1, 0, scale=scale)

    def single(X):
        assert np.array_equal(X.astype(np.float32).astype(np.float64), X)
        return target(X)

    us.learn(single, us.learners.SensingHead(9, 1))


# -- what is no head of that rank


def test_a_higher_rank_is_refused(trials, evidence):
    cases = list(itertools.product([(8, 1), (8, 3), (16, 1), (16, 2)], range(trials(1, 25))))
    for (d, rank), seed in cases:
        target = low_rank(d, rank + 1, seed)
        with pytest.raises(us.ModelMismatch, match="rank"):
            us.learn(hidden(target), us.learners.SensingHead(d, rank, seed=seed))
    evidence("SensingHead: W of rank r + 1", refused=f"{len(cases)} of {len(cases)}")


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
def test_a_small_part_above_the_rank_is_not_cut_off(size, trials):
    for seed in range(trials(1, 3)):
        one, two = low_rank(12, 1, seed), low_rank(12, 1, 100 + seed)
        target = us.SingleHead(one.W + size * two.W, one.v)
        with pytest.raises(us.ModelMismatch):
            us.learn(hidden(target), us.learners.SensingHead(12, 1, seed=seed))


def impostors(d, rng):
    W, v = rng.standard_normal((d, d)), rng.standard_normal(d)
    return nearly_heads(d, rng, rank=1) | {"full rank": us.SingleHead(W, v)}


def test_what_is_refused_hands_back_the_least_norm():
    """Too few measurements, a rank above the one given, and no head at all."""
    few = us.learners.SensingHead(12, 2, measurements=60)
    target = low_rank(12, 2, 0)
    with pytest.raises(us.NotIdentifiable) as refused:
        us.learn(hidden(target), few)
    found = refused.value.determined["least_norm_W"]
    assert 0.1 < relative(found, target.W) < 1
    assert np.linalg.norm(found, "nuc") < np.linalg.norm(target.W, "nuc")
    with pytest.raises(us.ModelMismatch, match="raise rank") as mismatch:
        us.learn(hidden(target), us.learners.SensingHead(12, 1))
    assert mismatch.value.determined["least_norm_W"].shape == (12, 12)
    two = impostors(12, np.random.default_rng(0))["a second head of 1e-5"]
    with pytest.raises(us.ModelMismatch) as mismatch:
        us.learn(hidden(two), us.learners.SensingHead(12, 1))
    assert "least_norm_W" in mismatch.value.determined
    again = pickle.loads(pickle.dumps(mismatch.value))
    assert np.all(again.determined["least_norm_W"] == mismatch.value.determined["least_norm_W"])


# -- coarse answers


def test_the_certificate_says_what_it_rests_on():
    recovery = us.learn(hidden(low_rank(8, 1, 0)), us.learners.SensingHead(8, 2))
    assert any("rank 2 or less" in sentence for sentence in recovery.certificate.assumes)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_scale_found_with_rounded_answers(scale):
    """To lower logits query tokens are scaled, not offsets: decimals cost no more."""
    target = low_rank(10, 1, 0, scale=scale)
    recovery = us.learn(lambda X: np.round(target(X), 6), us.learners.SensingHead(10, 1))
    assert relative(recovery.model.W, target.W) <= 1e-5


def test_a_singular_value_in_the_rounding_does_not_unbound_the_certificate():
    one, two = low_rank(12, 1, 0), low_rank(12, 1, 1)
    target = us.SingleHead(one.W + 1e-13 * two.W, one.v)
    recovery = us.learn(hidden(target), us.learners.SensingHead(12, 2))
    error = np.linalg.norm(recovery.model.W - target.W)
    assert error <= recovery.certificate.W_error <= 1e-10


def test_no_measurement_is_of_a_vector_of_zeros():
    """On the grid that tokens are rounded to, one dimension draws 0 once in 2,000."""

    class Unlucky(np.random.Generator):
        drawn = 0

        def standard_normal(self, shape):  # type: ignore[override]
            self.drawn += 1
            return np.full(shape, 2.0**-12 if self.drawn == 1 else 0.5)

    values = Values(np.ones(1), 0.0, np.zeros(1), 0.0, Precision())
    asked = GaussianReadings.draw(3, values, Unlucky(np.random.PCG64(0)))
    assert np.all(asked.a == 0.5)
    assert np.all(asked.b == 0.5)
