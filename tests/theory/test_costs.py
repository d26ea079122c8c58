"""Costs of steps add up, and every learner's plan is such a sum."""

import ast
from pathlib import Path

import pytest

import unsoftmax
from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Plan
from unsoftmax.theory.costs import Cost


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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Plan"
    ]
    assert own == []
