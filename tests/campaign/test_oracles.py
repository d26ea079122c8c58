"""Oracles as they are: failing, slow, wrong, interrupted, careless with what they are given."""

import functools
import gc
import logging
import pickle
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import PATIENCE_S, Life, account, one_by_one
from tests.campaign.script import Script, answers_of, first_number, head, sequences
from tests.truth import Counted
from unsoftmax.campaign import scheduler as scheduler_room
from unsoftmax.campaign import watching
from unsoftmax.campaign.calls import BatchSizes
from unsoftmax.probes import Sequences

pytestmark = pytest.mark.usefixtures("signals")

DIM = 4
LEARNER = us.learners.ExactHead(DIM)


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses between tries, which take no time here."""
    taken: list[float] = []
    pause = us.Retries.pause

    def noted(self, failed):
        taken.append(pause(self, failed))
        return 0.0

    monkeypatch.setattr(us.Retries, "pause", noted)
    return taken


def failing(error, times, oracle=first_number):
    """Wrap an oracle that raises ``error`` at the first ``times`` tries of every batch."""
    tries: dict[bytes, int] = {}

    def ask(X):
        key = X.tobytes()
        tries[key] = tries.get(key, 0) + 1
        if tries[key] <= times:
            raise error
        return oracle(X)

    return Counted(ask)


def in_turns(*turns):
    """Wrap an oracle that raises or answers one after the other."""
    left = iter(turns)

    def ask(X):
        turn = next(left)
        if isinstance(turn, Exception):
            raise turn
        return turn

    return ask


# -- errors, cured and not


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("error", [ConnectionError("down"), ValueError("odd"), TypeError("none")])
def test_a_retry_cures(error, times, workers, pauses):
    oracle = failing(error, times)
    script = Script([[sequences(7)], [sequences(4, seed=1)]])
    recovery = us.learn(oracle, script, batch=2, workers=workers)
    assert recovery.counts == {"data": 11, "failed": 11 * times}
    assert recovery.queries == oracle.queries == 11 * (1 + times)
    assert np.array_equal(answers_of(recovery)[0][0], script.rounds[0][0].X[:, 0, 0])
    assert sorted(pauses) == sorted([0.1, 0.2][:times] * 6)


def test_three_tries_and_then_an_oracle_error(workers, ledger):
    script = Script([[sequences(4)], [sequences(5, seed=1)]])
    cause = ConnectionResetError("gone away")

    def oracle(X):
        if X[0, 0, 0] == script.rounds[1][0].X[2, 0, 0]:
            raise cause
        return first_number(X)

    counted = Counted(oracle)
    with pytest.raises(us.OracleError) as caught:
        us.learn(counted, script, ledger=ledger, batch=2, workers=workers)
    assert not isinstance(caught.value, us.ModelMismatch)
    for word in ("2 sequences of shape (2, 2)", "2–3", "part 1", "3 tries", "gone away"):
        assert word in str(caught.value)
    assert caught.value.__cause__ is cause
    now = account(ledger)
    assert now.failed == 3 * 2
    assert now.open == {}
    assert now.paid == counted.queries
    assert now.recorded == counted.queries - 6 >= 4 + 2
    # the same again goes on
    recovery = us.learn(first_number, script, ledger=ledger)
    assert recovery.counts["failed"] == 6
    assert recovery.counts["data"] == 9


def test_errors_of_earlier_tries_are_told(workers):
    """How many kinds, each with its words, and all of them in the chain."""
    oracle = in_turns(
        TimeoutError("slow"), ConnectionError("gone"), TimeoutError("no"), OSError("x")
    )
    retries = us.Retries(tries=4, pause_s=0.0)
    with pytest.raises(us.OracleError) as caught:
        us.learn(oracle, Script([[sequences(4)]]), workers=workers, retries=retries)
    said = str(caught.value)
    assert (
        "did not answer 4 sequences of shape (2, 2), 0–3 of “part 0” in 4 tries (OSError: x)"
        in (said)
    )
    assert (
        "Earlier tries failed with errors of 2 other kinds (TimeoutError: slow; "
        "ConnectionError: gone)."
    ) in said
    group = caught.value.__cause__
    assert isinstance(group, ExceptionGroup)
    assert [str(error) for error in group.exceptions] == ["slow", "gone", "x"]


@pytest.mark.parametrize(
    ("last", "said", "kind"),
    [
        (np.full(1, np.nan), "with nan (sequence 0) in 2 tries", us.OracleError),
        (MemoryError(), "ran out of memory", us.OracleError),
        (us.OracleError("The key expired."), "The key expired. Earlier tries", us.OracleError),
        (ValueError("odd"), "in 2 tries (ValueError: odd)", us.OracleError),
        (us.RetryLater(1e5), "has put off 1 sequence of shape (2, 2), number 0 of", us.OracleError),
    ],
    ids=lambda x: type(x).__name__,
)
def test_errors_before_another_end_are_told(last, said, kind):
    oracle = in_turns(ConnectionError("gone"), last)
    with pytest.raises(us.OracleError) as caught:
        us.learn(oracle, Script([[sequences(1)]]), retries=us.Retries(2, 0.0))
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert "with errors of another kind (ConnectionError: gone). Nothing was answered yet." in str(
        caught.value
    )
    assert isinstance(caught.value.__cause__, ExceptionGroup)


def test_an_answer_that_was_not_finite_is_an_earlier_error_too():
    oracle = in_turns(np.array([0.0, np.inf]), ConnectionError("gone"))
    with pytest.raises(us.OracleError, match=r"another kind \(FloatingPointError: inf in row 1"):
        us.learn(oracle, Script([[sequences(2)]]), retries=us.Retries(2, 0.0))


@pytest.mark.parametrize("seconds", [-1.0, np.nan, np.inf, 10**400, "soon"])
def test_a_wait_that_is_none_is_the_oracles_mistake_from_the_first_batch_on(seconds):
    def oracle(X):
        raise us.RetryLater(seconds)

    with pytest.raises(us.OracleError, match="seconds must be") as caught:
        us.learn(oracle, Script([[sequences(2)]]))
    assert not isinstance(caught.value, us.DimensionRefused)


def test_what_flies_beside_a_failure_is_recorded(ledger):
    """The batch that fails is first; the two beside it come later and are kept."""
    script = Script([[sequences(20)]])
    beside = threading.Barrier(3, timeout=PATIENCE_S)

    def oracle(X):
        if X[0, 0, 0] == script.rounds[0][0].X[0, 0, 0]:
            beside.wait()
            raise MemoryError
        beside.wait()
        time.sleep(0.05)
        return first_number(X)

    with pytest.raises(us.OracleError):
        us.learn(oracle, script, ledger=ledger, batch=2, workers=3)
    now = account(ledger)
    assert (now.recorded, now.failed, now.paid) == (4, 2, 6)
    assert now.open == {}


def test_running_out_of_memory_is_not_retried(workers):
    oracle = failing(MemoryError("3 GB"), 9)
    words = r"out of memory at 5 sequences.*smaller batch \(now 5\)"
    with pytest.raises(us.OracleError, match=words) as caught:
        us.learn(oracle, Script([[sequences(5)]]), batch=5, workers=workers)
    assert isinstance(caught.value.__cause__, MemoryError)
    assert oracle.calls == 1


def test_a_smaller_batch_cures_memory(ledger):
    """Also that of the fingerprint, which was recorded in larger ones."""
    script = Script([[sequences(9)], [sequences(12, seed=1)]])

    def small(most):
        def oracle(X):
            if len(X) > most:
                raise MemoryError
            return first_number(X)

        return oracle

    with pytest.raises(us.OracleError):
        us.learn(small(10), script, ledger=ledger)
    recovery = us.learn(small(3), script, ledger=ledger, batch=3)
    assert recovery.counts == {"data": 21, "failed": 12, "fingerprint": 8}


def test_an_oracle_error_of_its_own_is_not_retried_and_says_what_is_kept(workers):
    for kind in (us.OracleError, us.DimensionRefused):
        own = kind("The endpoint refused the key.")
        own.__cause__ = PermissionError("401")
        oracle = failing(own, 9)
        with pytest.raises(us.OracleError) as caught:
            us.learn(oracle, Script([[sequences(5)]]), workers=workers)
        assert type(caught.value) is kind
        assert str(caught.value).startswith(f"{own} Nothing was answered yet")
        assert caught.value.__cause__ is own.__cause__
        assert oracle.calls == 1


def test_a_target_that_exits_does_not_end_the_program(workers):
    oracle = failing(SystemExit(3), 9)
    with pytest.raises(us.OracleError, match=r"sys\.exit\(3\)"):
        us.learn(oracle, Script([[sequences(5)]]), workers=workers)
    assert oracle.calls == 3


def test_an_error_says_whether_the_answers_are_kept(ledger):
    script = Script([[sequences(4)], [sequences(3, seed=1)]])
    for error in (ConnectionError(), MemoryError(), us.OracleError("no")):

        def oracle(X, error=error):
            if len(X) == 3:
                raise error
            return first_number(X)

        with pytest.raises(us.OracleError, match="in the ledger: run the same again"):
            us.learn(oracle, script, ledger=ledger)
        with pytest.raises(us.OracleError, match="lost with this process: give a ledger"):
            us.learn(oracle, script)


# -- answers


@pytest.mark.parametrize(
    "cast",
    [
        np.asarray,
        list,
        tuple,
        lambda y: y[:, None],
        lambda y: [[number] for number in y],
        lambda y: y.astype(np.int64),
        lambda y: y.astype(np.uint8),
        lambda y: y.astype(bool),
        lambda y: y.astype(np.float16),
        lambda y: y.astype(">f8"),
        lambda y: np.repeat(y, 2)[::2],
    ],
    ids=lambda _: "",
)
@pytest.mark.parametrize("count", [1, 6])
def test_real_numbers_of_any_type_are_answers(cast, count):
    X = np.random.default_rng(0).integers(0, 2, (count, 2, 2)).astype(float)
    probes = sequences(count)
    object.__setattr__(probes, "X", X)
    recovery = us.learn(lambda X: cast(first_number(X)), Script([[probes]]))
    [[y]] = answers_of(recovery)
    assert y.dtype == np.float64
    assert np.array_equal(y, X[:, 0, 0])


# -- dimensions


@pytest.mark.parametrize("dim", [3, np.int64(5)])
def test_a_target_that_says_another_dim_is_not_asked(dim, ledger):
    oracle = Counted(first_number)
    oracle.dim = dim  # type: ignore[attr-defined]
    with pytest.raises(us.DimensionRefused, match=rf"dimension {dim}.*asks 4.*dim={dim}"):
        us.learn(oracle, LEARNER, ledger=ledger)
    assert oracle.calls == 0
    assert not (ledger).exists()
    # an attribute that is no number says nothing
    oracle = Counted(head())
    oracle.dim = "four"  # type: ignore[attr-defined]
    us.learn(oracle, LEARNER)


@pytest.mark.parametrize("kind", [ValueError, IndexError, AssertionError])
def test_a_target_that_refuses_its_first_batch_takes_another_dim(kind, workers):
    def other(X):
        if X.shape[2] != 3:
            raise kind("shapes not aligned")
        return first_number(X)

    words = "shapes not aligned.*another dimension than 4"
    for refusal in (us.DimensionRefused, us.ModelMismatch, us.OracleError):
        with pytest.raises(refusal, match=words) as caught:
            us.learn(other, LEARNER, batch=2, workers=workers)
        assert isinstance(caught.value.__cause__, kind)


def test_a_target_that_has_answered_before_has_this_dim(ledger):
    script = Script([[sequences(4)], [sequences(3, seed=1)]])

    def oracle(X):
        if len(X) == 3:
            raise ValueError("not now")
        return first_number(X)

    for _ in range(2):
        with pytest.raises(us.OracleError) as caught:
            us.learn(oracle, script, ledger=ledger)
        assert not isinstance(caught.value, us.ModelMismatch)
    with pytest.raises(us.OracleError) as caught:
        us.learn(failing(ValueError("not now"), 9), script, ledger=ledger)
    assert not isinstance(caught.value, us.ModelMismatch)


# -- Ctrl-C


@dataclass
class Attended:
    """An oracle in a child process that says when it is asked its ``number``-th question.

    The child also says when a Ctrl-C is held back.
    """

    number: int
    pause_s: float

    def pipe_to(self, pipe):
        self.pipe, self.calls, self.lock = pipe, 0, threading.Lock()
        handler = logging.Handler()
        handler.emit = lambda record: pipe.send("held")  # type: ignore[method-assign]
        logging.getLogger("unsoftmax").addHandler(handler)

    def __call__(self, X):
        with self.lock:
            self.calls += 1
            number = self.calls
        if number == self.number:
            self.pipe.send("asked")
        if number >= self.number:
            time.sleep(self.pause_s)
        return one_by_one(head(), X)


@pytest.mark.parametrize("number", [1, 5])
def test_ctrl_c_records_what_is_in_flight(number, workers, ledger):
    settings: dict[str, Any] = {"batch": 2, "workers": workers, "ledger": ledger}
    expected = us.learn(lambda X: one_by_one(head(), X), LEARNER)
    life = Life(Attended(number, 0.3), LEARNER, **settings)
    assert life.hear() == "asked"
    life.interrupt()
    assert life.hear() == "held"
    assert isinstance(life.result(), KeyboardInterrupt)
    now = account(ledger)
    assert now.open == {}
    assert now.failed == 0
    assert 2 * number <= now.recorded == now.paid <= 2 * (number + workers)
    counted = Counted(lambda X: one_by_one(head(), X))
    recovery = us.learn(counted, LEARNER, **settings)
    assert counted.queries == expected.queries - now.recorded + now.first
    assert "in doubt" not in recovery.counts
    assert np.array_equal(recovery.model.W, expected.model.W)


def test_ctrl_c_at_the_fingerprint(ledger):
    with pytest.raises(us.BudgetExceeded):
        us.learn(lambda X: one_by_one(head(), X), LEARNER, ledger=ledger, budget=20)
    life = Life(Attended(1, 0.3), LEARNER, ledger=ledger, batch=2)
    assert life.hear() == "asked"
    life.interrupt()
    assert life.hear() == "held"
    assert isinstance(life.result(), KeyboardInterrupt)
    now = account(ledger)
    assert (now.recorded, now.fingerprint, now.paid, now.open) == (20, 2, 22, {})


def test_ctrl_c_at_the_end_of_the_fingerprint_asks_nothing_new(workers, ledger):
    script = Script([[sequences(20)]])
    with pytest.raises(us.BudgetExceeded):
        us.learn(first_number, script, ledger=ledger, budget=10)
    main = threading.get_ident()

    @Counted
    def oracle(X):
        signal.pthread_kill(main, signal.SIGINT)
        return first_number(X)

    with pytest.raises(KeyboardInterrupt):
        us.learn(oracle, script, ledger=ledger, workers=workers)
    now = account(ledger)
    assert (oracle.queries, now.fingerprint, now.recorded, now.paid) == (8, 8, 10, 18)


def test_ctrl_c_after_the_last_report_is_not_lost(ledger):
    script = Script([[sequences(4)]])

    def watch(report):
        if report.answered == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        us.learn(first_number, script, ledger=ledger, batch=2, progress=watch)
    assert account(ledger).recorded == 4


def test_a_second_ctrl_c_leaves_an_oracle_that_hangs(workers, ledger):
    life = Life(Attended(5, 3600.0), LEARNER, ledger=ledger, batch=2, workers=workers)
    try:
        assert life.hear() == "asked"
        life.interrupt()
        assert life.hear() == "held"
        assert not life.pipe.poll(0.1)
        life.interrupt()
        assert isinstance(life.hear(), KeyboardInterrupt)
        life.process.join(5)
        assert life.process.exitcode is not None
    finally:
        life.kill()
    now = account(ledger)
    assert 0 < sum(now.open.values()) <= 2 * workers
    recovery = us.learn(lambda X: one_by_one(head(), X), LEARNER, ledger=ledger)
    assert recovery.counts["in doubt"] == sum(now.open.values())


def hanging(script, oracle=first_number):
    """Wrap an oracle that never answers the second round; return it and its release."""
    release = threading.Event()

    def ask(X):
        if X[0, 0, 0] in script.rounds[1][0].X[:, 0, 0]:
            release.wait(PATIENCE_S)
        return oracle(X)

    return Counted(ask), release


def test_one_ctrl_c_ends_a_run_whose_target_hangs(workers, ledger, monkeypatch):
    """A thread presses once: patience ends by itself, as long as the longest call thrice."""
    script = Script([[sequences(4)], [sequences(6, seed=1)]])
    oracle, release = hanging(script)
    patient = functools.partial(watching.Interrupts, least_s=0.3)
    monkeypatch.setattr(watching, "Interrupts", patient)
    main = threading.get_ident()
    began = time.monotonic()
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        us.learn(oracle, script, ledger=ledger, batch=2, workers=workers)
    assert 0.5 < time.monotonic() - began < PATIENCE_S / 2
    release.set()
    now = account(ledger)
    assert (now.recorded, sum(now.open.values())) == (4, 2 * workers)
    assert us.learn(first_number, script, ledger=ledger).counts["in doubt"] == 2 * workers


def test_a_run_that_is_over_gets_no_more_signals():
    """Neither after its end nor while nothing is in flight."""
    for close in (True, False):
        state = watching.Interrupts(least_s=0.05)
        with pytest.raises(KeyboardInterrupt), state.held():
            state.press(signal.SIGINT, None)
        if close:
            state.close()
        time.sleep(0.2)


def test_what_is_slow_is_waited_for(monkeypatch):
    """Calls of 0.2 s: 0.6 s of patience, though the least is 0.1 s."""
    patient = functools.partial(watching.Interrupts, least_s=0.1)
    monkeypatch.setattr(watching, "Interrupts", patient)
    reports: list[us.Progress] = []

    def oracle(X):
        if len(reports) == 2:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)
        return first_number(X)

    with pytest.raises(KeyboardInterrupt):
        us.learn(oracle, Script([[sequences(6)]]), batch=2, progress=reports.append)
    assert [report.answered for report in reports] == [2, 4, 6]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_a_run_as_ctrl_c_does(number, ledger):
    script = Script([[sequences(4)]])

    def oracle(X):
        signal.raise_signal(number)
        return first_number(X)

    with pytest.raises(us.Terminated) as caught:
        us.learn(oracle, script, ledger=ledger)
    assert caught.value.code == 128 + number
    assert pickle.loads(pickle.dumps(caught.value)).code == 128 + number
    assert account(ledger).recorded == 4
    assert signal.getsignal(number) is signal.SIG_DFL

    def twice(X):
        signal.raise_signal(number)
        oracle(X)

    with pytest.raises(us.Terminated):  # it is no exit of the target's own
        us.learn(twice, Script([[sequences(3)]]))


# -- targets that take too long


def test_a_call_that_takes_too_long_is_a_failed_try(workers, ledger):
    script = Script([[sequences(4)], [sequences(6, seed=1)]])
    oracle, release = hanging(script)
    settings: dict[str, Any] = {"batch": 2, "workers": workers, "ledger": ledger}
    before = threading.active_count()
    with pytest.raises(us.OracleError, match=r"in 3 tries \(TimeoutError: no answer within 0.1 s"):
        us.learn(oracle, script, timeout=0.1, **settings)
    now = account(ledger)
    assert (now.recorded, now.open) == (4, {})
    assert now.paid == oracle.queries == 4 + now.failed
    assert 6 <= now.failed <= 6 * workers
    release.set()
    for _ in range(500):
        if threading.active_count() <= before:
            break
        time.sleep(0.01)
    assert threading.active_count() <= before, "threads that come back late end"
    recovery = us.learn(first_number, script, timeout=PATIENCE_S, **settings)
    assert recovery.counts["data"] == 10


def test_others_go_on_beside_a_call_that_hangs(workers):
    """A call that is late once, of many: cured, in the place of the thread that it took."""
    script, release = Script([[sequences(40)]]), threading.Event()
    late: list[bool] = []

    def oracle(X):
        if X[0, 0, 0] == script.rounds[0][0].X[4, 0, 0] and not late:
            late.append(True)
            release.wait(PATIENCE_S)
        return first_number(X)

    recovery = us.learn(oracle, script, batch=2, workers=workers, timeout=0.2)
    release.set()
    assert recovery.counts == {"data": 40, "failed": 2}
    assert np.array_equal(answers_of(recovery)[0][0], first_number(script.rounds[0][0].X))


def test_a_call_that_never_began_is_called_off():
    """Threads that are all busy, as between two calls: nothing is asked that is not waited for."""
    pool, release, calls = scheduler_room.Threads(1), threading.Event(), []
    busy = pool.submit(lambda: release.wait(PATIENCE_S))
    waiting = pool.submit(lambda: calls.append(True))
    pool.leave(waiting)
    assert waiting.cancelled()
    release.set()
    assert busy.result()
    pool.leave(busy)  # it is back: its thread is free
    pool.__exit__(None, None, None)
    assert calls == []


# -- Ctrl-C, again


class Thinking(Script):
    """A learner that thinks for an hour about its first answers."""

    def steps(self, checks):
        steps = super().steps(checks)
        yield next(steps)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it thinks on")


def test_ctrl_c_is_not_held_back_while_the_learner_thinks(ledger):
    counted = Counted(first_number)
    with pytest.raises(KeyboardInterrupt):
        us.learn(counted, Thinking([[sequences(4)]]), ledger=ledger)
    assert counted.calls == 1
    assert account(ledger).recorded == 4


def test_ctrl_c_in_the_last_batch_is_not_lost(ledger):
    script = Script([[sequences(4)]])

    def oracle(X):
        signal.raise_signal(signal.SIGINT)
        return first_number(X)

    with pytest.raises(KeyboardInterrupt):
        us.learn(oracle, script, ledger=ledger)
    assert account(ledger).recorded == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert us.learn(first_number, script, ledger=ledger).counts == {"data": 4, "fingerprint": 4}


def test_ctrl_c_ends_the_retries(ledger):
    script = Script([[sequences(4)], [sequences(2, seed=1)]])

    @Counted
    def oracle(X):
        signal.raise_signal(signal.SIGINT)
        raise ConnectionError

    with pytest.raises(KeyboardInterrupt):
        us.learn(oracle, script, ledger=ledger)
    assert (oracle.calls, account(ledger).failed) == (1, 4)
    us.learn(first_number, script, ledger=ledger)
    with pytest.raises(KeyboardInterrupt):  # at the fingerprint
        us.learn(oracle, script, ledger=ledger)
    assert (oracle.calls, account(ledger).failed) == (2, 4 + 6)


def test_a_second_ctrl_c_is_at_once():
    def oracle(X):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        us.learn(oracle, Script([[sequences(4)]]))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interruption_that_the_oracle_raises_is_not_retried(workers, ledger):
    script = Script([[sequences(4)]])
    oracle = failing(KeyboardInterrupt(), 9)
    with pytest.raises(KeyboardInterrupt):
        us.learn(oracle, script, ledger=ledger, workers=workers)
    assert oracle.calls == 1
    assert account(ledger).paid == 4
    assert us.learn(first_number, script, ledger=ledger).queries == 8


def test_a_caller_with_its_own_ctrl_c_keeps_it():
    caught = []

    def own(number, frame):
        caught.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:

        def oracle(X):
            assert signal.getsignal(signal.SIGINT) is own
            signal.raise_signal(signal.SIGINT)
            return first_number(X)

        us.learn(oracle, Script([[sequences(4)]]), batch=2)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == [signal.SIGINT] * 2


def test_a_run_in_a_thread_leaves_ctrl_c_alone():
    results = []

    def oracle(X):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return first_number(X)

    thread = threading.Thread(
        target=lambda: results.append(us.learn(oracle, Script([[sequences(4)]])))
    )
    thread.start()
    thread.join(PATIENCE_S)
    assert len(results) == 1


# -- several workers


@pytest.mark.parametrize("batch", [1, 3])
def test_the_result_does_not_depend_on_the_order_of_answers(batch, ledger):
    rng, lock = np.random.default_rng(0), threading.Lock()

    def slow(X):
        with lock:
            pause_s = rng.uniform(0, 0.004)
        time.sleep(pause_s)
        return one_by_one(head(), X)

    one = us.learn(lambda X: one_by_one(head(), X), LEARNER, batch=batch)
    four = us.learn(slow, LEARNER, batch=batch, workers=4, ledger=ledger)
    assert np.array_equal(one.model.W, four.model.W)
    assert np.array_equal(one.model.v, four.model.v)
    assert (one.certificate, one.evidence) == (four.certificate, four.evidence)
    assert one.counts == four.counts


def test_as_many_batches_fly_as_there_are_workers():
    """Four at a time: none is answered before four are asked, and a fifth never is."""
    together, lock = threading.Barrier(4, timeout=PATIENCE_S), threading.Lock()
    flying, most = 0, 0

    def oracle(X):
        nonlocal flying, most
        with lock:
            flying += 1
            most = max(most, flying)
        together.wait()
        with lock:
            flying -= 1
        return first_number(X)

    recovery = us.learn(oracle, Script([[sequences(12)]]), batch=1, workers=4)
    assert recovery.queries == 12
    assert most == 4


@pytest.mark.parametrize("workers", [1, 2, 4, 2048])
def test_what_flies_over_all_workers_is_bounded(workers):
    """2,048 sequences at most, however many workers share them; a batch that is given is kept."""
    lock, flying, most = threading.Lock(), 0, 0

    def oracle(X):
        nonlocal flying, most
        with lock:
            flying += len(X)
            most = max(most, flying)
        time.sleep(0.001)
        with lock:
            flying -= len(X)
        return first_number(X)

    count = 6000 if workers < 2048 else 50
    us.learn(oracle, Script([[sequences(count)]]), workers=workers)
    assert most <= 2048
    sizes = BatchSizes(workers=workers)
    assert sizes.of(sequences(9), 1) == 2048 // workers
    assert BatchSizes(500, workers=workers).of(sequences(9), 1) == 500


def test_no_thread_is_left_behind():
    def alive():
        return sum(thread.is_alive() for thread in threading.enumerate())

    before = alive()
    us.learn(first_number, Script([[sequences(40)]]), batch=1, workers=8)
    assert alive() == before
    with pytest.raises(us.OracleError):
        us.learn(failing(MemoryError(), 9), Script([[sequences(40)]]), batch=1, workers=8)
    assert alive() == before


# -- progress


def test_progress_counts_up_to_the_plan(workers, ledger):
    expected = DIM + DIM**2 + 32
    reports: list[us.Progress] = []
    here = []

    def watch(report):
        reports.append(report)
        here.append(threading.current_thread() is threading.main_thread())

    settings: dict[str, Any] = {"batch": 3, "workers": workers, "progress": watch}
    with pytest.raises(us.BudgetExceeded):
        us.learn(head(), LEARNER, ledger=ledger, budget=20, **settings)
    assert reports[-1].answered == 20
    recovery = us.learn(head(), LEARNER, ledger=ledger, **settings)
    assert all(here)
    for name in ("answered", "spent"):
        counts = [getattr(report, name) for report in reports]
        assert counts == sorted(counts)
    assert [report.phase for report in reports].count("going on") == 1
    assert all(report.answered <= report.spent for report in reports)
    assert {report.expected for report in reports} == {expected}
    # what was asked again beyond the plan comes on top
    assert reports[-1].answered == expected + recovery.counts.get("again", 0)
    assert reports[-1].spent == recovery.queries
    phases = {report.phase for report in reports}
    assert "v" in phases
    assert len(phases) >= 4


def test_nothing_is_expected_of_a_learner_without_a_count():
    reports: list[us.Progress] = []
    us.learn(first_number, Script([[sequences(4)]]), batch=2, progress=reports.append)
    assert [(report.answered, report.expected) for report in reports] == [(2, None), (4, None)]


def test_a_failing_watcher_loses_no_answer(workers, ledger):
    script = Script([[sequences(20)]])

    class Broken(Exception):
        pass

    def watch(report):
        if report.answered >= 6:
            raise Broken(report.answered)

    counted = Counted(first_number)
    with pytest.raises(Broken, match="6"):
        us.learn(counted, script, ledger=ledger, batch=2, workers=workers, progress=watch)
    now = account(ledger)
    assert now.open == {}
    assert now.recorded == now.paid == counted.queries <= 6 + 2 * workers


# -- carelessness


def test_an_oracle_may_keep_what_it_is_given_and_what_it_answered():
    asked: list[np.ndarray] = []
    buffer = np.empty(1000)
    script = Script([[sequences(9), sequences(5, tokens=1, seed=1)], [sequences(6, seed=2)]])

    def hoarding(X):
        asked.append(X)
        buffer[: len(X)] = X[:, 0, 0]
        return buffer[: len(X)]

    recovery = us.learn(hoarding, script, batch=4)
    for parts, answers in zip(script.rounds, answers_of(recovery), strict=True):
        for probes, y in zip(parts, answers, strict=True):
            assert np.array_equal(y, probes.X[:, 0, 0])
    assert np.array_equal(np.concatenate(asked[:3]), script.rounds[0][0].X)


def test_every_thread_of_an_oracle_may_answer_in_its_own_buffer():
    """It may begin to answer the next batch before its last answer is recorded."""
    script, local = Script([[sequences(600)]]), threading.local()

    def buffered(X):
        if not hasattr(local, "buffer"):
            local.buffer = np.empty(1)
        local.buffer[:] = X[:, 0, 0]
        return local.buffer

    [[y]] = answers_of(us.learn(buffered, script, batch=1, workers=4))
    assert np.array_equal(y, script.rounds[0][0].X[:, 0, 0])


def test_a_retry_asks_the_unspoilt_question():
    script, tries = Script([[sequences(4)]]), []

    def oracle(X):
        tries.append(X.copy())
        X[...] = 0.0
        if len(tries) < 3:
            raise ConnectionError
        return first_number(tries[-1])

    us.learn(oracle, script)
    assert all(np.array_equal(X, script.rounds[0][0].X) for X in tries)
    assert len(tries) == 3


# -- the generator


def interrupting(X):
    raise KeyboardInterrupt


def not_finite(X):
    return np.full(len(X), np.nan)


def broken_watch(report):
    raise RuntimeError


@pytest.mark.parametrize(
    ("kind", "oracle", "settings"),
    [
        (us.OracleError, not_finite, {}),
        (us.BudgetExceeded, first_number, {"budget": 5}),
        (KeyboardInterrupt, interrupting, {}),
        (RuntimeError, first_number, {"progress": broken_watch}),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_learner_is_closed_whatever_happens(kind, oracle, settings, workers):
    script = Script([[sequences(4)], [sequences(4, seed=1)]])
    gc.disable()  # it is closed on purpose, not by chance
    try:
        with pytest.raises(kind) as caught:
            us.learn(oracle, script, workers=workers, **settings)
        assert script.closed == 1
    finally:
        gc.enable()
    assert caught.value.__traceback__ is not None


def test_the_learner_is_closed_when_its_ledger_does_not_match(ledger):
    script = Script([[sequences(4)], [sequences(4, seed=1)]])
    us.learn(first_number, script, ledger=ledger)
    other = Script([[sequences(4)], [sequences(4, seed=2)]])
    with pytest.raises(us.LedgerMismatch):
        us.learn(first_number, other, ledger=ledger)
    assert (script.closed, other.closed) == (1, 1)


def test_an_error_of_the_learner_passes(ledger):
    class Refusing(Script):
        def steps(self, checks):
            yield self.rounds[0]
            raise us.NotIdentifiable("v = 0", determined={"v": 0})

    for _ in range(2):
        with pytest.raises(us.NotIdentifiable, match="v = 0"):
            us.learn(first_number, Refusing([[sequences(4)]]), ledger=ledger)
    assert account(ledger).recorded == 4


# -- arguments


WHOLE = "must be a whole number"


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        *(
            ({name: bad}, ValueError, f"{name} {WHOLE}")
            for name in ("holdout", "batch", "workers")
            for bad in (-1, True, 1.0, "2", np.nan)
        ),
        *(
            ({name: 0}, ValueError, f"{name} {WHOLE} .*, 1 (to|or more)")
            for name in ("batch", "workers")
        ),
        *(
            ({"workers": many}, ValueError, f"workers {WHOLE} .*1 to 2,048; it is")
            for many in (2049, 9_999_999, 10**30)
        ),
        *(({"timeout": bad}, ValueError, "timeout must be") for bad in (0, -1, np.nan, np.inf)),
        *(({"timeout": bad}, TypeError, "timeout must be") for bad in (True, "1")),
        *(
            ({"learner": bad}, TypeError, r"learner must be.*ExactHead\(dim=384\)")
            for bad in (us.learners.ExactHead, "exact", None)
        ),
        ({"oracle": np.zeros(3)}, TypeError, r"must be callable.*ndarray"),
    ],
)
def test_bad_arguments_are_refused_before_anyone_is_hired_or_asked(settings, kind, words, ledger):
    given = {"oracle": first_number, "learner": LEARNER, "ledger": ledger}
    before = threading.active_count()
    with pytest.raises(kind, match=words):
        us.learn(**given | settings)
    assert threading.active_count() == before
    assert not (ledger).exists()


def test_counts_may_be_numpy_integers(ledger):
    us.learn(head(), LEARNER, None, ledger, np.int64(8), np.int64(3), np.int64(2))  # type: ignore[arg-type]
    assert us.learn(head(), LEARNER, holdout=8, ledger=ledger).counts["fingerprint"] > 0


def test_a_machine_without_threads_left_is_told_in_a_sentence(monkeypatch):
    start, before = threading.Thread.start, threading.active_count()

    def scarce(thread):
        if threading.active_count() >= before + 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with pytest.raises(ValueError, match=r"no more than 3 threads just now: use fewer .* 40"):
        us.learn(first_number, LEARNER, workers=40)
    for _ in range(500):
        if threading.active_count() <= before:
            break
        time.sleep(0.01)
    assert threading.active_count() <= before


class Mute(Exception):
    """An error that fails when it is asked what it says."""

    def __str__(self) -> str:
        raise RuntimeError


class MuteOracle(Mute, us.OracleError):
    """The same for one that is not retried."""


@pytest.mark.parametrize("error", [Mute, MuteOracle])
def test_an_error_without_words_loses_nothing_that_flies(error, ledger):
    failing = threading.Event()
    script = Script([[sequences(4)]])

    def oracle(X):
        if X[0, 0, 0] == script.rounds[0][0].X[0, 0, 0]:
            failing.set()
            raise error
        assert failing.wait(30)
        time.sleep(0.05)
        return first_number(X)

    with pytest.raises(us.OracleError, match="its message cannot be read: RuntimeError"):
        us.learn(oracle, script, ledger=ledger, batch=2, workers=2, retries=1)
    assert account(ledger).recorded == 2 + 1  # and the longest token by itself


# -- what the plan did not say is not sent


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"longest_token": 1.0}, r"a token would have norm 2\.0e\+00, .* at most 1\.0e\+00"),
        ({"most_tokens": 2}, "at most 2 tokens"),
    ],
)
def test_a_question_beyond_the_plan_is_not_sent(limits, sentence):
    counted = Counted(first_number)
    beyond = Sequences(np.full((1, 4, 2), np.sqrt(2)), phase="beyond", purpose="data")
    with pytest.raises(us.OracleError, match=sentence):
        us.learn(counted, Script([[beyond]], **limits))
    assert not counted.queries


def test_many_tokens_within_the_plan_are_sent():
    within = Sequences(np.full((9, 4, 2), 0.5), phase="within", purpose="data")
    counted = Counted(first_number)
    us.learn(counted, Script([[within]], longest_token=1.0, most_tokens=4))
    assert counted.queries == 9
