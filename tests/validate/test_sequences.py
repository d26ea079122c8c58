"""Fresh sequences: how many, how long, at what logits, and exact in float32."""

import numpy as np
import pytest

import unsoftmax as us
from tests.rotary_heads import rotary_head
from unsoftmax.models import RotaryHeads
from unsoftmax.protocol import Certificate
from unsoftmax.validate import long_sequences, sequences
from unsoftmax.validate.long_sequences import FAR, TOGETHER
from unsoftmax.validate.sequences import LOGITS, OPEN_BY, Shares


def closing(*arguments, **lengths):
    """All families of the closing."""
    short, long = sequences.closing(*arguments, **lengths)
    return [*short, *long]


def certificate(W=0.0, w=0.0):
    return Certificate({"W": W, "v": 0.0, "w": w, "c": 0.0}, ())


def head(d, rng, biases=False):
    w = rng.standard_normal(d) if biases else None
    return us.SingleHead(rng.standard_normal((d, d)) / d, rng.standard_normal(d), w)


def logits(model, X):
    """Scores of all tokens but the last, beside the last one's."""
    vector = model.scores_of(X[:, -1])
    return np.einsum("bnd,bd->bn", X[:, :-1] - X[:, -1:], vector)


@pytest.mark.parametrize("checks", [0, 1, 3, 4, 7, 8, 32, 101])
def test_shares_add_up(checks):
    share = Shares.of(checks)
    assert share.opening + share.straight + share.repeats + share.closing == checks
    assert min(share.opening, share.straight, share.repeats, share.closing) >= 0
    assert share.repeats <= share.opening


def test_every_family_is_exact_in_float32_and_says_what_it_is():
    rng = np.random.default_rng(0)
    model = head(5, rng)
    first = sequences.opening(5, 16, rng)
    families = [
        first,
        sequences.straight(5, 7, rng),
        sequences.repeated(first, 9),
        *closing(model, certificate(), 23, rng),
    ]
    assert [len(family) for family in families[:3]] == [16, 7, 9]
    assert sum(len(family) for family in families[3:]) == 23
    for family in families:
        assert np.array_equal(family.X, family.X.astype(np.float32))
        assert family.purpose == "check"
        assert family.phase.startswith("hold-out, ")
    assert np.array_equal(families[2].X, first.X[:9])


@pytest.mark.parametrize("radius", [1e-3, 1.0, 5.0])
def test_no_token_is_longer_than_the_radius(radius):
    rng = np.random.default_rng(1)
    model = head(4, rng, biases=True)
    for family in (
        sequences.opening(4, 16, rng, radius),
        sequences.straight(4, 16, rng, radius),
        *closing(model, certificate(), 24, rng, radius, gain=2.0**40),
    ):
        assert np.linalg.norm(family.X, axis=2).max() <= radius


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_closing_logits_are_moderate_at_every_scale_of_W(size, biases, monkeypatch):
    monkeypatch.setattr(long_sequences, "SHAPES", ())
    monkeypatch.setattr(long_sequences, "LONG_SHARE", 99)
    rng = np.random.default_rng(2)
    base = head(6, rng, biases)
    model = us.SingleHead(size * base.W, base.v, size * base.w)
    for family in closing(model, certificate(), 48, rng):
        rms = np.sqrt(np.mean(logits(model, family.X) ** 2, axis=1))
        # sizes are powers of two; of random offsets a few meet W b by chance
        assert np.all(rms < 3 * max(LOGITS))
        assert np.median(rms) > min(LOGITS) / 3


def test_sizes_stay_where_the_certificate_leaves_logits_known():
    rng = np.random.default_rng(5)
    model = us.SingleHead(1e-9 * np.eye(4), np.ones(4))
    for W_error in (0.0, 1e-9, 1e-3):
        for family in closing(model, certificate(W_error), 24, rng):
            query = np.linalg.norm(family.X[:, -1], axis=1)
            away = np.linalg.norm(family.X - family.X[:, -1:], axis=2).max(axis=1)
            assert np.all(W_error * query * away <= OPEN_BY)


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("size", [1e-13, 1e-8, 1e-3])
def test_answers_that_all_move_alike_drift(count, size):
    rng = np.random.default_rng(10)
    first = 4.0 ** rng.integers(-4, 4, count) * rng.standard_normal(count)
    for second in (first * (1 + size), first + size * 1e3):
        with pytest.raises(us.ModelMismatch, match="drifts from query to query"):
            sequences.refuse_drift(first, second)


def test_noise_and_rounding_are_no_drift(trials):
    rng = np.random.default_rng(11)
    for _ in range(trials(500, 20_000)):
        first = 4.0 ** rng.integers(-4, 4, 8) * rng.standard_normal(8)
        for second in (
            first,
            np.nextafter(first, rng.choice([-np.inf, np.inf], 8)),
            first + 1e-9 * rng.standard_normal(8),
            first * (1 + 1e-9 * rng.standard_normal(8)),
            np.round(first + 1e-3 * rng.standard_normal(8), 3) + 1e-12,
        ):
            sequences.refuse_drift(first, second)
    # too few, or answers of 0, tell nothing
    sequences.refuse_drift(np.ones(3), 2 * np.ones(3))
    sequences.refuse_drift(np.zeros(8), np.ones(8))


@pytest.mark.parametrize("biases", [0.0, 0.5])
def test_sizes_of_logits_at_every_scale(biases):
    rng = np.random.default_rng(9)
    turned = rotary_head(6, 4, 0, biases=biases)
    plain = us.SingleHead(turned.W_at(1), turned.v, biases * turned.v)
    a, b = rng.standard_normal((5, 6)), rng.standard_normal(6)
    alpha, beta = np.exp2([0.0, 3.0, -2.0]), np.exp2([0.0, -1.0, 1.0])
    for model in (turned, plain):
        sizes = sequences.logit_sizes(model, a, b, alpha, beta)
        for size, x, y in zip(sizes, alpha, beta, strict=True):
            X = np.vstack([x * a + y * b, y * b])[None]
            weights = model.attention(X)[0]
            logits = np.log(weights[:-1] / weights[-1])
            rms = np.sqrt(np.mean(logits**2))
            # without positions the sizes of W b and w are added
            assert size == pytest.approx(rms) if model is turned or not biases else size >= rms


def test_sequences_at_distances_are_moderate_for_each_head():
    heads = [rotary_head(6, 4, seed, biases=0.3, scale=4.0**seed) for seed in range(2)]
    near, far = sequences.at_distances(
        RotaryHeads.of(heads, 6), 20, np.random.default_rng(0), lambda X: False
    )
    families = [*near, *(part for [part] in far)]
    assert sum(len(part) for part in families) == 20
    lengths = [part.tokens for part in families]
    assert lengths == sorted(set(lengths))
    assert max(lengths) == long_sequences.most_tokens(6) == 512
    assert all(part.tokens <= TOGETHER for part in near)
    wanted = [shape.logits for shape in (*sequences.NEAR, *FAR)]
    for part in families:
        if part.tokens == 1:
            continue
        for X in part[:]:
            scores = [head.scores.of(X[None])[0] for head in heads]
            sizes = [np.sqrt(np.mean((one - one[-1]) ** 2)) for one in scores]
            assert any(min(wanted) / 2 <= size <= 2 * max(wanted) for size in sizes)
