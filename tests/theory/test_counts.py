"""Counts of parameters, costs of plans, tolerances of theorems, and what answers can tell."""

import ast
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import unsoftmax
import unsoftmax as us
from tests.models.test_attention_layer import NORMS, norm_of
from unsoftmax.cli.minilm import minilm_layer
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Plan
from unsoftmax.theory import counts, error_for, tolerance_for, tolerances_for
from unsoftmax.theory.costs import Cost
from unsoftmax.theory.counts import multi_head_transformer
from unsoftmax.theory.information import cramer_rao, jacobian, layer_parameters, least_queries


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 384])
def test_a_single_head_costs_its_parameters(dim):
    head = us.SingleHead(np.eye(dim), np.ones(dim), np.ones(dim), 1.0)
    sizes = {name: array.size for name, array in head.arrays().items()}
    assert counts.single_head(dim) == sizes["W"] + sizes["v"] == dim**2 + dim
    assert counts.single_head(dim, biases=True) == sum(sizes.values()) == (dim + 1) ** 2


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 7, 64])
def test_the_plan_says_the_same(dim, biases):
    plan = us.learners.ExactHead(dim, biases=biases).plan()
    assert plan.queries == counts.single_head(dim, biases=biases)
    assert plan.queries <= plan.at_most
    singles = dim + biases
    assert plan.tokens == singles + 2 * (plan.queries - singles)


def test_the_papers_counts_at_known_places():
    """Its sample sizes as computed independently, by d, μ, W, ε_W, δ."""
    for (d, error, margin, failure), k in {
        (64, 1e-6, 1 / 8, 0.01): 1.3e28,
        (64, 1e-6, 0.01, 0.01): 4.9e34,
        (2, 0.9, 0.5, 0.05): 4.4e7,
        (3, 0.9, 0.5, 0.05): 1.7e8,
    }.items():
        samples, steps = counts.label_head_paper(d, error, margin, 2.0, failure)
        assert samples == pytest.approx(k, rel=0.05)
        assert 5 <= steps <= 60


def test_the_mean_projection_is_one():
    rng = np.random.default_rng(3)
    for d in (1, 2, 3, 10):
        x = rng.standard_normal((200_000, d))
        mean = np.mean(np.abs(x[:, 0]) / np.linalg.norm(x, axis=1))
        assert mean == pytest.approx(counts.mean_projection(d), abs=4e-3)


@pytest.mark.parametrize(("d", "bits"), [(1, 40), (2, 40), (64, 50), (512, 40)])
def test_labels_cost_little_more_than_a_bit_each(d, bits):
    asked = counts.label_head(d, bits) + counts.label_head_again(d)
    assert bits * (d * d + d - 1) < asked <= 1.1 * bits * (d * d + d) + 500


# -- costs of steps add up, and every learner's plan is such a sum


def test_steps_add_up_in_every_count():
    singles = Cost.of(3, rounds=1, again=2)
    pairs = Cost.of(5, tokens=2, rounds=4)
    assert singles + pairs == Cost(queries=8, tokens=13, rounds=5, again=2)
    assert sum([singles, pairs], Cost()) == pairs + singles
    assert 3 * singles == singles + singles + singles
    assert (singles | pairs) == Cost(queries=5, tokens=10, rounds=4, again=2)


def test_what_is_asked_again_counts_at_worst_alone():
    known = Cost.of(4, tokens=2, rounds=3, again=6).plan("d", 2)
    assert known == Plan(4, 10, 8, 3, "d", FARTHEST, 2)
    bound = Cost.of(4, tokens=2, rounds=3, again=6).plan("d", 2, 7.0, known=False)
    assert bound == Plan(None, 10, 8, 3, "d", 7.0, 2)


@pytest.mark.parametrize("known", [True, False])
def test_a_plan_is_a_step_of_another_at_its_worst(known):
    plan = Cost.of(4, tokens=2, rounds=3, again=6).plan("d", 2, known=known)
    assert Cost.of_plan(plan) == Cost(queries=10, tokens=8, rounds=3)


def test_no_learner_adds_up_by_itself():
    folder = Path(unsoftmax.__file__).parent / "learners"
    own = [
        f"{path.name}:{node.lineno}"
        for path in sorted(folder.rglob("*.py"))
        if "Plan(" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Plan"
    ]
    assert own == []


# -- theorem 6.1's formulas: inverse of each other, monotone, and their constants from the proof


GRID = list(itertools.product((1, 2, 16, 384), (1.0, 0.3, 1e-3), (2.0, 7.5, 100.0)))


@pytest.mark.parametrize(("dim", "margin", "norm"), GRID)
def test_they_are_inverse_to_each_other(dim, margin, norm):
    for tau in (0.0, 1e-12, 1e-6, margin / 2):
        eps_v, eps_W = error_for(tau, dim, margin, norm)
        assert tolerance_for(eps_v, eps_W, dim, margin, norm) == pytest.approx(tau, rel=1e-12)
    for eps_v, eps_W in ((1e-3, 1e-3), (1e-9, 1.0), (np.inf, 0.1), (0.1, np.inf)):
        tau = tolerance_for(eps_v, eps_W, dim, margin, norm)
        promised = error_for(tau, dim, margin, norm)
        assert promised[0] <= eps_v * (1 + 1e-12)
        assert promised[1] <= eps_W * (1 + 1e-12)
        tight = np.isclose(promised, (eps_v, eps_W), rtol=1e-12)
        assert tight.any() or tau == margin / 2


def test_their_ends():
    assert tolerance_for(0.0, 1.0, 4, 0.5, 2.0) == tolerance_for(1.0, 0.0, 4, 0.5, 2.0) == 0.0
    assert tolerance_for(np.inf, np.inf, 4, 0.5, 2.0) == 0.25
    assert error_for(0.0, 4, 0.5, 2.0) == (0.0, 0.0)
    assert error_for(0.3, 4, 0.5, 2.0) == (0.6, np.inf)
    assert error_for(np.inf, 4, 0.5, 2.0) == (np.inf, np.inf)


def test_the_paper_s_numbers():
    # μ ε_W / (80 W² d) at d=64, W=2, ε_W=0.1, μ=1/8
    assert tolerance_for(1.0, 0.1, 64, 0.125, 2.0) == 0.125 * 0.1 / (80 * 4 * 64)


def test_single_tokens_need_the_more_precise_answers():
    for dim, margin, norm in GRID:
        for eps_v, eps_W in itertools.product((1e-9, 1e-3, np.inf), (1e-6, 1.0)):
            singles, pairs = tolerances_for(eps_v, eps_W, dim, margin, norm)
            assert singles == tolerance_for(eps_v, eps_W, dim, margin, norm) <= pairs
            assert singles <= min(eps_v / np.sqrt(dim), margin / 2)
            assert pairs == margin * eps_W / (80 * norm**2 * dim)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"dim": 0}, "dim"),
        ({"margin": 0.0}, "margin"),
        ({"margin": 1.5}, "margin"),
        ({"margin": np.nan}, "margin"),
        ({"norm_bound": 1.9}, "norm_bound"),
        ({"norm_bound": np.inf}, "norm_bound"),
        ({"eps_v": -1.0}, "eps_v"),
        ({"eps_W": np.nan}, "eps_W"),
    ],
)
def test_wrong_arguments(wrong, name):
    right: dict[str, Any] = {"eps_v": 0.1, "eps_W": 0.1, "dim": 4, "margin": 0.5, "norm_bound": 2.0}
    with pytest.raises(ValueError, match=name):
        tolerance_for(**{**right, **wrong})
    with pytest.raises(ValueError, match="tau"):
        error_for(-1e-9, 4, 0.5, 2.0)


def test_the_constants_of_the_proof():
    """Both kinds of rows, worst signs, all logits in range: below 80, zero rows below 72."""
    lipschitz = 1 / (expit(0.5) * expit(-0.5))
    assert lipschitz == pytest.approx(4.2553, abs=1e-4)
    for norm in np.geomspace(2, 1e6, 30):
        p = expit(0.5)
        plain = 2 * norm * lipschitz * 2 * (1.5 * norm + p) / norm**2
        zero = np.sqrt(8) * norm * lipschitz * 2 * ((1 + 1 / np.sqrt(8)) * norm + p) / norm**2
        assert plain <= 30.9
        assert plain + zero <= 71.1


def test_reached_from_the_top():
    assert us.theory.tolerance_for is tolerance_for
    assert us.theory.error_for is error_for


# -- the Jacobian against finite differences; the bound against an estimate that reaches it


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
