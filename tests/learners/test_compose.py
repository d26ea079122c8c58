"""Generators made of generators, by hand with next and send: no runner, no target."""

from inspect import GEN_CLOSED, GEN_CREATED, getgeneratorstate

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.compose import (
    antisymmetric,
    limited,
    mapped,
    named,
    read_as,
    restricted,
    together,
)
from unsoftmax.probes import Probes, Sequences


def probes(n, purpose="data", name="one"):
    return Sequences(np.full((n, 1, 2), float(n)), phase=name, purpose=purpose)


def asking(rounds, name="one"):
    """Ask for 1, 2, … sequences in so many rounds, and return all answers."""
    seen = []
    for n in range(1, rounds + 1):
        [y] = yield [probes(n, name=name)]
        seen.append(y)
    return name, seen


def drive(steps, oracle):
    """Run by hand; return what came out and the rounds that were asked."""
    rounds: list[list[Probes]] = []
    answers = None
    while True:
        try:
            parts = next(steps) if answers is None else steps.send(answers)
        except StopIteration as end:
            return end.value, rounds
        rounds.append(parts)
        answers = [oracle(probes[:]) for probes in parts]


def first_of(X):
    return X[:, 0, 0]


EVERY = {
    "mapped": mapped,
    "restricted": lambda steps: restricted(steps, np.eye(2)),
    "antisymmetric": antisymmetric,
    "limited": lambda steps: limited(steps, us.ModelMismatch("many"), queries=100, rounds=100),
    "named": lambda steps: named(steps, "other"),
    "read_as": lambda steps: read_as(steps, lambda asked, answers: answers),
    "together": lambda steps: together([steps, asking(2), asking(9)]),
}
ONE = {name: made for name, made in EVERY.items() if name != "together"}


@pytest.fixture(params=EVERY.values(), ids=list(EVERY))
def transformed(request):
    return request.param


@pytest.fixture(params=ONE.values(), ids=list(ONE))
def transformed_one(request):
    return request.param


# -- what every transformation does


def test_what_the_inner_one_returns_passes_through(transformed_one):
    found, rounds = drive(transformed_one(asking(3)), first_of)
    assert found[0] == "one"
    assert [len(y) for y in found[1]] == [1, 2, 3]
    assert len(rounds) == 3


def test_an_error_that_is_thrown_in_reaches_the_inner_one(transformed):
    caught: list[Exception] = []

    def heedful():
        try:
            yield [probes(1)]
        except us.OracleError as error:
            caught.append(error)
            raise us.ModelMismatch("for that reason") from error

    steps = transformed(heedful())
    next(steps)
    error = us.OracleError("no answer")
    with pytest.raises(us.ModelMismatch, match="for that reason"):
        steps.throw(error)
    assert caught == [error]
    assert getgeneratorstate(steps) == GEN_CLOSED


def test_one_that_heeds_an_error_goes_on(transformed_one):
    def heedful():
        try:
            yield [probes(1)]
        except us.OracleError:
            [y] = yield [probes(2)]
        return y

    steps = transformed_one(heedful())
    next(steps)
    asked = steps.throw(us.OracleError("no answer"))
    assert all(len(part) == 2 for part in asked)
    with pytest.raises(StopIteration) as end:
        steps.send([first_of(part[:]) for part in asked])
    assert len(end.value.value) == 2


def test_an_error_that_nobody_heeds_comes_out(transformed):
    inner = asking(3)
    steps = transformed(inner)
    next(steps)
    with pytest.raises(us.OracleError, match="no answer"):
        steps.throw(us.OracleError("no answer"))
    assert getgeneratorstate(inner) == GEN_CLOSED


def test_closing_closes_the_inner_one(transformed):
    closed = []

    def careful():
        try:
            yield from asking(3)
        finally:
            closed.append(True)

    steps = transformed(careful())
    next(steps)
    assert not closed
    steps.close()
    assert closed


def test_what_the_inner_one_raises_comes_out(transformed):
    def fails():
        yield from asking(1)
        raise us.ModelMismatch("no")

    with pytest.raises(us.ModelMismatch, match="no"):
        drive(transformed(fails()), first_of)


# -- one by one


def test_mapped_rounds_and_answers():
    steps = mapped(
        asking(2), ask=lambda asked: [*asked, *asked], answer=lambda y: [y[0] + 10 * y[1]]
    )
    (_, seen), rounds = drive(steps, first_of)
    assert [y.tolist() for y in seen] == [[11.0], [22.0, 22.0]]
    assert [len(parts) for parts in rounds] == [2, 2]


def test_the_antisymmetric_part_of_a_function():
    steps = antisymmetric(asking(2))
    (_, seen), rounds = drive(steps, lambda X: X[:, 0, 0] ** 3 + X[:, 0, 0] ** 2)
    assert [y.tolist() for y in seen] == [[2.0], [16.0, 16.0]]
    for plain, negated in rounds:
        np.testing.assert_array_equal(negated[:], -plain[:])
        assert (negated.tokens, negated.dim, len(negated)) == (1, 2, len(plain))
        assert negated.purpose == plain.purpose
        assert negated.design().keys() == plain.design().keys()
        assert (plain.phase, negated.phase) == ("one", "one, −X")


def rounds_until(error, steps):
    """How many rounds are asked before the error."""
    rounds = []

    def answer(X):
        rounds.append(X)
        return first_of(X)

    with pytest.raises(type(error)) as raised:
        drive(steps, answer)
    assert raised.value is error
    return len(rounds)


def test_a_limit_of_queries_and_of_rounds():
    error = us.ModelMismatch("more than planned")
    assert drive(limited(asking(4), error, queries=10, rounds=4), first_of)[0][0] == "one"
    assert drive(limited(asking(4), error, queries=10), first_of)[0][0] == "one"
    assert rounds_until(error, limited(asking(4), error, queries=9)) == 3
    assert rounds_until(error, limited(asking(4), error, queries=10, rounds=3)) == 3
    inner = asking(4)
    assert rounds_until(error, limited(inner, error, queries=0)) == 0
    assert getgeneratorstate(inner) == GEN_CLOSED


def test_a_hold_out_is_not_limited():
    def checking():
        yield [probes(1), probes(50, purpose="check")]
        return "done"

    error = us.ModelMismatch("more than planned")
    assert drive(limited(checking(), error, queries=1), first_of)[0] == "done"
    with pytest.raises(us.ModelMismatch):
        drive(limited(checking(), error, queries=0), first_of)


def test_a_named_phase_asks_the_same():
    found, rounds = drive(named(asking(2), "head 3"), first_of)
    assert found[0] == "one"
    assert [[part.phase for part in parts] for parts in rounds] == [["head 3: one"]] * 2
    assert [len(part) for parts in rounds for part in parts] == [1, 2]
    [[part]] = drive(named(restricted(asking(1), np.eye(2)), "E"), first_of)[1]
    assert (part.phase, part.purpose) == ("E: one", "data")


def test_answers_are_read_beside_what_was_asked():
    steps = read_as(
        asking(2),
        lambda asked, answers: [y + len(part) for part, y in zip(asked, answers, strict=True)],
    )
    (_, seen), rounds = drive(steps, first_of)
    assert [y.tolist() for y in seen] == [[2.0], [4.0, 4.0]]
    assert [len(part) for [part] in rounds] == [1, 2]


def test_side_by_side_is_as_long_as_the_longest():
    found, rounds = drive(together([asking(3, "a"), asking(0, "b"), asking(2, "c")]), first_of)
    assert [name for name, _ in found] == ["a", "b", "c"]
    assert [len(seen) for _, seen in found] == [3, 0, 2]
    assert all(np.all(y == n) for _, seen in found for n, y in enumerate(seen, 1))
    assert [[part.phase for part in parts] for parts in rounds] == [["a", "c"]] * 2 + [["a"]]
    assert drive(together([]), None) == ([], [])


def test_answers_go_to_who_asked():
    def several(name, n):
        answers = yield [probes(1, name=name) for _ in range(n)]
        return [float(y[0]) for y in answers]

    steps = together([several("a", 2), several("b", 0), several("c", 1)])
    assert [part.phase for part in next(steps)] == ["a", "a", "c"]
    with pytest.raises(StopIteration) as end:
        steps.send([np.array([y]) for y in (1.0, 2.0, 3.0)])
    assert end.value.value == [[1.0, 2.0], [], [3.0]]


def test_an_error_of_one_ends_all():
    def fails():
        yield from asking(1)
        raise us.ModelMismatch("no")

    before, after, never = asking(5), asking(5), asking(5)
    with pytest.raises(us.ModelMismatch):
        drive(together([before, fails(), after]), first_of)
    assert getgeneratorstate(before) == getgeneratorstate(after) == GEN_CLOSED

    def refuses():
        raise us.ModelMismatch("at once")
        yield

    assert getgeneratorstate(never) == GEN_CREATED
    with pytest.raises(us.ModelMismatch):
        next(together([refuses(), never]))
    assert getgeneratorstate(never) == GEN_CLOSED


def test_one_heeds_an_error_that_ends_another():
    def heedful():
        try:
            yield [probes(1)]
        except us.OracleError:
            yield [probes(2)]

    steps = together([heedful(), asking(2)])
    next(steps)
    with pytest.raises(us.OracleError):
        steps.throw(us.OracleError("no answer"))


def test_a_head_on_a_subspace_is_a_head():
    rng = np.random.default_rng(0)
    E = np.linalg.qr(rng.standard_normal((7, 7)))[0][:, :3]
    target = us.SingleHead(rng.standard_normal((7, 7)), rng.standard_normal(7))
    found, rounds = drive(restricted(us.learners.ExactHead(3).steps(32), E), target)
    np.testing.assert_allclose(found.model.W, E.T @ target.W @ E, atol=1e-13)
    np.testing.assert_allclose(found.model.v, E.T @ target.v, atol=1e-14)
    asked = sum(len(probes) for parts in rounds for probes in parts)
    assert asked >= 3 + 9 + 32
    assert all(probes.dim == 7 for parts in rounds for probes in parts)
