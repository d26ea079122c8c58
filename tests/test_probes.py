"""Probes: slices of a whole that is never made, determined by a small design."""

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.probes import (
    Copies,
    Embedded,
    Grid,
    Moved,
    Pairs,
    Probes,
    Sequences,
    Singles,
    UnitVectors,
)

LABEL = {"phase": "test", "purpose": "data"}
SCALES = np.array([1.0, 0.5, 4.0, 2.0**-40])


def labelled(kind, **arrays):
    return kind(**arrays, **LABEL)


def rows_of(d, unit, rng):
    return UnitVectors(d) if unit else rng.standard_normal((int(rng.integers(1, 5)), d))


def family(kind, d, unit, seed):
    """A random family of one kind."""
    rng = np.random.default_rng(seed)
    if kind is Sequences:
        return labelled(Sequences, X=rng.standard_normal((*rng.integers(1, 6, 2), d)))
    queries = rows_of(d, unit, rng)
    if kind is Singles:
        return labelled(Singles, rows=queries, scale=float(rng.choice(SCALES)))
    offsets = rng.standard_normal((int(rng.integers(1, 6)), d))
    count = queries.shape[0] if kind is Grid else int(rng.integers(1, 20))
    alpha, beta = rng.choice(SCALES, (2, count))
    if kind is Grid:
        return labelled(Grid, offsets=offsets, queries=queries, alpha=alpha, beta=beta)
    i, j = rng.integers(len(offsets), size=count), rng.integers(queries.shape[0], size=count)
    return labelled(Pairs, offsets=offsets, queries=queries, i=i, j=j, alpha=alpha, beta=beta)


kinds = st.sampled_from([Sequences, Singles, Grid, Pairs])
families = st.builds(family, kinds, st.integers(1, 5), st.booleans(), st.integers(0, 2**32))
bounds = st.none() | st.integers(-30, 30)


def as_array(rows):
    return np.eye(rows.dim) if isinstance(rows, UnitVectors) else rows


def one_by_one(probes):
    """Every probe, as its class's docstring defines it."""
    if isinstance(probes, Sequences):
        return list(probes.X)
    if isinstance(probes, Singles):
        return [probes.scale * row[None] for row in as_array(probes.rows)]
    offsets, queries = probes.offsets, as_array(probes.queries)
    if isinstance(probes, Grid):
        places = [(j, i, j) for j in range(len(queries)) for i in range(len(offsets))]
    else:
        places = [(k, int(probes.i[k]), int(probes.j[k])) for k in range(len(probes.i))]
    made = []
    for k, i, j in places:
        query = probes.beta[k] * queries[j]
        made.append(np.array([probes.alpha[k] * offsets[i] + query, query]))
    return made


# -- slices


@given(families, bounds, bounds)
def test_a_slice_is_that_part_of_the_whole(probes, start, stop):
    whole = np.array(one_by_one(probes))
    assert whole.shape == (len(probes), probes.tokens, probes.dim)
    np.testing.assert_array_equal(probes[start:stop], whole[start:stop])


@given(families, st.integers(1, 7))
def test_batches_of_any_size_make_the_same_probes(probes, size):
    parts = [probes[k : k + size] for k in range(0, len(probes), size)]
    np.testing.assert_array_equal(np.concatenate(parts), probes[:])


@given(families)
def test_an_empty_slice_keeps_the_shape(probes):
    n = len(probes)
    for span in (slice(0, 0), slice(n, n + 3), slice(2, 1)):
        assert probes[span].shape == (0, probes.tokens, probes.dim)


@given(families)
def test_every_slice_is_its_own_array(probes):
    first, second = probes[:], probes[:]
    design = {name: array.copy() for name, array in probes.design().items()}
    first[:] = np.nan
    np.testing.assert_array_equal(second, np.array(one_by_one(probes)))
    np.testing.assert_array_equal(probes[:], second)
    for name, array in probes.design().items():
        np.testing.assert_array_equal(array, design[name])
    assert second.dtype == np.float64
    assert second.flags.c_contiguous


# -- what the two tokens are


@given(st.sampled_from([Grid, Pairs]), st.integers(1, 5), st.integers(0, 2**32))
def test_the_first_token_is_the_offset_away_from_the_query(kind, d, seed):
    probes = family(kind, d, False, seed)
    # on a coarse binary grid, where the sum is exact
    offsets, queries = np.round(64 * probes.offsets) / 64, np.round(64 * probes.queries) / 64
    alpha, beta = (np.where(scale < 0.1, 1.0, scale) for scale in (probes.alpha, probes.beta))
    probes = dataclasses.replace(probes, offsets=offsets, queries=queries, alpha=alpha, beta=beta)
    X = probes[:]
    if kind is Grid:
        j, i = np.divmod(np.arange(len(probes)), len(offsets))
        alpha, beta = alpha[j], beta[j]
    else:
        i, j = probes.i, probes.j
    np.testing.assert_array_equal(X[:, 0] - X[:, 1], alpha[:, None] * offsets[i])
    np.testing.assert_array_equal(X[:, 1], beta[:, None] * queries[j])


def test_answers_to_a_grid_are_a_matrix():
    offsets, queries = (
        np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]),
        np.array([[0, 10], [0, 20.0]]),
    )
    grid = labelled(Grid, offsets=offsets, queries=queries, alpha=np.ones(2), beta=np.ones(2))
    answers = grid[:].sum(axis=(1, 2)).reshape(2, 3)
    np.testing.assert_array_equal(answers, [[21, 22, 23], [41, 42, 43]])


@given(st.sampled_from([Singles, Grid, Pairs]), st.integers(1, 5), st.integers(0, 2**32))
def test_unit_vectors_are_the_identity(kind, d, seed):
    implicit = family(kind, d, True, seed)
    name = "rows" if kind is Singles else "queries"
    explicit = dataclasses.replace(implicit, **{name: np.eye(d)})
    np.testing.assert_array_equal(implicit[:], explicit[:])
    assert len(implicit) == len(explicit)


def test_unit_vectors_by_index():
    rows = UnitVectors(4)
    assert rows.shape == (4, 4)
    index = np.array([3, 0, 3], dtype=np.intp)
    np.testing.assert_array_equal(rows[index], np.eye(4)[index])
    assert rows[index[:0]].shape == (0, 4)


# -- the design


def rebuilt(kind, design):
    """A family made of nothing but its design."""
    arrays: dict[str, Any] = {}
    for name, array in design.items():
        name, *implicit = name.split(".")
        arrays[name] = UnitVectors(int(array[0])) if implicit else array
    if kind is Singles:
        arrays["scale"] = float(arrays["scale"][0])
    return labelled(kind, **arrays)


@given(families)
def test_the_design_determines_the_probes(probes):
    again = rebuilt(type(probes), probes.design())
    np.testing.assert_array_equal(again[:], probes[:])


@given(families)
def test_other_probes_have_another_design(probes):
    fields = [field.name for field in dataclasses.fields(probes) if field.name not in LABEL]
    for name in fields:
        value = getattr(probes, name)
        other = UnitVectors(value.dim + 1) if isinstance(value, UnitVectors) else value + 1
        design = dataclasses.replace(probes, **{name: other}).design()
        before = probes.design()
        assert design.keys() == before.keys()
        assert any(not np.array_equal(design[key], before[key]) for key in design)


def test_a_design_is_small():
    d = 128
    grid = labelled(
        Grid, offsets=np.ones((d, d)), queries=UnitVectors(d), alpha=np.ones(d), beta=np.ones(d)
    )
    assert len(grid) == d * d
    assert sum(array.nbytes for array in grid.design().values()) < 8 * d * (d + 4)


@given(families)
def test_probes_are_values(probes):
    with pytest.raises(dataclasses.FrozenInstanceError):
        probes.phase = "another"
    assert isinstance(probes, Probes)
    assert (probes.phase, probes.purpose) == ("test", "data")


# -- memory


def test_a_slice_costs_its_own_size():
    d, rng = 256, np.random.default_rng(0)
    grid = labelled(
        Grid,
        offsets=rng.standard_normal((d, d)),
        queries=UnitVectors(d),
        alpha=np.exp2(rng.integers(-3, 3, d)),
        beta=np.ones(d),
    )
    size = 2048
    made, scaled_offsets = 8 * size * 2 * d, 8 * d * d
    tracemalloc.start()
    for start in (0, 1000, len(grid) - size):
        grid[start : start + size]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # one slice, one set of scaled offsets while the next is made, and small change
    assert peak < made + 3 * scaled_offsets
    assert 8 * len(grid) * 2 * d > 20 * peak


def test_families_without_a_slice_cost_nothing():
    d = 1024
    alpha = np.ones(d)
    offsets = np.ones((1, d))
    tracemalloc.start()
    grid = labelled(Grid, offsets=offsets, queries=UnitVectors(d), alpha=alpha, beta=alpha)
    singles = labelled(Singles, rows=UnitVectors(d))
    assert len(grid) == len(singles) == d
    grid.design(), singles.design()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * d


# -- embedded


@given(families, st.integers(0, 3), st.integers(0, 2**32))
def test_embedded_probes_are_the_inner_ones_turned(inner, more, seed):
    d, k = inner.dim + more, inner.dim
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0][:, :k]
    probes = Embedded.of(inner, basis)
    assert (len(probes), probes.tokens, probes.dim) == (len(inner), inner.tokens, d)
    assert (probes.phase, probes.purpose) == (inner.phase, inner.purpose)
    X = probes[:]
    np.testing.assert_allclose(X @ basis, inner[:], atol=1e-9)
    for n in range(len(probes)):  # the same bits, whatever the slice
        np.testing.assert_array_equal(probes[n : n + 1], X[n : n + 1])


def test_every_embedding_is_part_of_the_design():
    inner = labelled(Sequences, X=np.ones((1, 1, 1)))
    first, second, other = np.eye(2)[:, :1], np.eye(3)[:, :2], np.eye(3)[:, 1:]
    twice = Embedded.of(Embedded.of(inner, first), second)
    assert twice.design().keys() == {"inner.inner.X", "inner.basis", "basis"}
    for basis, outer in ((np.eye(2)[:, 1:], second), (first, other)):
        design = Embedded.of(Embedded.of(inner, basis), outer).design()
        assert any(not np.array_equal(design[key], twice.design()[key]) for key in design)


def test_moved_probes_are_the_inner_ones_elsewhere():
    X, b = np.random.default_rng(0).standard_normal((5, 2, 3)), np.arange(3.0)
    probes = Moved.of(Sequences(X, phase="heads", purpose="again"), b)
    assert (len(probes), probes.tokens, probes.dim) == (5, 2, 3)
    assert (probes.phase, probes.purpose) == ("heads", "again")
    assert np.array_equal(probes[1:3], X[1:3] + b)
    assert probes.design().keys() == {"inner.X", "by"}


def test_copies_repeat_every_token_as_often_as_told():
    X = np.random.default_rng(0).standard_normal((5, 2, 3))
    inner = Sequences(X, phase="heads", purpose="again")
    probes = Copies.of(inner, np.array([3, 1]))
    assert (len(probes), probes.tokens, probes.dim) == (5, 4, 3)
    assert (probes.phase, probes.purpose) == ("heads", "again")
    assert np.array_equal(probes[1:3], X[1:3][:, [0, 0, 0, 1]])
    assert probes.design().keys() == {"inner.X", "copies"}
