"""The precision of answers: every rounding is recognised, and float64 is never taken for one."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
import unsoftmax.measure.precision as precision_module
from unsoftmax.learners.single_head import first_round
from unsoftmax.learners.single_head.first_round import Changes
from unsoftmax.measure.precision import (
    FLOAT32_UNIT,
    KAPPA,
    UNIT,
    Precision,
    common_step,
    significant_bits,
    small_by_chance,
)

seeds = st.integers(0, 2**32)


def float32(y):
    return y.astype(np.float32).astype(float)


def float16(y):
    return y.astype(np.float16).astype(float)


def to_bits(y, bits):
    """Round to nearest with that many significant bits."""
    mantissa, exponent = np.frexp(y)
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits)


def cut_decimals(y, decimals):
    return np.trunc(y * 10.0**decimals) / 10.0**decimals


def to_digits(y, digits):
    return np.array([float(f"{x:.{digits - 1}e}") for x in y])


# of the three-token sequences that learners ask first
SIZES = 4.0 ** np.array([0, -1, 1, -2, 2, -3, 3, -4])


def sample(seed, n=24, scale=1.0):
    """Answers to generic sequences of several sizes."""
    rng = np.random.default_rng(seed)
    return scale * 4.0 ** rng.integers(-3, 3, n) * rng.standard_normal(n)


def assert_bounds(precision, y, rounded, loosest):
    """The error promised for the rounded answers covers what rounding did, and not much more."""
    done = np.abs(rounded - y)
    promised = precision.error(np.abs(y), rounded)
    assert np.all(done <= promised)
    assert np.max(promised / np.maximum(done.max(), 1e-300)) < loosest * np.max(
        promised / promised.min()
    )


# -- recognised


@given(seeds, st.sampled_from([1e-3, 1.0, 1e3]))
def test_float32(seed, scale):
    y = sample(seed, scale=scale)
    precision = Precision.of_format([float32(y)])
    assert precision.relative == FLOAT32_UNIT
    assert precision.absolute == 0
    assert FLOAT32_UNIT / 2 <= precision.unit <= FLOAT32_UNIT
    assert "float32" in precision.why[0]
    assert_bounds(precision, y, float32(y), 8)


@given(seeds)
def test_float16(seed):
    y = sample(seed)
    y[np.abs(y) < 2.0**-14] = 1 / 3  # below, float16 has fewer bits
    precision = Precision.of_format([float16(y)])
    assert 2.0**-11 <= precision.relative <= 2.0**-10
    assert precision.unit <= 2.0**-11
    assert "float16" in precision.why[0]
    assert_bounds(precision, y, float16(y), 8)


@given(seeds, st.integers(5, 44))
def test_any_number_of_bits(seed, bits):
    y = sample(seed, 64)
    precision = Precision.of_format([to_bits(y, bits)])
    assert 2.0**-bits <= precision.relative <= 2.0 ** (1 - bits)
    assert ("bfloat16" in precision.why[0]) == (bits == 8)
    assert_bounds(precision, y, to_bits(y, bits), 8)


@given(seeds)
def test_bits_that_are_cut_off(seed):
    y = sample(seed)
    cut = y.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    bfloat16 = cut.view(np.float32).astype(float)
    assert_bounds(Precision.of_format([bfloat16]), y, bfloat16, 8)


@given(seeds, st.integers(1, 9), st.sampled_from([np.round, cut_decimals]))
def test_decimals(seed, decimals, how):
    y = sample(seed)
    precision = Precision.of_format([how(y, decimals)])
    assert 0.499 * 10.0**-decimals < precision.absolute < 1.001 * 10.0**-decimals
    assert precision.unit == UNIT
    assert f"{decimals} decimals" in precision.why[-1]
    assert_bounds(precision, y, how(y, decimals), 20)


@pytest.mark.parametrize("decimals", [12, 13, 14])
def test_decimals_that_large_answers_have_no_room_for(decimals, trials):
    """Those have as many digits as float64 has; smaller ones lack them, where there are some."""
    runs, noticed = trials(100, 3_000), 0
    for seed in range(runs):
        y = sample(seed, 16, 30.0)
        precision = Precision.of_format([np.round(y, decimals)])
        if precision != Precision():
            assert 0.499 * 10.0**-decimals < precision.absolute < 1.001 * 10.0**-decimals, seed
            assert f"{decimals} decimals" in precision.why[-1]
            noticed += 1
    assert noticed > 0.95 * runs


@given(seeds, st.floats(-6, -1), st.booleans(), st.sampled_from([np.round, np.floor]))
def test_steps_of_any_size(seed, decimals, from_0, how):
    y, step = sample(seed), 10.0**decimals / 3
    first = 0.0 if from_0 else float(np.random.default_rng(seed).uniform())
    stepped = first + step * how((y - first) / step)
    precision = Precision.of_format([stepped])
    assert 0.999 * step < precision.absolute < 1.001 * step
    assert "steps of" in precision.why[-1]
    assert_bounds(precision, y, stepped, 20)


@pytest.mark.parametrize("size", [0.1, 1.0, 100.0, 3000.0])
def test_steps_that_begin_anywhere(size, trials):
    """Answers are what is left of an offset, and rounded as that is."""
    for seed in range(trials(200, 10_000)):
        rng = np.random.default_rng([seed, int(size)])
        first, step = size * rng.standard_normal(), 10.0 ** rng.uniform(-6, -1) / 3
        stepped = first + step * np.round((sample(seed) - first) / step)
        assert 0.999 < Precision.of_format([stepped]).absolute / step < 1.001, seed


def test_steps_of_as_many_decimals_as_generic_answers():
    """0.0205043961498601 has 16, and so has every multiple: the step is what answers are off by."""
    step = 0.0205043961498601
    stepped = step * np.round(sample(104) / step)
    assert Precision.of_format([stepped]).absolute == pytest.approx(step)


@given(seeds, st.floats(-1, 0))
def test_float32_answers_in_steps(seed, decimals):
    y, step = sample(seed), 10.0**decimals / 3
    stepped = float32(step * np.round(y / step))
    precision = Precision.of_format([stepped])
    assert 0.999 * step < precision.absolute < 1.001 * step
    assert precision.relative == FLOAT32_UNIT


@given(seeds, st.integers(2, 9))
def test_significant_digits(seed, digits):
    y = sample(seed)
    precision = Precision.of_format([to_digits(y, digits)])
    assert 0.499 * 10.0 ** (1 - digits) < precision.relative < 1.001 * 10.0 ** (1 - digits)
    assert f"{digits} significant digits" in precision.why[0]
    assert_bounds(precision, y, to_digits(y, digits), 40)


def test_digits_or_decimals_both_count():
    """Numbers between 1 and 10 do not tell which it was."""
    y = np.round(np.random.default_rng(0).uniform(1, 10, 20), 4)
    y[0], y[1] = 1.2345, 9.8765
    precision = Precision.of_format([y])
    assert precision.error(y, y).min() >= 0.5e-4


@pytest.mark.parametrize("n", [4, 6, 16])
def test_the_rounding_that_is_there_is_not_dropped_for_the_other(n, trials):
    """Digits and decimals leave zeros at the end by chance, in few answers as in many."""
    for seed in range(trials(300, 10_000)):
        y = sample(seed, n)
        for rounded, name in (
            (to_digits(y, 5), "significant digits"),
            (np.round(y, 5), "decimals"),
        ):
            assert name in " ".join(Precision.of_format([rounded]).why), seed


@given(seeds, st.sampled_from([3, 6]))
def test_zeros_between_do_not_hide_a_format(seed, decimals):
    y = SIZES[np.arange(24) % 8] * np.random.default_rng(seed).standard_normal(24)
    y[::3] *= 1e-12
    for rounded in (np.round(y, decimals), np.append(float32(y), 0.0)):
        precision = Precision.of_format([rounded[:7], rounded[7:, None]])
        assert len(precision.why) == 1
        assert precision == Precision.of_format([rounded[rounded != 0]])
        assert np.all(np.abs(rounded[: len(y)] - y) <= precision.error(np.abs(y), rounded[:24]))


def test_a_float32_target_that_rounds_to_decimals():
    y = sample(0)
    assert Precision.of_format([float32(np.round(y, 2))]).relative == FLOAT32_UNIT


# -- float64 is never taken for a format


def never_mistaken(make, trials):
    for seed in range(trials):
        y = make(np.random.default_rng(seed))
        assert Precision.of_format([y]) == Precision(), (seed, y)


@pytest.mark.few
@pytest.mark.parametrize("n", [4, 8, 16, 100])
@pytest.mark.parametrize("scale", [1e-200, 1e-3, 1.0, 7.0, 200.0, 2000.0, 1e9, 1e200])
def test_random_numbers(n, scale, trials):
    never_mistaken(lambda rng: scale * rng.standard_normal(n), trials(300, 3_000))


@pytest.mark.parametrize("n", [8, 16, 100])
def test_random_numbers_of_many_sizes(n, trials):
    never_mistaken(lambda rng: sample(rng, n), trials(300, 3_000))
    never_mistaken(lambda rng: 10.0 ** rng.uniform(-6, 6, n), trials(300, 3_000))


def test_tokens_in_powers_of_two_make_no_steps(trials):
    """What is linear in them is answered in multiples of what the shortest is."""
    line = 8.0 ** np.arange(-5, 10)
    for seed in range(trials(30, 3_000)):
        slope = np.random.default_rng(seed).standard_normal()
        assert common_step(slope * np.append(-line, line), UNIT) == 0, seed


def generic(d, rng, n=8):
    """Sequences of three float32 tokens of several sizes, as learners ask them first."""
    sizes = SIZES[np.arange(n) % 8]
    return float32(sizes[:, None, None] * rng.standard_normal((n, 3, d)) / np.sqrt(d))


VALUES = {
    "one-hot": lambda d, rng: np.eye(d)[0],
    "ones": lambda d, rng: np.ones(d),
    "small integers": lambda d, rng: rng.choice([-5.0, -2.0, -1.0, 1.0, 2.0, 4.0], d),
    "powers of two": lambda d, rng: np.exp2(rng.integers(-20, 20, d)),
}
SCORES = {
    "zero": lambda d, rng: np.zeros((d, d)),
    "identity": lambda d, rng: np.eye(d),
    "one entry": lambda d, rng: np.outer(np.eye(d)[0], np.eye(d)[-1]),
    "generic": lambda d, rng: rng.standard_normal((d, d)),
    "large": lambda d, rng: 1e4 * rng.standard_normal((d, d)),
    "tiny": lambda d, rng: 1e-30 * rng.standard_normal((d, d)),
}


@pytest.mark.few
@pytest.mark.parametrize("v", VALUES)
@pytest.mark.parametrize("W", SCORES)
@pytest.mark.parametrize("d", [1, 2, 3, 16])
def test_answers_of_plain_heads(d, W, v, trials):
    def answers(rng):
        head = us.SingleHead(SCORES[W](d, rng), VALUES[v](d, rng))
        return head(generic(d, rng))

    never_mistaken(answers, trials(20, 60))  # zero scores: all 8 sums are multiples of 3 in 3⁻⁸


@pytest.mark.parametrize(("W", "v"), [(1e9, 1.0), (0.0, 3.0)])
def test_heads_that_pass_a_token_through_cost_nothing_but_a_wider_bound(W, v):
    """All weight on one token, or a third on each of three: float32 tokens come out as they are.

    From such answers nobody can tell that the target computes in float64.
    """
    rng = np.random.default_rng(0)
    target = us.SingleHead(W * rng.standard_normal((8, 8)), v * np.eye(8)[0])
    recovery = us.learn(target, us.learners.ExactHead(8))
    error = np.linalg.norm(recovery.model.W - target.W)
    assert error <= 1e-11 * np.linalg.norm(target.W)
    assert error <= recovery.certificate.W_error
    assert recovery.evidence.passed


@pytest.mark.parametrize("y", [[], [0.5], [0.5, 0.25, 1.0], [0.0] * 50])
def test_nothing_to_judge_by(y):
    assert Precision.of_format([np.array(y)]) == Precision()


# -- the bound


@pytest.mark.parametrize("d", [1, 4, 64, 384])
def test_kappa_covers_the_rounding_of_a_head(d, trials):
    worst = 0.0
    for seed in range(trials(20, 300)):
        rng = np.random.default_rng([d, seed])
        v, x = rng.standard_normal((2, d))
        answer = us.SingleHead(np.eye(d), v)(x[None, None])[0]
        true = sum(map(Fraction.__mul__, map(Fraction, v.tolist()), map(Fraction, x.tolist())))
        error = float(abs(Fraction(float(answer)) - true))
        worst = max(worst, error / float(UNIT * np.linalg.norm(x) * np.linalg.norm(v)))
    assert worst < KAPPA


def test_noise_is_bounded_by_several_deviations(trials):
    """From however few repeats it was estimated, the bound holds for nearly all answers."""
    for repeats in (4, 8, 32):
        outside = 0.0
        for seed in range(trials(100, 3_000)):
            rng = np.random.default_rng([seed, repeats])
            first, second = rng.standard_normal((2, repeats))
            estimate = float(np.sqrt(np.mean((first - second) ** 2) / 2))
            bound = Precision().with_noise(estimate, repeats).absolute
            outside += float(np.mean(np.abs(rng.standard_normal(100)) > bound))
        assert outside / trials(100, 3_000) < 1e-4


# -- significant bits


@pytest.mark.parametrize(
    ("y", "bits"),
    [
        ([], 0),
        ([0.0], 0),
        ([1.0], 1),
        ([-(2.0**-1000), 2.0**1000], 1),
        ([3.0, 0.0], 2),
        ([1.0, 1 + 2.0**-23], 24),
        ([float(np.float32(0.1))], 24),  # 0.1 ends in a 1 there
        ([1 + 2.0**-52], 53),
        ([-1.0 - 2.0**-52, 0.5], 53),
        ([np.finfo(float).max], 53),
        ([5e-324], 1),
    ],
)
def test_significant_bits(y, bits):
    assert significant_bits(np.array(y)) == bits


# -- stated, not recognised


def test_numbers_say_what_counts_as_rounded(monkeypatch):
    """Answers that need 12 of 16 digits are generic for one who asks for 10."""
    y = np.round(np.random.default_rng(0).uniform(1, 2, 40), 11)
    assert Precision.of_format([y]).why
    monkeypatch.setattr(precision_module, "GENERIC_DIGITS", 10)
    assert Precision.of_format([y]) == Precision()
    wide = Precision().with_noise(1e-3, 8).absolute
    monkeypatch.setattr(precision_module, "NOISE_DEVIATIONS", 2.0)
    assert wide == 2 * Precision().with_noise(1e-3, 8).absolute


@pytest.mark.parametrize(("dim", "times"), [(1, 80_000), (2, 316), (8, 5.6), (128, 1.4)])
def test_how_small_a_root_mean_square_may_be_by_chance(dim, times):
    assert small_by_chance(dim, 1e-5) == pytest.approx(times, rel=0.05)
    rms = np.sqrt(np.mean(np.random.default_rng(0).standard_normal((100_000, dim)) ** 2, axis=1))
    assert np.mean(rms < 1 / small_by_chance(dim, 1e-2)) == pytest.approx(1e-2, rel=0.2)


# -- what two answers to one question differ by: its kind is told, and its size bounded


KINDS = ["terms", "answer", "absolute"]


def drawn(kind, seed, deviation=1e-9, sizes=SIZES):
    """Draw answers of these natural sizes, twice."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    y = sizes * rng.uniform(-1, 1, len(sizes))
    scale = {"terms": sizes, "answer": np.abs(y), "absolute": np.ones(len(sizes))}[kind]
    return y, *(y + deviation * scale * x for x in rng.standard_normal((2, len(sizes)))), scale


@pytest.mark.parametrize("kind", KINDS)
def test_further_answers_are_within_the_bound(kind, trials):
    outside, count = 0.0, trials(100, 2000)
    for seed in range(count):
        y, first, second, scale = drawn(kind, seed)
        found = Changes(first, second, SIZES).added_to(Precision())
        further = 1e-9 * scale * np.random.default_rng(seed).standard_normal((50, len(y)))
        outside += np.mean(np.abs(further) > found.error(SIZES, y))
        assert found.noise > 0
        assert "standard deviation" in found.why[0]
    assert outside / count < 1e-3


@pytest.mark.parametrize("rate", [1e-14, 1e-11, 1e-8])
def test_a_drift_goes_on(rate, monkeypatch):
    for seed in range(20):
        y = SIZES * np.random.default_rng(seed).uniform(-1, 1, 8)
        changes = Changes(y, y * (1 + 25 * rate), SIZES, apart=25, ahead=1000)
        found = changes.added_to(Precision())
        assert found.relative >= 1000 * rate
        assert "drifted" in found.why[1]
        with monkeypatch.context() as patched:
            patched.setattr(first_round, "TELLING", 9)
            assert len(changes.added_to(Precision()).why) == 1
