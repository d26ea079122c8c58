"""A function that asks by calling, as a generator: one side at a time, and both end together."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from unsoftmax.learners.called_algorithm import NoMoreAnswers, as_generator


def running() -> int:
    return threading.active_count()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = running()
    yield
    for _ in range(100):
        if running() <= before:
            return
        time.sleep(0.02)
    pytest.fail("a thread is left")


def answered(steps, answer):
    asked = []
    try:
        question = next(steps)
        while True:
            asked.append(question)
            question = steps.send(answer(question))
    except StopIteration as end:
        return end.value, asked


def test_questions_are_yielded_and_answers_returned():
    def summed(ask):
        return sum(ask(k) for k in range(2000))

    assert answered(as_generator(summed, 1.0), lambda k: 2 * k) == (1999 * 2000, [*range(2000)])


def test_nothing_runs_before_it_is_asked_and_nothing_asked_is_fine():
    ran: list[int] = []
    steps: Any = as_generator(lambda ask: ran.append(1), 1.0)
    assert not ran
    assert answered(steps, lambda _: None) == (None, [])
    assert ran == [1]
    unused: Any = as_generator(lambda ask: ran.append(2), 1.0)
    unused.close()
    assert ran == [1]


@pytest.mark.parametrize("how", ["close", "forget", "throw"])
def test_the_function_ends_with_the_generator(how):
    ended: list[type[BaseException]] = []

    def endless(ask):
        try:
            while True:
                ask(0)
        except BaseException as error:
            ended.append(type(error))
            raise

    steps = as_generator(endless, 1.0)
    next(steps)
    if how == "throw":
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt)
    elif how == "close":
        steps.close()
    else:
        del steps
        gc.collect()
    assert ended == [NoMoreAnswers]


def test_a_function_that_swallows_everything_is_told_again():
    told: list[int] = []

    def stubborn(ask):
        for _ in range(5):
            try:
                ask(0)
            except BaseException:
                told.append(1)
        return 3

    steps = as_generator(stubborn, 1.0)
    next(steps)
    steps.close()
    assert told == [1] * 5


def test_a_function_that_computes_on_is_left_behind():
    go_on = threading.Event()

    def busy(ask):
        try:
            ask(0)
        finally:
            go_on.wait(40)

    steps = as_generator(busy, 0.05)
    next(steps)
    began = time.monotonic()
    steps.close()
    assert time.monotonic() - began < 20
    go_on.set()


def test_errors_of_the_function_are_raised_with_their_place():
    def failing(ask):
        return ask(1) / 0

    with pytest.raises(ZeroDivisionError) as failure:
        answered(as_generator(failing, 1.0), float)
    assert any(entry.name == "failing" for entry in failure.traceback)


def test_an_error_thrown_in_reaches_the_function_which_may_go_on():
    def careful(ask):
        try:
            ask("dear")
        except ValueError as error:
            return ask(str(error))

    steps = as_generator(careful, 1.0)
    assert next(steps) == "dear"
    assert steps.throw(ValueError("cheap")) == "cheap"
    with pytest.raises(StopIteration) as end:
        steps.send("bought")
    assert end.value.value == "bought"


def test_it_may_ask_from_threads_of_its_own():
    def parallel(ask):
        found = [0] * 8

        def one(k):
            found[k] = ask(k)

        threads = [threading.Thread(target=one, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    found, asked = answered(as_generator(parallel, 1.0), lambda k: k * k)
    assert found == [k * k for k in range(8)]
    assert sorted(asked) == [*range(8)]


def test_asking_after_the_end_is_refused():
    kept = []

    def leaking(ask):
        kept.append(ask)
        return ask(1)

    assert answered(as_generator(leaking, 1.0), lambda k: k) == (1, [1])
    with pytest.raises(NoMoreAnswers):
        kept[0](2)


def test_numpys_error_state_goes_along():
    def dividing(ask):
        return np.float64(1.0) / ask(0)

    with np.errstate(divide="ignore"):
        assert answered(as_generator(dividing, 1.0), np.float64)[0] == np.inf
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        answered(as_generator(dividing, 1.0), np.float64)
