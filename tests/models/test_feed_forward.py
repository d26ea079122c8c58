"""A feed-forward layer: arguments, and which are equal."""

from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.feed_forward import layer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A": np.ones((3, 0))}, "with d ≥ 1"),
        ({"B": np.ones((3, 3)), "c": np.ones(3), "residual": True}, "they must be the same"),
        ({"norm": us.LayerNorm(np.ones(3), None, 0.0)}, "A norm behind this layer has 2 numbers"),
        ({"norm": us.LayerNorm(np.ones(3), None, 0.0, True)}, "A norm before this layer has 2"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    fits: Any = {"A": np.ones((3, 2)), "b": np.ones(3), "B": np.ones((2, 3)), "c": np.ones(2)}
    us.FeedForward(**fits, residual=True)
    with pytest.raises(ValueError, match=message):
        us.FeedForward(**{**fits, **change})


def test_a_norm_is_a_layer_norm():
    with pytest.raises(TypeError, match="norm must be a LayerNorm; it is a str"):
        us.FeedForward([[1.0]], [1.0], [[1.0]], [1.0], norm="post")  # type: ignore[arg-type]


def test_biases_that_are_none_are_zeros():
    """Llama's layers have none."""
    A, B = np.arange(6.0).reshape(3, 2), np.ones((4, 3))
    for gate in (None, (A, None)):
        layer = us.FeedForward(A, None, B, None, activation="silu", gate=gate)
        assert np.array_equal(layer.b, np.zeros(3))
        assert np.array_equal(layer.c, np.zeros(4))


@pytest.mark.parametrize("change", [{"A": None}, {"B": None}, {"gate": (None, [0.0])}])
def test_weights_that_are_none_are_refused(change):
    fits: Any = {"A": [[1.0]], "b": None, "B": [[1.0]], "c": None}
    with pytest.raises(TypeError, match="must be an array; it is None"):
        us.FeedForward(**{**fits, **change})


# -- equality


def rewritten(f, seed):
    """The same function: scaled, split, flipped, reordered, the residual as neurons."""
    rng = np.random.default_rng(seed)
    A, b, B, c = f.A.copy(), f.b.copy(), f.B.copy(), f.c.copy()
    factor = np.exp2(rng.integers(-3, 4, len(b)))  # exact
    A, b, B = A * factor[:, None], b * factor, B / factor
    flip = rng.random(len(b)) < 0.4
    linear = B[:, flip] @ A[flip]
    c += B[:, flip] @ b[flip]
    A[flip], b[flip] = -A[flip], -b[flip]
    before = f.norm is not None and f.norm.before
    if f.residual and not before:
        linear = linear + np.eye(f.dim)
    E = np.eye(f.dim)
    half = B[:, :1] / 2
    B[:, 0] /= 2
    A = np.vstack([A, A[:1], E, -E, np.zeros((1, f.dim))])
    b = np.concatenate([b, b[:1], np.zeros(2 * f.dim), [2.0]])
    B = np.hstack([B, half, linear, -linear, np.ones((len(c), 1))])
    order = rng.permutation(len(b))
    return us.FeedForward(A[order], b[order], B[:, order], c - 2.0, f.residual and before, f.norm)


NORMS: dict[str, Any] = {
    "none": None,
    "before": us.LayerNorm([1.0, -2.0, 0.5, 3.0], [0.1, 0.2, 0.3, 0.4], 1e-3, True),
    "behind": us.LayerNorm([1.0, -2.0, 0.5, 3.0], [0.1, 0.2, 0.3, 0.4], 1e-3),
    "RMS behind": us.LayerNorm([-1.0, 2.0, 0.5, 3.0], None, 1e-3, centred=False),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("residual", [False, True])
def test_the_same_function_written_otherwise_is_equal(norm, residual):
    for seed, m in enumerate([1, 6, 30]):
        f = layer(4, m, 4, seed)
        f = us.FeedForward(f.A, f.b, f.B, f.c, residual, NORMS[norm])
        other = rewritten(f, seed)
        x = np.random.default_rng(seed).standard_normal((50, 4))
        np.testing.assert_allclose(f(x), other(x), rtol=1e-9, atol=1e-9)
        assert us.equivalent(f, other, rtol=1e-11)
        forms = us.canonical(f), us.canonical(other)
        np.testing.assert_allclose(forms[0](x), f(x), rtol=1e-9, atol=1e-9)
        for name, array in forms[0].arrays().items():
            np.testing.assert_allclose(forms[1].arrays()[name], array, rtol=1e-9, atol=1e-11)


def test_what_a_norm_hides_is_no_difference():
    f, norm = layer(4, 6, 4, 0), NORMS["behind"]
    one = us.FeedForward(f.A, f.b, f.B, f.c, norm=norm)
    mean = np.outer(np.ones(4), np.arange(6.0))  # the same in all outputs
    other = us.FeedForward(f.A, f.b, f.B + mean, f.c + 5.0, norm=norm)
    assert us.equivalent(one, other)
    turned = us.LayerNorm(-norm.scale, norm.shift, 9 * norm.eps)
    assert us.equivalent(one, us.FeedForward(f.A, f.b, -3 * f.B, -3 * f.c, norm=turned))
    rms = us.LayerNorm(norm.scale, norm.shift, norm.eps, centred=False)
    pair = [us.FeedForward(f.A, f.b, B, f.c, norm=rms) for B in (f.B, f.B + mean)]
    assert us.equivalent(pair[0], pair[1]).verdict == "different"
    before = us.LayerNorm(norm.scale, norm.shift, norm.eps, True)
    along = 1.0 / norm.scale  # what the norm lets nothing through of, but for its shift
    moved = us.FeedForward(f.A + along, f.b - along @ norm.shift, f.B, f.c, norm=before)
    assert us.equivalent(us.FeedForward(f.A, f.b, f.B, f.c, norm=before), moved)


def test_a_layer_of_one_output_is_a_network():
    f = layer(3, 6, 1, 0)
    network = us.ReluNetwork(f.A.T, f.B[0], f.b, float(f.c[0]))
    assert us.equivalent(f, network)


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_the_unit_of_length_does_not_matter(size):
    f = layer(4, 12, 4, 1)
    far = us.FeedForward(f.A, size * f.b, f.B, f.c)
    assert us.equivalent(far, rewritten(far, 0))
    assert us.equivalent(far, us.FeedForward(f.A, 1.0001 * size * f.b, f.B, f.c)).verdict == (
        "different"
    )


def test_layers_without_neurons_are_compared():
    none = us.FeedForward(np.zeros((0, 3)), [], np.zeros((2, 0)), [1.0, 2.0])
    idle = us.FeedForward(np.zeros((1, 3)), [-1.0], np.ones((2, 1)), [1.0, 2.0])
    one = us.FeedForward(np.ones((1, 3)), [0.0], np.ones((2, 1)), [1.0, 2.0])
    assert us.equivalent(none, none)
    assert us.equivalent(none, idle)
    assert us.equivalent(none, one).verdict == "different"
