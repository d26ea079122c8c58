"""Answers that are vectors: rows stay rows, whatever they are cut into; m never changes."""

import shutil
import sqlite3
import threading
import tracemalloc
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import account
from tests.campaign.script import Script, answers_of, first_number, sequences
from tests.truth import Counted
from tests.vector_learners import LinearMap, LinearModel
from unsoftmax.measure.precision import Precision
from unsoftmax.probes import Sequences


@dataclass
class Vectors(Script):
    """A script that is answered with rows."""

    outputs: ClassVar[Any] = "vector"


def rows(width):
    """A target whose m numbers all differ, and depend on the sequence alone."""
    weights = np.arange(1.0, width + 1)

    def answer(X):
        return X[:, 0, :1] + 100 * weights

    return answer


# -- rows stay rows


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 12, None])
@pytest.mark.parametrize("width", [1, 3, 4, 5, 12])
def test_every_row_is_its_sequences_own(width, batch, workers, ledger):
    """12 sequences of m numbers: batches that divide 12, that do not, and squares B = m."""
    script = Vectors([[sequences(12), sequences(5, tokens=3, seed=1)], [sequences(7, seed=2)]])
    settings: dict[str, Any] = {"batch": batch, "workers": workers, "ledger": ledger}
    counted = Counted(rows(width))
    for queries in (24, 24 + 8):  # also from the ledger: the fingerprint alone is asked again
        recovery = us.learn(counted, script, **settings)
        assert counted.queries == queries
        for asked, answers in zip(script.rounds, answers_of(recovery), strict=True):
            for probes, y in zip(asked, answers, strict=True):
                assert y.shape == (len(probes), width)
                assert np.array_equal(y, rows(width)(probes.X))


def test_a_run_that_stopped_goes_on_in_other_batches(workers, tmp_path):
    script = Vectors([[sequences(12)], [sequences(9, seed=1)]])
    for budget in (1, 5, 14):
        ledger = tmp_path / str(budget)
        with pytest.raises(us.BudgetExceeded) as end:
            us.learn(rows(5), script, ledger=ledger, batch=4, workers=workers, budget=budget)
        assert end.value.spent == budget
        recovery = us.learn(rows(5), script, ledger=ledger, batch=5, workers=workers)
        for asked, answers in zip(script.rounds, answers_of(recovery), strict=True):
            assert np.array_equal(answers[0], rows(5)(asked[0].X))


def test_one_number_is_a_vector_of_one():
    script = Vectors([[sequences(6)], [sequences(4, seed=1)]])

    def either(X):
        return X[:, 0, 0] if len(X) == 4 else X[:, 0, :1]

    for oracle in (first_number, either):
        answers = answers_of(us.learn(oracle, script))
        assert [y.shape for [y] in answers] == [(6, 1), (4, 1)]
        assert np.array_equal(answers[1][0][:, 0], script.rounds[1][0].X[:, 0, 0])


def test_rounds_and_parts_without_probes(ledger):
    none = Sequences(np.zeros((0, 2, 2)), phase="none", purpose="data")
    script = Vectors([[none], [none, sequences(3)], [none]])
    answers = answers_of(us.learn(rows(4), script, ledger=ledger))
    assert [[y.shape for y in parts] for parts in answers] == [[(0, 0)], [(0, 4), (3, 4)], [(0, 4)]]
    numbers = Script([[none], [none, sequences(3)], []])
    answers = answers_of(us.learn(first_number, numbers))
    assert [[y.shape for y in parts] for parts in answers] == [[(0,)], [(0,), (3,)], []]


def test_answers_of_any_layout_and_type():
    script = Vectors([[sequences(6)]])
    expected = rows(4)(script.rounds[0][0].X)

    def strided(y):
        return np.repeat(y, 2, axis=1)[:, ::2]

    cast: Any
    for cast in (np.asfortranarray, np.ndarray.tolist, strided):
        [[y]] = answers_of(us.learn(lambda X, cast=cast: cast(rows(4)(X)), script))
        assert np.array_equal(y, expected)
    [[y]] = answers_of(us.learn(lambda X: rows(4)(X).astype(">f4"), script))
    assert y.dtype == np.float64
    assert np.array_equal(y, expected.astype(np.float32))


# -- and other shapes are refused, not rearranged


OF_NUMBERS: list[Any] = [
    (lambda y: y[:-1], ["(2,)", "(3,)"]),
    (lambda y: np.append(y, 0.0), ["(4,)", "(3,)"]),
    (lambda y: y[:0], ["(0,)", "(3,)"]),
    (lambda y: y[0], ["()", "(3,)"]),
    (lambda y: np.stack([y, y], axis=1), ["(3, 2)", "(3,)"]),
    (lambda y: y[None], ["(1, 3)", "(3,)"]),
    (lambda y: y[:, None, None], ["(3, 1, 1)", "(3,)"]),
    (lambda y: y + 0j, ["complex128"]),
    (lambda y: y.astype(object), ["object"]),
    (lambda y: y.astype(str), ["<U", "real numbers"]),
    (lambda y: [str(number) for number in y], ["real numbers"]),
    (lambda y: [[1.0], [1.0, 2.0], 3.0], ["no array"]),
    (lambda y: None, ["object"]),
    (lambda y: {"answers": y}, ["object"]),
    (lambda y: (number for number in y), ["object"]),
    (lambda y: y.astype("datetime64[s]"), ["datetime64"]),
]
OF_VECTORS: list[Any] = [
    (lambda y: y.T, ["(5, 3)", "(3, m)"]),
    (lambda y: y.reshape(5, 3), ["(5, 3)", "(3, m)"]),
    (lambda y: y.ravel(), ["(15,)", "(3, m)"]),
    (lambda y: y.reshape(1, 15), ["(1, 15)", "(3, m)"]),
    (lambda y: y[None], ["(1, 3, 5)", "(3, m)"]),
    (lambda y: y[:, :, None], ["(3, 5, 1)", "(3, m)"]),
    (lambda y: y[:2], ["(2, 5)", "(3, m)"]),
    (lambda y: np.vstack([y, y]), ["(6, 5)", "(3, m)"]),
    (lambda y: y[:, :0], ["(3, 0)", "(3, m)"]),
    (lambda y: y[0, 0], ["()", "(3, m)"]),
    (lambda y: y[:, :4], ["4 numbers per sequence", "had 5"]),
    (lambda y: np.hstack([y, y]), ["10 numbers per sequence", "had 5"]),
    (lambda y: y[:, 0], ["1 numbers per sequence", "had 5"]),
    (lambda y: y[:, :3].T, ["3 numbers per sequence", "had 5"]),
    (lambda y: y + 0j, ["complex128"]),
    (lambda y: [list(row[: k + 1]) for k, row in enumerate(y)], ["no array"]),
]


@pytest.mark.parametrize(
    ("asks", "right", "spoil", "words"),
    [
        *((Script, first_number, *row) for row in OF_NUMBERS),
        *((Vectors, rows(5), *row) for row in OF_VECTORS),
    ],
    ids=lambda _: "",
)
def test_another_shape_is_refused(asks, right, spoil, words, workers, ledger):
    """Among them a transposed last batch, one cut differently, and a square of another m."""
    script = asks([[sequences(7)], [sequences(3, seed=1)]])
    counted = Counted(lambda X: spoil(right(X)) if len(X) == 3 else right(X))
    with pytest.raises(us.OracleError) as caught:
        us.learn(counted, script, ledger=ledger, workers=workers)
    for word in ("3 sequences of shape (2, 2), 0–2 of “part 1”", *words):
        assert word in str(caught.value)
    assert counted.calls == 2  # asking again would not help
    assert account(ledger).recorded == 7
    recovery = us.learn(right, script, ledger=ledger)
    assert recovery.counts["failed"] == 3
    assert np.array_equal(answers_of(recovery)[1][0], right(script.rounds[1][0].X))


def test_a_transposed_target_shows_at_the_first_batch_that_is_no_square(workers):
    """B = m hides it; the last, shorter batch does not."""
    script = Vectors([[sequences(13)]])
    with pytest.raises(us.OracleError, match=r"\(5, 3\) instead of \(3, m\)"):
        us.learn(lambda X: rows(5)(X).T, script, batch=5, workers=workers)


def test_m_is_fixed_by_the_first_answer_of_the_ledgers_life(workers, ledger):
    script = Vectors([[sequences(9)], [sequences(4, seed=1)]])
    with pytest.raises(us.BudgetExceeded):
        us.learn(rows(5), script, ledger=ledger, batch=3, budget=6)
    with pytest.raises(us.OracleError, match=r"4 numbers per sequence.*had 5"):
        us.learn(rows(4), script, ledger=ledger, workers=workers)
    with pytest.raises(us.OracleError, match=r"1 numbers per sequence.*had 5"):
        us.learn(first_number, script, ledger=ledger, workers=workers)
    assert account(ledger).recorded == 6
    assert len(answers_of(us.learn(rows(5), script, ledger=ledger))[1][0]) == 4


def test_two_first_answers_of_different_m():
    """They fly together: the one that is recorded first decides."""
    together = threading.Barrier(2, timeout=30)
    script = Vectors([[sequences(4)]])

    def oracle(X):
        together.wait()
        return rows(4 if X[0, 0, 0] == script.rounds[0][0].X[0, 0, 0] else 5)(X)

    with pytest.raises(us.OracleError, match=r"[45] numbers per sequence.*had [45]"):
        us.learn(oracle, script, batch=2, workers=2)


# -- numbers and vectors


def test_a_learner_of_numbers_names_what_makes_one_number():
    oracle = Counted(rows(3))
    with pytest.raises(us.OracleError) as caught:
        us.learn(oracle, us.learners.ExactHead(4))
    for words in ("3 numbers per sequence", "us.oracles.coordinate(oracle, k)"):
        assert words in str(caught.value)
    assert oracle.calls == 1
    model = LinearModel(c=np.ones(3), M=np.arange(6.0).reshape(3, 2))
    one = us.learn(us.oracles.coordinate(model, 1), Script([[sequences(4)]]))
    assert np.array_equal(answers_of(one)[0][0], model(sequences(4).X)[:, 1])


def test_outputs_are_scalar_or_vector():
    class Neither(Script):
        outputs: ClassVar[Any] = "tensor"

    with pytest.raises(TypeError, match=r"scalar.*vector.*'tensor'"):
        us.learn(first_number, Neither([[sequences(4)]]))


def test_a_learner_that_takes_numbers_now_gets_no_vectors_from_its_ledger(workers, ledger):
    """The same settings and revision: not the first number of each row."""
    rounds = [[sequences(6)]]
    us.learn(rows(3), Vectors(rounds), ledger=ledger)
    with pytest.raises(us.LedgerMismatch, match=r"answers of 3 numbers .* takes 1"):
        us.learn(first_number, Script(rounds), ledger=ledger, workers=workers)
    assert account(ledger).paid == 6
    assert len(answers_of(us.learn(rows(3), Vectors(rounds), ledger=ledger))[0][0]) == 6


# -- what is bad in part


def test_a_row_with_one_bad_number_is_asked_again_and_no_other(workers, ledger):
    script, bad = Vectors([[sequences(12)]]), {2, 3, 9}
    X = script.rounds[0][0].X
    asked: list[int] = []

    def oracle(batch):
        y = rows(3)(batch)
        for row, x in enumerate(batch):
            number = int(np.flatnonzero((x == X).all(axis=(1, 2)))[0])
            asked.append(number)
            if number in bad and asked.count(number) == 1:
                y[row, 1] = np.nan
        return y

    settings: dict[str, Any] = {"retries": us.Retries(pause_s=0.0)}
    recovery = us.learn(oracle, script, ledger=ledger, batch=5, workers=workers, **settings)
    assert sorted(asked) == sorted([*range(12), *bad])
    assert recovery.counts == {"data": 12, "failed": 3}
    assert np.array_equal(answers_of(recovery)[0][0], rows(3)(X))


# -- the same target?


@pytest.mark.parametrize("number", [0, 2])
def test_one_changed_number_is_another_target(number, ledger):
    """A small one beside large ones, too: every number has its own scale."""
    script = Vectors([[sequences(12)], [sequences(4, seed=1)]])
    weights = np.random.default_rng(0).standard_normal((2, 3)) * [1.0, 1.0, 1e-9]

    def target(change):
        return lambda X: X[:, 0] @ weights * (1 + change * (np.arange(3) == number))

    with pytest.raises(us.BudgetExceeded):
        us.learn(target(0), script, ledger=ledger, budget=12)
    with pytest.raises(us.LedgerMismatch, match=rf"question \d, number {number} was"):
        us.learn(target(1e-6), script, ledger=ledger)
    assert us.learn(target(1e-15), script, ledger=ledger).counts["data"] == 16


@pytest.mark.parametrize("decimals", [None, 3])
def test_long_vectors_are_recognised_at_once(decimals, ledger, monkeypatch):
    """Their format is read off some numbers; all of them are compared."""
    read: list[int] = []
    of_format = Precision.of_format

    def noted(answers):
        read.append(sum(part.size for part in answers))
        return of_format(answers)

    monkeypatch.setattr(Precision, "of_format", noted)
    width, script = 30_001, Vectors([[sequences(8)]])
    weights = np.random.default_rng(0).standard_normal((2, width))

    def target(change):
        factor = 1 + change * (np.arange(width) == 20_002)
        exact = lambda X: X[:, 0] @ weights * factor  # noqa: E731
        return exact if decimals is None else us.oracles.rounded(exact, decimals)

    us.learn(target(0.0), script, ledger=ledger)
    with pytest.raises(us.LedgerMismatch, match="number 20002 was"):
        us.learn(target(0.1), script, ledger=ledger)
    assert us.learn(target(0.0), script, ledger=ledger).counts["fingerprint"] > 8
    assert read
    assert max(read) <= 2**14 + 8


@pytest.mark.parametrize(("asks", "target"), [(Script, first_number), (Vectors, rows(5))])
def test_a_noisy_target_goes_on_with_an_estimate_of_its_noise(asks, target, ledger):
    script = asks([[sequences(12)], [sequences(4, seed=1)]])
    noisy = us.oracles.noisy(target, 1e-3, seed=0)
    with pytest.raises(us.BudgetExceeded):
        us.learn(noisy, script, ledger=ledger, budget=12, batch=3)
    recovery = us.learn(noisy, script, ledger=ledger, batch=1)
    assert recovery.counts["fingerprint"] == 16
    [note] = [note for note in recovery.notes if "noise" in note]
    assert 5e-4 < float(note.rstrip(".").split()[-1]) < 2e-3


# -- the file


@pytest.mark.parametrize("change", ["width = 1", "width = 6 WHERE start = 0", "count = 4"])
def test_a_size_that_does_not_fit_is_damage(change, ledger, tmp_path):
    script = Vectors([[sequences(6)]])
    us.learn(rows(3), script, ledger=ledger, batch=2)
    with closing(sqlite3.connect(ledger)) as db:
        db.execute(f"UPDATE answers SET {change}")
        db.commit()
    shutil.copy(ledger, tmp_path / "copy")
    with pytest.raises(us.LedgerError, match=r"damaged.*do(es)? not match the checksum"):
        us.learn(rows(3), script, ledger=ledger)
    assert ledger.read_bytes() == (tmp_path / "copy").read_bytes()


# -- memory


def test_memory_is_bounded_by_the_batch():
    """Long vectors: a call carries fewer sequences, from the first on."""
    width, sizes = 20_000, []

    def oracle(X):
        sizes.append(len(X))
        return np.broadcast_to(X[:, 0, :1], (len(X), width))

    script = Vectors([[sequences(400, tokens=1)]])
    tracemalloc.start()
    try:
        us.learn(oracle, script)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # m is known when the first call has come back; the second is decided by then
    assert sizes[:2] == [32, 32]
    assert set(sizes[2:-1]) == {2**21 // width}
    # the round itself, and two batches of 16 MiB: one arrives, one is recorded
    assert peak < 400 * width * 8 + 4 * 2**24


def test_a_linear_map_of_many_numbers_is_learned(ledger):
    rng = np.random.default_rng(0)
    target = LinearModel(c=rng.standard_normal(300), M=rng.standard_normal((300, 20)))
    counted = Counted(target)
    recovery = us.learn(counted, LinearMap(20), ledger=ledger, workers=3)
    assert counted.queries == 21 + 32
    assert np.allclose(recovery.model.M, target.M, rtol=0, atol=1e-13)
