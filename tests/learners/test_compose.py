"""Generators made of generators: on a subspace, and side by side."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.compose import restricted, together
from unsoftmax.probes import Probes, Sequences


def asking(rounds, name="one"):
    """Ask for 1, 2, … sequences in so many rounds, and return all answers."""
    seen = []
    for n in range(1, rounds + 1):
        probes = Sequences(np.full((n, 1, 2), float(n)), phase=name, purpose="data")
        [y] = yield [probes]
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


def test_side_by_side_is_as_long_as_the_longest():
    found, rounds = drive(
        together([asking(3, "a"), asking(0, "b"), asking(2, "c")]), lambda X: X[:, 0, 0]
    )
    assert [name for name, _ in found] == ["a", "b", "c"]
    assert [len(seen) for _, seen in found] == [3, 0, 2]
    assert all(np.all(y == n) for _, seen in found for n, y in enumerate(seen, 1))
    assert [[probes.phase for probes in parts] for parts in rounds] == [["a", "c"]] * 2 + [["a"]]
    assert drive(together([]), None) == ([], [])


def test_an_error_of_one_ends_all():
    def fails():
        yield from asking(1)
        raise us.ModelMismatch("no")

    with pytest.raises(us.ModelMismatch):
        drive(together([asking(5), fails()]), lambda X: X[:, 0, 0])


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
