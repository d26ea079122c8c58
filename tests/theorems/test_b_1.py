"""Theorem B.1: labels alone determine a single head up to ‖v‖.

Ground truth is built here and never shown to the learner: it sees a callable that answers
whether f(X) > 0. Queries are counted by the oracle.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import unsoftmax as us
from tests.impostors import impostors
from tests.questions.services import served
from tests.theorems.test_4_1 import CASES, score_matrices, value_vectors
from tests.truth import Counted, relative
from unsoftmax.learners.single_head.labels.sphere_average import Sphere, average
from unsoftmax.theory import counts
from unsoftmax.validate import sequences as holdout

PAPER: dict[str, Any] = {"method": "paper", "norm_bound": 2.0, "margin": 0.5}


def head(d, seed, case=("generic", "dense"), scale=1.0):
    rng = np.random.default_rng([d, seed])
    return us.SingleHead(scale * score_matrices(d, rng)[case[0]], value_vectors(d, rng)[case[1]])


def labels(target):
    """All that the learner sees: one bit."""
    return lambda X: target(X) > 0


def direction(target):
    return target.v / np.linalg.norm(target.v)


def learner(d, bits=50, seed=0):
    return us.learners.LabelHead(d, bits, seed=seed)


def assert_within_certificate(recovery, target, about=None):
    errors = recovery.certificate.errors
    assert set(errors) == {"W", "v"}
    assert np.linalg.norm(recovery.model.W - target.W) <= errors["W"], about
    assert np.linalg.norm(recovery.model.v - direction(target)) <= errors["v"], about


def by_hand(target, steps):
    """Drive a generator without the runner; return what it found and all its rounds."""
    rounds = [next(steps)]
    while True:
        answers = [np.asarray(target(probes[0 : len(probes)]), float) for probes in rounds[-1]]
        try:
            rounds.append(steps.send(answers))
        except StopIteration as end:
            return end.value, rounds


# -- what is promised: counts, rounds, accuracy


@pytest.mark.few(3)
@pytest.mark.parametrize(("d", "bits"), [(64, 50), (24, 48), (3, 50), (2, 50), (1, 50), (8, 52)])
def test_a_query_per_bit_and_parameter(d, bits, evidence):
    target = head(d, 0)
    counted = Counted(labels(target))
    plan = learner(d, bits).plan()
    recovery = us.learn(counted, learner(d, bits))
    bound = 1.1 * bits * (d * d + d) + 500
    again = recovery.counts.get("again", 0)
    assert counted.queries <= bound
    assert counted.queries == recovery.queries == plan.queries + again + 32
    assert plan.queries + again <= plan.at_most <= bound
    assert plan.queries == recovery.counts["data"] + recovery.counts["pilot"]
    two_tokens = d * d * (bits + 2) + 24 * min(16, d * d)
    assert plan.tokens == plan.queries + two_tokens
    error = relative(recovery.model.W, target.W)
    assert error <= 1e-13
    evidence(
        f"labels asked by bisection, d = {d:2}, {bits} bits",
        labels=counted.queries,
        allowed=bound,
        per_bit_and_parameter=counted.queries / bits / (d * d + d),
        relative_error_of_W=error,
    )


@pytest.mark.parametrize(("d", "bits"), [(1, 50), (3, 4), (16, 50), (64, 50), (9, 20)])
def test_rounds(d, bits, evidence, trials):
    """Driven by hand: next and send are all that a learner needs."""
    for seed in range(trials(1, 3)):
        target, mine = head(d, seed), learner(d, bits, seed)
        found, rounds = by_hand(labels(target), mine.steps(32))
        assert found.evidence.passed
        assert len(rounds) <= mine.plan().rounds
        assert len(rounds) <= bits + 30
        asked = sum(len(probes) for parts in rounds for probes in parts)
        assert asked <= mine.plan().at_most + 32
        purposes = [{probes.purpose for probes in parts} for parts in rounds]
        # long sequences come last, where W is known well enough for them
        further = 2 * (found.certificate.W_error <= 0.1 * np.linalg.norm(found.model.W))
        assert purposes[len(rounds) - further :] == [{"check"}] * further
        assert purposes[len(rounds) - further - 1] == {"data", "check"}
    evidence(f"rounds, d = {d:2}, {bits:2} bits", rounds=len(rounds), allowed=bits + 30)


def test_accuracy_whatever_v_and_W_look_like_at_any_scale(trials, evidence):
    """‖W‖ over 10 orders of magnitude, unknown to the learner; relative error ≤ 1e-13."""
    errors, cases = [], itertools.cycle(CASES)
    count = trials(12, 480)
    for seed, case in zip(range(count), cases, strict=False):
        rng = np.random.default_rng([11, seed])
        d = int(rng.choice([1, 2, 3, 5, 8, 16, 24]))
        target = head(d, seed, case, 10.0 ** rng.uniform(-5, 5))
        recovery = us.learn(labels(target), learner(d, seed=seed))
        assert recovery.evidence.passed
        assert np.linalg.norm(recovery.model.v - direction(target)) <= 1e-14, case
        assert np.array_equal(recovery.model.v == 0, np.abs(direction(target)) < 1e-17), case
        assert_within_certificate(recovery, target, (d, seed, case))
        if np.any(target.W):
            errors.append(relative(recovery.model.W, target.W))
        else:
            assert np.linalg.norm(recovery.model.W) <= 1e-30
            assert any("W is 0" in note for note in recovery.notes)
    assert np.max(errors) <= 1e-13
    evidence(
        "relative error of W from labels, 50 bits, 8 shapes of v × 6 of W, ‖W‖·1e±5",
        runs=count,
        median=np.median(errors),
        worst=np.max(errors),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("scale", [1e-5, 1e5])
@pytest.mark.parametrize("case", [("rank 1", "one-hot"), ("generic", "half zeros")])
def test_scale_and_structure_at_d_64(case, scale):
    target = head(64, 1, case, scale)
    recovery = us.learn(labels(target), learner(64))
    assert relative(recovery.model.W, target.W) <= 1e-13
    assert np.array_equal(recovery.model.v == 0, target.v == 0)
    assert recovery.queries <= 1.1 * 50 * (64**2 + 64) + 500


@pytest.mark.few
@pytest.mark.parametrize("W", ["one entry", "one row", "one column", "spread of 1e6"])
@pytest.mark.parametrize("d", [2, 3, 17])
def test_sparse_and_uneven_W(d, W, trials):
    for seed in range(trials(1, 2)):
        rng = np.random.default_rng([d, seed])
        G = rng.standard_normal((d, d))
        keep = {
            "one entry": np.eye(1, d * d, int(rng.integers(d * d))).reshape(d, d),
            "one row": np.eye(1, d).T * np.ones(d),
            "one column": np.eye(1, d) * np.ones((d, 1)),
            "spread of 1e6": np.logspace(-3, 3, d),
        }[W]
        target = us.SingleHead(G * keep, rng.standard_normal(d))
        recovery = us.learn(labels(target), learner(d, seed=seed))
        assert relative(recovery.model.W, target.W) <= 1e-13
        assert_within_certificate(recovery, target)


def test_the_norm_of_v_is_said_to_be_undetermined():
    target = head(4, 0)
    small, large = (
        us.learn(labels(us.SingleHead(target.W, scale * target.v)), learner(4))
        for scale in (1e-6, 1e6)
    )
    for recovery in (small, large):
        assert np.linalg.norm(recovery.model.v) == pytest.approx(1, abs=1e-15)
        assert any("‖v‖" in note for note in recovery.notes)
        assert any("‖v‖ = 1" in sentence for sentence in recovery.certificate.assumes)
    assert relative(small.model.W, large.model.W) <= 1e-13


# -- the certificate


def test_the_certificate_holds(trials, evidence):
    """Any number of bits, any shape and scale: the true errors are within the bounds."""
    looseness, count = [], trials(10, 400)
    for seed in range(count):
        rng = np.random.default_rng([12, seed])
        d, bits = int(rng.choice([1, 2, 3, 5, 8, 13])), int(rng.integers(4, 53))
        target = head(d, seed, CASES[seed % len(CASES)], 10.0 ** rng.uniform(-5, 5))
        recovery = us.learn(labels(target), learner(d, bits, seed))
        assert recovery.evidence.passed
        assert_within_certificate(recovery, target, (seed, d, bits))
        assert np.isfinite(recovery.certificate.W_error)
        if error := np.linalg.norm(recovery.model.W - target.W):
            looseness.append(recovery.certificate.W_error / error)
    assert np.median(looseness) <= 30
    evidence(
        "certificate from labels, 4 to 52 bits",
        trials=count,
        broken=0,
        median_looseness=f"{np.median(looseness):.0f}×",
    )


def test_the_certificate_halves_with_every_bit():
    target = head(6, 0)
    bounds = [us.learn(labels(target), learner(6, bits)).certificate for bits in (10, 20, 30, 40)]
    for name in ("W", "v"):
        steps = np.diff(np.log2([bound.errors[name] for bound in bounds]))
        assert np.all(np.abs(steps + 10) < 1)


def test_a_float32_target_at_16_bits(trials):
    for seed in range(trials(1, 5)):
        rng = np.random.default_rng(seed)
        W, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((12, 12), 12))
        target = us.SingleHead(W, v)
        single = labels(served(target, np.float32))
        recovery = us.learn(single, learner(12, 16, seed))
        assert_within_certificate(recovery, target)
        with pytest.raises(us.ModelMismatch, match="float32"):
            us.learn(single, learner(12, 50, seed))


# -- wrong labels


def test_flipped_labels_are_refused(trials, evidence):
    """One label in a thousand is wrong: refused, unless none that matters was."""
    refused = harmless = none = 0
    cases = ([(2, 50), (3, 40), (5, 50), (8, 48), (12, 30)] * 100)[: trials(4, 500)]
    for seed, (d, bits) in enumerate(cases):
        target, coin, flips = head(d, seed), np.random.default_rng([13, seed]), [0]

        def wrong(X, target=target, coin=coin, flips=flips):
            flipped = coin.random(len(X)) < 1e-3
            flips[0] += int(flipped.sum())
            return (target(X) > 0) ^ flipped

        try:
            recovery = us.learn(wrong, learner(d, bits, seed))
        except (us.ModelMismatch, us.NotIdentifiable):
            assert flips[0]
            refused += 1
            continue
        # flips of the choice of scale within one octave, of v's comparisons, of the last bits
        assert_within_certificate(recovery, target, (d, seed))
        assert relative(recovery.model.W, target.W) <= 20 * 2.0**-bits
        harmless, none = harmless + (flips[0] > 0), none + (flips[0] == 0)
    assert refused > 0.7 * (refused + harmless)
    evidence(
        "labels flipped at rate 1e-3, d = 2 to 12",
        runs=len(cases),
        refused=refused,
        without_a_flip=none,
        flips_that_changed_nothing=harmless,
        wrong_recoveries=0,
    )


@pytest.mark.parametrize("rate", [1e-3, 1e-2, 0.5])
def test_flipped_labels_at_d_24_are_always_refused(rate, trials):
    for seed in range(trials(1, 100)):
        coin, target = np.random.default_rng([14, seed]), head(24, seed)
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            us.learn(
                lambda X, f=target, g=coin: (f(X) > 0) ^ (g.random(len(X)) < rate),
                learner(24, 48, seed),
            )


def test_one_flipped_label_anywhere_is_refused_or_changes_nothing(trials):
    """Every phase in turn: a single wrong label at a place of our choosing."""
    d, bits, target = 3, 40, head(3, 5)
    total = learner(d, bits).plan().queries
    refused = 0
    places = np.linspace(0, total + 20, trials(6, 400)).astype(int)
    for place in places:
        asked = [0]

        def wrong(X, place=place, asked=asked):
            y = target(X) > 0
            if asked[0] <= place < asked[0] + len(X):
                y[place - asked[0]] ^= True
            asked[0] += len(X)
            return y

        try:
            recovery = us.learn(wrong, learner(d, bits))
        except (us.ModelMismatch, us.NotIdentifiable):
            refused += 1
            continue
        assert_within_certificate(recovery, target, place)
        assert relative(recovery.model.W, target.W) <= 20 * 2.0**-bits
    assert refused > 0.6 * len(places)


# -- what cannot be known, and what is no head


def test_labels_that_are_always_1():
    with pytest.raises(us.ModelMismatch, match="constant"):
        us.learn(lambda X: np.ones(len(X)), learner(4))


def test_single_tokens_labelled_0_and_others_not():
    with pytest.raises(us.ModelMismatch, match="longer sequences"):
        us.learn(lambda X: (X.shape[1] > 1) & (X[..., 0].sum(axis=1) > 0), learner(4))


def test_labels_that_contradict_monotonicity():
    """A window of wrong labels beside every flip; labels that turn round half way."""
    target, asked = head(4, 0), [0]

    def windowed(X):
        y = target(X) / np.linalg.norm(target.v) / np.linalg.norm(X, axis=2).max(axis=1)
        return (y > 0) ^ ((np.abs(y) < 1e-6) & (np.abs(y) > 1e-9))

    def turning(X):
        asked[0] += len(X)
        return (target(X) > 0) ^ (asked[0] > 500)

    with pytest.raises(us.ModelMismatch):
        us.learn(windowed, learner(4))
    with pytest.raises(us.ModelMismatch, match="contradict each other"):
        us.learn(turning, learner(4))


def test_one_logit_out_of_reach_of_all_scales_is_refused():
    """By hand: labels of one pair of tokens say +∞ at every scale."""
    target, steps, scales = head(3, 0), learner(3).steps(0), set()

    def answer(probes):
        y = (target(probes[0 : len(probes)]) > 0).astype(float)
        if probes.phase.startswith("W"):
            odd = (probes.i == 1) & (probes.j == 2)
            scales.update(np.round(np.log2(-probes.alpha * probes.beta)[odd]))
            y[odd] = 1.0
        return y

    def drive():
        parts = next(steps)
        while True:
            parts = steps.send([answer(probes) for probes in parts])

    with pytest.raises(us.NotIdentifiable, match="1 of 9 logits") as refused:
        drive()
    assert np.allclose(refused.value.determined["v"], direction(target), atol=1e-14)
    assert len(scales) == 1 + counts.RESTARTS


@pytest.mark.parametrize("name", ["values", "twice the signs", "classes"])
def test_answers_that_are_no_labels(name):
    target = head(3, 0)
    answer = {
        "values": target,
        "twice the signs": lambda X: 2 * np.sign(target(X)),
        "classes": lambda X: np.where(target(X) > 0, 2.0, 1.0),
    }
    with pytest.raises(us.ModelMismatch, match=r"us\.oracles\.labels"):
        us.learn(answer[name], learner(3))


@pytest.mark.parametrize("name", ["a ReLU on top", "tanh on top", "clipped"])
def test_what_keeps_the_sign_keeps_the_head(name):
    """Clipping or squashing the answer defends nothing: the labels are the same."""
    rng = np.random.default_rng(1)
    target = impostors(5, rng)[name]
    W = np.random.default_rng(1).standard_normal((5, 5))
    assert relative(us.learn(labels(target), learner(5)).model.W, W) <= 1e-13


# -- the paper's algorithm


def test_the_papers_counts_are_shown_where_nobody_could_pay_them(evidence):
    plan = us.learners.LabelHead(64, 21, norm_bound=2.0, margin=1 / 8, method="paper").plan()
    assert isinstance(plan.queries, int)
    assert 1e28 < plan.queries < 1.5e28
    # exact to the last query: more digits than float64 has
    k, steps = counts.label_head_paper(64, 2.0**-20, 1 / 8, 2.0, 0.01)
    assert plan.queries == plan.at_most == k + 64**2 * steps
    assert plan.tokens == k + 2 * 64**2 * steps
    assert "k =" in plan.formula
    evidence("Theorem B.1's own count, d = 64, W = 2, μ = ⅛, ε_W = 2⁻²⁰", queries=plan.queries)


@pytest.mark.few(2)
@pytest.mark.parametrize(("d", "margin", "bits"), [(1, 1.0, 1), (1, 0.9, 2), (2, 0.7, 1)])
def test_the_paper_keeps_its_promise_where_it_ends(d, margin, bits, trials, evidence):
    """6.4 million labels at d = 2."""
    worst, runs = 0.0, trials(1, 5)
    for seed in range(runs):
        rng = np.random.default_rng([d, seed])
        W = rng.standard_normal((d, d))
        v = rng.choice([-1.0, 1.0], d) * np.array([0.705, 0.709])[:d]
        target = us.SingleHead(2 * W / np.linalg.norm(W), 3 * v)
        mine = us.learners.LabelHead(d, bits, 2.0, margin, "paper", seed)
        counted = Counted(labels(target))
        recovery = us.learn(counted, mine)
        assert mine.plan().queries == counted.queries - 32
        assert counted.tokens - 32 * 128 <= mine.plan().tokens <= counted.tokens
        assert recovery.evidence.passed
        assert recovery.certificate.W_error == 2 * 2.0**-bits
        assert_within_certificate(recovery, target)
        worst = max(worst, float(np.linalg.norm(recovery.model.W - target.W)))
    evidence(
        f"Theorem B.1 as written, d = {d}, {bits} bits",
        labels=mine.plan().queries,
        promised=2 * 2.0**-bits,
        worst=worst,
    )


def level_head(d, seed):
    """A head with ‖W‖_F = 2 whose entries of v are alike, so that μ is nearly 1/√d."""
    rng = np.random.default_rng([d, seed])
    W = rng.standard_normal((d, d))
    v = rng.choice([-1.0, 1.0], d) * np.linspace(0.7, 0.71, d)
    return us.SingleHead(2 * W / np.linalg.norm(W), 3 * v)


@pytest.mark.few(1)
@pytest.mark.parametrize(("error", "share"), [(0.25, 0.05), (0.02, 2e-4)])
def test_a_share_of_the_papers_samples_ends_at_d_2(error, share, trials, evidence):
    """k scaled by a stated factor: what is certified is what the theorem says of so many."""
    settings: dict[str, Any] = {**PAPER, "margin": 0.69, "error": error}
    whole = us.learners.LabelHead(2, **settings).plan().queries
    worst, runs = 0.0, trials(1, 20)
    for seed in range(runs):
        target, oracle = level_head(2, seed), Counted(labels(level_head(2, seed)))
        learner = us.learners.LabelHead(2, seed=seed, sample_share=share, **settings)
        recovery = us.learn(oracle, learner)
        assert oracle.queries - 32 == learner.plan().queries
        assert oracle.queries == pytest.approx(share * whole, rel=0.01)
        assert recovery.certificate.W_error == pytest.approx(error / np.sqrt(share))
        assert_within_certificate(recovery, target)
        assert any(f"a share of {share:g}" in said for said in recovery.certificate.assumes)
        worst = max(worst, float(np.linalg.norm(recovery.model.W - target.W)))
    evidence(
        f"Theorem B.1 with a share {share:g} of its samples, d = 2, ε_W = {error:g}",
        runs=runs,
        labels=learner.plan().queries,
        the_theorem_s=whole,
        certified=recovery.certificate.W_error,
        worst=worst,
    )


def test_a_smaller_probability_of_failure_costs_its_logarithm():
    settings: dict[str, Any] = PAPER
    plans = {
        failure: us.learners.LabelHead(2, 1, failure=failure, **settings).plan().queries
        for failure in (0.1, 0.01, 1e-6)
    }
    for failure, queries in plans.items():
        ratio = np.log(4 / failure) / np.log(4 / 0.01)
        assert queries == pytest.approx(ratio * plans[0.01], rel=1e-4)
    by_bits = us.learners.LabelHead(2, 3, **settings).plan()
    assert us.learners.LabelHead(2, error=0.25, **settings).plan() == by_bits
    assert "δ = 1e-06" in us.learners.LabelHead(2, 1, failure=1e-6, **settings).plan().formula


def averaged(target, d, k, seed):
    opening = holdout.opening(d, 0, np.random.default_rng(0))
    (v, _), rounds = by_hand(labels(target), average(d, k, seed, opening))
    assert sum(len(probes) for parts in rounds for probes in parts) == k
    return v


def test_the_papers_average_errs_as_hoeffding_says(trials, evidence):
    """At d = 2 with reduced k: within Hoeffding's bound, and of exactly the known variance."""
    target = us.SingleHead(np.eye(2), [0.6, -0.8])
    R, runs = counts.mean_projection(2), trials(60, 400)
    for k in (1000, 16000):
        errors = np.array([averaged(target, 2, k, seed) - target.v for seed in range(runs)])
        for failure in (0.3, 0.05):
            bound = np.sqrt(2 * np.log(4 / failure) / k) / R
            assert counts.sphere_samples(2, bound, failure) in (k, k + 1)
            assert np.mean(np.abs(errors).max(axis=1) > bound) <= failure
        deviation = np.sqrt((0.5 - R**2 * target.v**2) / k) / R
        ratio = np.sqrt(np.mean(errors**2, axis=0)) / deviation
        assert np.all(np.abs(ratio - 1) < 4 / np.sqrt(2 * runs))
        worst = np.abs(errors).max() / (np.sqrt(2 * np.log(4 / 0.05) / k) / R)
        evidence(
            f"Theorem B.1's average at d = 2, k = {k:6,}",
            runs=runs,
            worst_error_over_Hoeffding_s_at_5_percent=worst,
        )


def test_the_papers_method_says_what_it_cannot_do():
    def paper(target, margin=0.9, d=1):
        return us.learn(labels(target), us.learners.LabelHead(d, 1, 2.0, margin, "paper"))

    with pytest.raises(us.NotIdentifiable, match="W is free"):
        paper(us.SingleHead([[1.0]], [0.0]))
    with pytest.raises(us.ModelMismatch, match="are labelled 1"):
        paper(lambda X: np.ones(len(X)))
    coin = np.random.default_rng(0)
    with pytest.raises(us.ModelMismatch, match="mean of norm"):
        paper(lambda X: X[:, 0, 0] * np.where(coin.random(len(X)) < 0.1, -1, 1))
    with pytest.raises(us.ModelMismatch):
        paper(lambda X: us.SingleHead([[1.0]], [1.0])(X) - 3 * X[:, -1, 0] * (X.shape[1] > 2))
    with pytest.raises(us.NotIdentifiable, match="margin") as refused:
        us.learn(
            labels(us.SingleHead(np.eye(2), [1.0, 0.1])),
            us.learners.LabelHead(2, 1, 2.0, 0.7, "paper"),
        )
    assert np.allclose(refused.value.determined["v"], np.array([1, 0.1]) / np.sqrt(1.01), atol=0.01)


def test_the_papers_probe_flips_where_it_says():
    """a*² = σ(sW_ij)/(2W|α|), inside the interval that is bisected, for every pair of signs."""
    rng, bound, margin = np.random.default_rng(0), 2.0, 0.5
    for signs in itertools.product((-1, 1), repeat=2):
        v = np.array(signs) / np.sqrt(2)
        W = rng.standard_normal((2, 2))
        W *= bound / np.linalg.norm(W)
        alpha = v[1] / v[0]
        s = -np.sign(alpha) / (2 * bound)
        flip = np.sqrt(expit(s * W[0, 1]) / (2 * bound * abs(alpha)))
        assert np.sqrt(margin / (8 * bound)) < flip < np.sqrt(1 / (2 * bound * margin))
        for a, beyond in ((flip * (1 - 1e-9), False), (flip * (1 + 1e-9), True)):
            X = np.array([[[s / a, a], [0, a]]])
            assert (us.SingleHead(W, v)(X)[0] > 0) == (beyond == (v[1] > 0))


# -- the probes


def test_samples_of_the_sphere_do_not_depend_on_slices():
    whole = Sphere(3, 7, 0, 10_000, phase="v", purpose="data")[0:10_000]
    assert np.allclose(np.linalg.norm(whole, axis=2), 1)
    for first, start, stop in ((0, 0, 1), (0, 2047, 2049), (4096, 0, 5000), (2048, 100, 7000)):
        part = Sphere(3, 7, first, 10_000 - first, phase="v", purpose="data")
        assert np.array_equal(part[start:stop], whole[first + start : first + stop])
    assert len(Sphere(3, 7, 0, 5, phase="v", purpose="data")[3:9]) == 2
    other = Sphere(3, 8, 0, 10_000, phase="v", purpose="data")
    assert not np.array_equal(other[0:10], whole[:10])
    far = Sphere(3, 7, 2**90, 3, phase="v", purpose="data")
    assert far.design()["sphere"].tolist() != other.design()["sphere"].tolist()
    assert far[0:3].shape == (3, 1, 3)
    # uniform: every coordinate has mean 0 and variance 1/d
    assert np.all(np.abs(whole.mean(axis=0)) < 4 / np.sqrt(3e4))
    assert np.all(np.abs((whole**2).mean(axis=0) - 1 / 3) < 0.02)


@pytest.mark.parametrize("settings", [(3, 30), (1, 1, 4.0, 1.0, "paper")], ids=str)
def test_labels_of_any_type_say_the_same(settings):
    """0 and 1, ±1, np.sign and booleans are the same labels, in the hold-out as well."""
    d = settings[0]
    rng = np.random.default_rng(d)
    v = rng.standard_normal(d)
    target = us.SingleHead(rng.standard_normal((d, d)) / d, v / np.linalg.norm(v))
    forms = (
        lambda X: target(X) > 0,
        lambda X: (target(X) > 0).astype(int),
        lambda X: (target(X) > 0).astype(np.float32),
        lambda X: np.where(target(X) > 0, 1, -1),
        lambda X: np.sign(target(X)),
    )
    runs = [us.learn(oracle, us.learners.LabelHead(*settings)) for oracle in forms]
    assert runs[0].evidence.passed
    for run in runs[1:]:
        assert run.to_json() == runs[0].to_json()
        assert np.array_equal(run.model.W, runs[0].model.W)
        assert np.array_equal(run.model.v, runs[0].model.v)


# -- settings


def test_bounds_that_bisection_does_not_need_are_checked():
    target = us.SingleHead(np.diag([3.0, 4.0]), [0.6, 0.8])
    good = us.learners.LabelHead(2, 20, norm_bound=5.1, margin=0.59)
    assert us.learn(labels(target), good).evidence.passed
    for name, wrong in (
        ("norm_bound", us.learners.LabelHead(2, 20, norm_bound=4.9)),
        ("margin", us.learners.LabelHead(2, 20, margin=0.61)),
    ):
        with pytest.raises(us.ModelMismatch, match=f"contradicts {name}"):
            us.learn(labels(target), wrong)
