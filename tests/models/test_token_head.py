"""The model of ids: answers, files, gauges, equality, and bounds on what it predicts."""

import pickle

import numpy as np
import pytest

import unsoftmax as us


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
