"""A function that asks by calling, as a generator: one side at a time, and both end together."""

import gc
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from unsoftmax.learners.network_algorithm import NoMoreAnswers, as_generator


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
