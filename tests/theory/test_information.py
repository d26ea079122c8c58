"""The Jacobian against finite differences; the bound against an estimate that reaches it."""

import numpy as np
import pytest

import unsoftmax as us
from tests.models.test_attention_layer import NORMS, norm_of
from unsoftmax.cli.minilm import minilm_layer
from unsoftmax.theory.counts import multi_head_transformer
from unsoftmax.theory.information import cramer_rao, jacobian, layer_parameters, least_queries


@pytest.mark.parametrize("N", [1, 2, 5])
def test_the_jacobian_is_the_derivative(N):
    d, h = 4, 1e-6
    rng = np.random.default_rng(N)
    theta, X = rng.standard_normal(d + d * d), rng.standard_normal((7, N, d))

    def answers(theta):
        return us.SingleHead(theta[d:].reshape(d, d), theta[:d])(X)

    steps = h * np.eye(len(theta))
    numeric = np.array([(answers(theta + s) - answers(theta - s)) / (2 * h) for s in steps]).T
    head = us.SingleHead(theta[d:].reshape(d, d), theta[:d])
    assert np.allclose(jacobian(head, X), numeric, rtol=0, atol=1e-7)


def test_the_bound_is_what_linearised_least_squares_reaches():
    d, sigma = 3, 1e-3
    rng = np.random.default_rng(0)
    head = us.SingleHead(rng.standard_normal((d, d)), rng.standard_normal(d))
    X = rng.standard_normal((40, 2, d))
    errors = np.linalg.pinv(jacobian(head, X)) @ (sigma * rng.standard_normal((40, 4000)))
    v_error, W_error = cramer_rao(head, X, sigma)
    assert np.sqrt(np.mean(np.sum(errors[:d] ** 2, axis=0))) == pytest.approx(v_error, rel=0.05)
    assert np.sqrt(np.mean(np.sum(errors[d:] ** 2, axis=0))) == pytest.approx(W_error, rel=0.05)


# -- layers


def layer_of(theta, d, m, residual, norm):
    """Two heads of ranks 2 and 1, a constant and a norm, of their numbers one after the other."""
    place = 0

    def take(shape):
        nonlocal place
        place += int(np.prod(shape))
        return theta[place - int(np.prod(shape)) : place].reshape(shape)

    heads = []
    for _ in range(2):
        O, V, K, Q, b = (take(s) for s in ((m, 2), (2, d), (1, d), (1, d), (1,)))  # noqa: E741
        heads.append(us.LayerHead.from_factors(O, V, K, Q, K.T @ b))
    c = take((m,))
    if norm is not None:
        scale, shift, [eps] = (take(s) for s in ((norm.width,), (norm.width,), (1,)))
        norm = us.LayerNorm(scale, shift, eps, norm.before, norm.centred)
    return us.AttentionLayer(heads, c, residual, norm)


@pytest.mark.few(4)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("kind", NORMS)
def test_free_parameters_are_the_directions_in_which_answers_change(kind, residual):
    d, m, h = 5, 5 if residual else 4, 1e-5
    rng = np.random.default_rng(3)
    norm = norm_of(kind, rng, m, d)
    size = 2 * (2 * (m + d) + 2 * d + 1) + m + (0 if norm is None else 2 * norm.width + 1)
    theta = rng.standard_normal(size)
    theta[-1] = abs(theta[-1]) + 0.2  # eps, where there is a norm
    X = np.concatenate([rng.standard_normal((80, N, d))[:, [0] * (3 - N) + [*range(N)]]
                        for N in (1, 2, 3)])  # fmt: skip
    numeric = [
        (layer_of(theta + step, d, m, residual, norm)(X)
         - layer_of(theta - step, d, m, residual, norm)(X)).ravel() / (2 * h)
        for step in h * np.eye(size)
    ]  # fmt: skip
    s = np.linalg.svd(np.array(numeric), compute_uv=False)
    free = layer_parameters(layer_of(theta, d, m, residual, norm))
    assert s[free - 1] > 1e-6 * s[0]
    assert free == size or s[free] < 1e-8 * s[0]


def test_bounds_of_trained_layers():
    assert least_queries(minilm_layer(0)) == 1474
    assert least_queries(minilm_layer(0, whole=True)) == 1483


# -- several heads before a network


def joint_of(theta, sizes):
    """Heads of rank r before a network of k inputs, values of rank s: its numbers in order."""
    H, d, m, r, k, s = sizes
    shapes = [(H, r, d), (H, r, d), (H, r), (H, k, s), (H, s, d), (m, k), (m,), (m,), ()]
    lengths = [int(np.prod(shape)) for shape in shapes]
    if theta is None:
        return sum(lengths)
    cut = np.split(theta, np.cumsum(lengths)[:-1])
    K, Q, b_q, O, V, A, w_o, b, c = map(np.reshape, cut, shapes)  # noqa: E741
    w = np.einsum("hrd,hr->hd", K, b_q)
    return us.MultiHeadTransformer.from_factors(K, Q, A @ O @ V, w_o, b, w, float(c))


@pytest.mark.few(4)
@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize(
    ("m", "rank", "inputs", "values"),
    [(5, 3, 5, 3), (7, 2, 7, 3), (7, 3, 3, 3), (8, 1, 4, 3), (8, 3, 4, 2), (9, 2, 9, 2)],
)
def test_free_parameters_of_heads_before_a_network(H, m, rank, inputs, values):
    """The rank of the Jacobian at random sequences, of which none is next to a hyperplane."""
    d, h, sizes = 3, 1e-7, (H, 3, m, rank, inputs, values)
    rng = np.random.default_rng([H, m])
    theta = rng.standard_normal(joint_of(None, sizes))
    X = np.concatenate([s * rng.standard_normal((150, 4, d)) for s in (0.5, 1.0, 2.0)])
    X[:100] = X[:100, -1:]  # single tokens
    model = joint_of(theta, sizes)
    z = np.abs(model.pooled(X).reshape(len(X), -1) @ model.network.A + model.b).min(axis=1)
    X = X[z > 1e-3]
    steps = h * np.eye(len(theta))
    numeric = [joint_of(theta + e, sizes)(X) - joint_of(theta - e, sizes)(X) for e in steps]
    columns = np.array(numeric).T / np.linalg.norm(numeric, axis=1)
    found = np.linalg.svd(columns, compute_uv=False)
    known = multi_head_transformer(d, H, m, rank, inputs=inputs, value_rank=values)
    assert found[known - 1] > 1e-5 * found[0]
    assert len(found) == known or found[known] < 1e-6 * found[0]
