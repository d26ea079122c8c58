"""One head, several, and heads of ids: answers, one canonical form per function, files."""

import pickle
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from tests.models.test_equality import exact


def several(H, d, seed=0, rank=None, biases=True):
    """A model with every parameter, from factors if a rank is given."""
    rng = np.random.default_rng([H, d, seed])
    v, w = rng.standard_normal((2, H, d))
    rest = (w, 0.7) if biases else ()
    if rank is None:
        return us.MultiHead(rng.standard_normal((H, d, d)), v, *rest)
    K, Q = rng.standard_normal((2, H, rank, d))
    return us.MultiHead.from_factors(K, Q, v, *rest)


@st.composite
def models(draw):
    rank = draw(st.none() | st.integers(0, 3))
    H, d, seed = draw(st.integers(0, 5)), draw(st.integers(1, 5)), draw(st.integers(0, 2**32))
    return several(H, d, seed, rank, draw(st.booleans()))


# -- the forward map


def test_answering_never_forms_W(monkeypatch):
    model = several(3, 5, rank=2)
    product = model.W
    monkeypatch.setattr(us.MultiHead, "W", property(lambda _: pytest.fail("formed W")))
    model(np.zeros((2, 3, 5)))
    expected = min(np.linalg.norm(W) for W in product)
    assert model.parameter_norm("W") == pytest.approx(expected, rel=1e-13)


def test_no_heads():
    model = us.MultiHead(np.zeros((0, 3, 3)), np.zeros((0, 3)), c=2.0)
    np.testing.assert_array_equal(model(np.ones((2, 4, 3))), [2.0, 2.0])
    assert (model.dim, model.H, model.parameter_norm("W"), model.heads) == (3, 0, 0.0, ())
    assert us.equivalent(model, us.SingleHead(np.eye(3), np.zeros(3), c=2.0), rtol=0)
    assert us.canonical(us.MultiHead(np.ones((2, 3, 3)), np.zeros((2, 3)))).H == 0


# -- canonical form


@given(models(), st.randoms(use_true_random=False))
def test_order_and_splits_do_not_matter(model, random):
    """Heads in any order, some split into exact shares, and heads without values."""
    order = [*range(model.H), *random.choices(range(model.H), k=3)] if model.H else []
    times = np.bincount(order, minlength=model.H)
    random.shuffle(order)
    v = [model.v[h] for h in order]
    # n copies of v, less n − 1 of them on the last one, is v exactly only if sums are exact
    for h in np.flatnonzero(times > 1):
        places = [k for k, g in enumerate(order) if g == h]
        v[places[0]] = -(len(places) - 2) * model.v[h]
    split = np.array(v).reshape(-1, model.dim)
    silent, arrays = np.ones((1, model.dim)), model.arrays()
    more = {
        name: np.concatenate([arrays[name][order], np.ones((1, *arrays[name].shape[1:]))])
        for name in arrays.keys() & {"W", "K", "Q", "w"}
    }
    v_of_all = np.concatenate([split, -0.0 * silent])
    other = us.MultiHead.from_arrays({**more, "v": v_of_all, "c": model.c})
    mine, its = us.canonical(model), us.canonical(other)
    for name in "Wvwc":
        np.testing.assert_array_equal(getattr(mine, name), getattr(its, name))
    assert us.equivalent(model, other, rtol=0)
    assert us.equivalent(other, model)


def test_sums_are_exact():
    """What one rounding would hide is not called equal, nor what it would add."""
    W = np.eye(2)
    whole = us.SingleHead(W, [1.0, 0.0])
    more = us.MultiHead([W, W], [[1.0, 0.0], [1e-20, 0.0]])
    assert us.equivalent(whole, more)
    assert us.equivalent(whole, more, rtol=0).verdict == "undecided"
    gone = us.MultiHead([W, W, W], [[1.0, 0.0], [1e-20, 0.0], [-1e-20, 0.0]])
    assert us.equivalent(whole, gone, rtol=0)


# -- different, with a witness


def assert_told_apart(result, a, b):
    """The witness separates the two, by float64 answers whose difference is no rounding."""
    assert result.verdict == "different"
    x = result.witness
    assert len(x) <= 3
    seen = Decimal(float(a(x[None])[0])) - Decimal(float(b(x[None])[0]))
    true = total(a, x) - total(b, x)
    assert seen
    assert abs(seen - true) < abs(true) / 2


def total(model, x):
    """f(x) in 60 digits, head by head."""
    if isinstance(model, us.SingleHead):
        return exact(model, x)
    with localcontext(Context(prec=60)):
        return sum((exact(head, x) for head in model.heads), Decimal(model.c))


@pytest.mark.parametrize("d", [1, 3, 6])
def test_what_two_tokens_cannot_tell(d):
    """σ(t) = 1 − σ(−t): only repeats or a third token show it."""
    rng = np.random.default_rng(d)
    W, v, w = rng.standard_normal((d, d)), rng.standard_normal(d), rng.standard_normal(d)
    a = us.SingleHead(W, v, w)
    b = us.MultiHead([-W, 0 * W], [-v, 2 * v], [-w, 0 * w])
    for N in (1, 2):
        X = rng.standard_normal((50, N, d))
        np.testing.assert_allclose(a(X), b(X), atol=1e-13)
    result = us.equivalent(a, b)
    assert_told_apart(result, a, b)
    assert result.witness is not None
    assert len(result.witness) == 3


def test_heads_of_very_different_values():
    rng = np.random.default_rng(0)
    W, v, w = several(6, 5).W, several(6, 5).v * np.logspace(0, 4, 6)[:, None], several(6, 5).w
    a = us.MultiHead(W, v, w)
    order = rng.permutation(6)
    nearly = W * (1 + 1e-12 * rng.standard_normal(W.shape))
    assert us.equivalent(a, us.MultiHead(nearly[order], v[order], w[order]))
    for h in range(6):  # the smallest too
        other = W.copy()
        other[h] = W[h] + 1e-4 * rng.standard_normal((5, 5))
        b = us.MultiHead(other[order], v[order], w[order])
        assert_told_apart(us.equivalent(a, b), a, b)
        fewer = np.delete(np.arange(6), h)
        b = us.MultiHead(W[fewer], v[fewer], w[fewer])
        assert_told_apart(us.equivalent(a, b), a, b)


def test_other_constants_and_other_classes():
    a = several(2, 3)
    b = us.MultiHead(a.W, a.v, a.w, a.c + 1)
    assert_told_apart(us.equivalent(a, b), a, b)
    one = us.MultiHead(a.W[:1], a.v[:1], a.w[:1], a.c)
    head = us.SingleHead(a.W[0], a.v[0], a.w[0], a.c)
    assert us.equivalent(one, head, rtol=0)
    assert us.equivalent(head, one, rtol=0)
    assert_told_apart(us.equivalent(a, head), a, head)


# -- undecided


def nearly_one(v):
    """Two heads whose scores differ by 1e-11 of their size."""
    W = several(1, 3).W[0]
    return us.MultiHead([W, W * (1 + 1e-11)], v)


def test_nearly_equal_heads_are_no_guess():
    v = several(2, 3).v
    apart = nearly_one(v)
    merged = us.MultiHead(apart.W[:1], [v[0] + v[1]])
    moved = nearly_one([v[0] + 1, v[1] - 1])
    for other in (merged, moved):
        assert us.equivalent(apart, other).verdict == "undecided"
        assert us.equivalent(other, apart).verdict == "undecided"
        # below their difference they are two
        assert us.equivalent(apart, other, rtol=1e-13).verdict == "different"
        assert_told_apart(us.equivalent(apart, other, rtol=1e-13), apart, other)


def test_nearly_equal_heads_that_change_nothing():
    v = several(2, 3).v
    assert us.equivalent(nearly_one(v), nearly_one(v))
    # one way or the other, a head is missing
    other = nearly_one([v[0] + 1, v[1]])
    assert_told_apart(us.equivalent(nearly_one(v), other), nearly_one(v), other)


@pytest.mark.parametrize("size", [1e-8, 1e-14])
def test_a_small_head_is_matched_by_what_a_certificate_allows(size):
    model = several(4, 3)
    v = model.v.copy()
    v[1] *= size
    W = model.W + 1e-7 * np.random.default_rng(0).standard_normal(model.W.shape)
    target, found = (us.MultiHead(x, v, model.w, model.c) for x in (model.W, W))
    errors = {"W": 1e-5, "w": 1e-5, "v": 1e-3 * float(np.linalg.norm(v[1])), "c": 1e-3}
    result = us.equivalent(found, target, rtol=0, errors=errors)
    assert (result.verdict, result.by) == ("equal", "certificate")
    assert result.share is not None
    assert result.share < 1


# -- one head: products that are never formed, the ends of float64, arguments refused


# -- the forward map


def test_factored_answers_never_form_the_matrix():
    head = us.SingleHead.from_factors(np.ones((1, 4)), np.ones((1, 4)), np.ones(4))
    head(np.ones((2, 3, 4)))
    head.scores_of(np.ones((2, 4)))
    assert "_W" not in vars(head)
    np.testing.assert_array_equal(head.W, np.ones((4, 4)))


@pytest.mark.parametrize("size", [1e3, 1e10, 1e100, 1e153])
def test_huge_logits_do_not_overflow(size):
    head = us.SingleHead(np.eye(1), [1.0])
    X = size * np.array([[[1.0], [-1.0], [0.5]], [[-1.0], [1.0], [-0.5]]])
    np.testing.assert_array_equal(head(X), [size, -size])


def test_scores_at_both_ends_of_float64():
    head = us.SingleHead(np.eye(1), [1.0])
    # scores 1.69e308 and -1.69e308: their difference is no float64
    np.testing.assert_array_equal(head(np.array([[[-1.3e154], [1.3e154]]])), [1.3e154])


# -- immutable


def test_a_product_of_factors_is_read_only():
    head = us.SingleHead.from_factors(np.eye(2), np.eye(2), [1.0, 1.0])
    with pytest.raises(ValueError, match="read-only"):
        head.W[0, 0] = 2.0


def test_a_pickle_does_not_carry_the_product():
    head = us.SingleHead.from_factors(np.ones((1, 200)), np.ones((1, 200)), np.ones(200))
    size = len(pickle.dumps(head))
    assert head.W.nbytes > 4 * size
    assert len(pickle.dumps(head)) == size


# -- refused, with the fix


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"W": np.eye(2), "v": 1.0}, r"v must have shape \(d,\)"),
        ({"W": np.zeros((0, 0)), "v": []}, "d ≥ 1"),
        ({"W": np.eye(3), "v": [1.0, 2.0]}, r"W must have shape \(2, 2\).*\(3, 3\)"),
    ],
)
def test_parameters_that_do_not_fit(arguments, says):
    with pytest.raises(ValueError, match=says):
        us.SingleHead(**arguments)


@pytest.mark.parametrize("W", [[[1j]], np.array([[1 + 2j]]), [["one"]], [[None]]])
def test_parameters_that_are_no_real_numbers(W):
    with pytest.raises(TypeError, match="W must hold real numbers"):
        us.SingleHead(W, [1.0])


# -- the model of ids: answers, files, gauges, equality, and bounds on what it predicts


def head(seed=0, V=12, r=2):
    rng = np.random.default_rng([5, seed])
    return us.TokenHead(rng.standard_normal(V), *rng.standard_normal((2, V, r)))


def test_answers_are_those_of_the_formula():
    model, ids = head(), np.array([[3, 3, 7, 1], [0, 5, 5, 5]])
    for row, y in zip(ids, model(ids), strict=True):
        weights = np.exp([model.rho[t] @ model.x[row[-1]] for t in row])
        assert y == pytest.approx(weights @ model.u[row] / weights.sum(), rel=1e-14)
    np.testing.assert_array_equal(model(ids[:, :, None].astype(float)), model(ids))
    np.testing.assert_allclose(model([[4, 4]]), model.u[[4]])


def test_what_are_no_ids_is_refused():
    for wrong in ([[12]], [[-1]], [[0.5]], [1, 2], np.zeros((2, 0)), np.zeros((1, 2, 3))):
        with pytest.raises(ValueError, match=r"[Ii]ds"):
            head()(wrong)


def test_files_and_pickles_keep_every_bit(tmp_path):
    model = head()
    model.save(tmp_path / "model.safetensors")
    for again in (us.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(model))):
        assert type(again) is us.TokenHead
        for name, array in model.arrays().items():
            np.testing.assert_array_equal(again.arrays()[name], array)
    assert repr(model) == "TokenHead(V=12, rank ≤ 2)"


def test_what_the_function_leaves_free_does_not_count():
    model, T = head(), np.array([[2.0, 1.0], [0.5, 3.0]])
    turned = us.TokenHead(model.u, model.rho @ T + 7.0, model.x @ np.linalg.inv(T).T)
    assert us.equivalent(model, turned)
    assert us.equivalent(us.canonical(model), us.canonical(turned))
    for name in ("rho", "x"):
        a, b = (us.canonical(one).arrays()[name] for one in (model, turned))
        np.testing.assert_allclose(a, b, atol=1e-12)
    alike = [us.TokenHead(np.ones(12), head(k).rho, head(k).x) for k in (1, 2)]
    assert us.equivalent(alike[0], alike[1], rtol=0)
    assert us.canonical(alike[0]).rank == 0


def test_a_difference_has_a_witness():
    model = head()
    rho, u = model.rho.copy(), model.u.copy()
    rho[3, 1] += 1e-7
    u[5] += 1e-7
    for other in (us.TokenHead(model.u, rho, model.x), us.TokenHead(u, model.rho, model.x)):
        found = us.equivalent(model, other)
        assert found.verdict == "different"
        ids = np.asarray(found.witness)[None]
        assert abs(model(ids) - other(ids)) > 1e-10
        assert us.equivalent(model, other, rtol=1e-5)
        assert us.equivalent(model, other, errors={"u": 2e-7, "G": 1e-5}).by == "certificate"
        assert us.equivalent(model, other, errors={"u": 1e-9, "G": 1e-9}).by == "certificate"
    assert us.equivalent(model, us.SingleHead(np.eye(2), np.ones(2))).by == "shape"
    assert us.equivalent(model, head(V=13)).by == "shape"


def test_predictions_move_by_no_more_than_bounds_allow(trials):
    for seed in range(trials(20, 2000)):
        rng, model = np.random.default_rng(seed), head(seed)
        size = 10.0 ** rng.uniform(-6, 1)
        errors = {"u": size * rng.random(), "G": size}
        # any logits within the bound: the moved head need not have the rank
        M = model.rho @ model.x.T
        moved = M - np.diag(M) + size * rng.choice([-1.0, 1.0], M.shape) * (1 - np.eye(12))
        other = us.TokenHead(model.u + errors["u"] * rng.uniform(-1, 1, 12), moved, np.eye(12))
        for length in (1, 2, 3, 50):
            ids = rng.integers(12, size=(20, length))
            apart = np.abs(model(ids) - other(ids))
            assert np.all(apart <= model.moved_at_most(ids, errors) * (1 + 1e-12) + 1e-15)
