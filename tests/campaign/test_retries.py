"""Targets that ask to wait, that answer in part, that fail: what is asked again, and at what cost.

Costs are counted on the oracle's side. A batch that is put off is not counted as answered there:
the oracle says so by raising RetryLater.
"""

import pickle
import signal
import threading
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import PATIENCE_S, Life, account
from tests.campaign.script import Script, answers_of, first_number, sequences
from tests.truth import Counted
from unsoftmax.campaign import calls, scheduler
from unsoftmax.campaign.calls import CallOutcome, OracleReply, PlannedCall, Span, checked, end_of
from unsoftmax.campaign.limits import in_seconds
from unsoftmax.campaign.watching import Interrupts

pytestmark = pytest.mark.usefixtures("signals")

AT_ONCE = us.Retries(pause_s=0.0)


class Clock:
    """A clock that only sleeping moves, and a list of how long was slept."""

    def __init__(self):
        self.now, self.slept = 1000.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(scheduler, "time", clock)
    return clock


class PuttingOff:
    """Puts off chosen calls, by number; counts what it took and what it put off."""

    def __init__(self, waits, oracle=first_number):
        self.waits, self.oracle = dict(waits), Counted(oracle)
        self.calls = self.put_off = 0
        self.lock = threading.Lock()

    def __call__(self, X):
        with self.lock:
            number, self.calls = self.calls, self.calls + 1
        if (seconds := self.waits.get(number)) is not None:
            with self.lock:
                self.put_off += len(X)
            raise us.RetryLater(seconds)
        return self.oracle(X)


# -- told to wait


def test_the_runner_waits_as_long_as_it_is_told(clock, ledger):
    oracle = PuttingOff({0: 7.0, 2: 30.0, 3: 0.5})
    script = Script([[sequences(9)]])
    recovery = us.learn(oracle, script, ledger=ledger, batch=3)
    assert clock.slept == pytest.approx([7.0, 30.0, 0.5])
    assert (oracle.oracle.queries, oracle.put_off) == (9, 9)
    assert recovery.counts == {"data": 9}
    assert recovery.queries == 9
    assert np.array_equal(answers_of(recovery)[0][0], script.rounds[0][0].X[:, 0, 0])
    [note] = recovery.notes
    assert "put off 3 calls" in note
    # the ledger remembers that they were made, and asks nothing for them
    again = us.learn(first_number, script, ledger=ledger)
    assert again.counts == {"data": 9, "fingerprint": 8}
    assert again.notes == recovery.notes


@pytest.mark.parametrize("budget", [1, 5, 8, 12])
def test_what_is_put_off_is_not_spent(budget, workers, ledger):
    """By the oracle's own count: it took as many as the budget, whatever it put off."""
    script = Script([[sequences(20)]], planned=20)
    settings: dict[str, Any] = {"ledger": ledger, "batch": 2, "workers": workers, "holdout": 0}
    oracle = PuttingOff({0: 0.0, 1: 0.0, 4: 0.001, 6: 0.0})
    with pytest.raises(us.BudgetExceeded) as end:
        us.learn(oracle, script, budget=budget, retries=AT_ONCE, **settings)
    assert oracle.oracle.queries == end.value.spent == budget == account(ledger).recorded
    assert oracle.put_off > 0
    first = min(8, budget)
    assert end.value.needed == 20 - budget + first
    oracle = PuttingOff({k: 0.0 for k in range(0, 40, 2)})
    recovery = us.learn(oracle, script, budget=20 + first, retries=AT_ONCE, **settings)
    assert oracle.oracle.queries == 20 - budget + first
    assert recovery.queries == 20 + first


def test_waiting_is_bounded(clock, ledger):
    """A target that always asks for a little more: the sum counts, from its first refusal."""
    script = Script([[sequences(4)], [sequences(2, seed=1)]])
    oracle = PuttingOff(dict.fromkeys(range(1, 99), 4.0))
    with pytest.raises(us.OracleError) as caught:
        us.learn(oracle, script, ledger=ledger, retries=us.Retries(longest_wait_s=10.0))
    assert type(caught.value) is us.OracleError
    for words in ("2 sequences", "0–1", "put off", "8 s", "4 s more", "10 s", "longest_wait_s"):
        assert words in str(caught.value)
    assert "in the ledger: run the same again" in str(caught.value)
    assert isinstance(caught.value.__cause__, us.RetryLater)
    assert clock.slept == pytest.approx([4.0, 4.0])
    now = account(ledger)
    assert (now.recorded, now.open, oracle.oracle.queries) == (4, {}, 4)
    recovery = us.learn(first_number, script, ledger=ledger)
    assert recovery.counts == {"data": 6, "fingerprint": 4}


def test_a_target_that_is_down_spends_no_budget(workers, ledger):
    """However often the run is tried meanwhile: the last refusal is as free as the others."""
    script = Script([[sequences(10)]])
    settings: dict[str, Any] = {"ledger": ledger, "batch": 5, "workers": workers, "budget": 10}
    for _ in range(3):
        with pytest.raises(us.OracleError, match="put off"):
            us.learn(PuttingOff(dict.fromkeys(range(9), 3600.0)), script, **settings)
    recovery = us.learn(first_number, script, **settings)
    assert recovery.counts == {"data": 10}
    [note] = recovery.notes
    assert f"put off {3 * min(workers, 2)} calls" in note


def test_a_wait_that_is_too_long_is_not_begun(clock):
    oracle = PuttingOff({0: 3600.0})
    with pytest.raises(us.OracleError, match="asks for 3,600 s more; the limit is 600 s"):
        us.learn(oracle, Script([[sequences(4)]]))
    assert (clock.slept, oracle.calls) == ([], 1)
    with pytest.raises(us.OracleError, match="the limit is 0 s"):
        us.learn(PuttingOff({0: 0.0}), Script([[sequences(4)]]), retries=us.Retries(1, 0.1, 0.0))


def test_the_limit_is_each_batchs_own(clock):
    oracle = PuttingOff(dict.fromkeys(range(0, 10, 2), 8.0))
    retries = us.Retries(longest_wait_s=10.0)
    recovery = us.learn(oracle, Script([[sequences(10)]]), batch=2, retries=retries)
    assert recovery.counts == {"data": 10}
    assert clock.slept == pytest.approx([8.0] * 5)


def test_a_wait_of_nothing_is_no_busy_loop(clock):
    """Ever so often 0: as long as the shortest pause, until the limit ends it."""
    retries = us.Retries(pause_s=0.5, longest_wait_s=20.0)
    oracle = PuttingOff(dict.fromkeys(range(1000), 0.0))
    with pytest.raises(us.OracleError, match="put off"):
        us.learn(oracle, Script([[sequences(4)]]), retries=retries)
    assert clock.slept == pytest.approx([0.5] * 40)
    assert oracle.calls == 41


def test_without_any_pause_time_itself_ends_it():
    def never(X):
        raise us.RetryLater(0)

    retries = us.Retries(pause_s=0.0, longest_wait_s=0.05)
    with pytest.raises(us.OracleError, match="put off"):
        us.learn(never, Script([[sequences(4)]]), retries=retries)


def test_waiting_is_no_try_and_a_failure_no_waiting(clock):
    """Failures between refusals are counted, and the first refusal's moment is not forgotten."""

    def oracle():
        turns = iter(["wait", "fail", "wait", "fail", "wait", "answer"])

        def answer(X):
            turn = next(turns)
            if turn == "wait":
                raise us.RetryLater(1.0)
            if turn == "fail":
                raise ConnectionError
            return first_number(X)

        return answer

    recovery = us.learn(oracle(), Script([[sequences(4)]]), retries=us.Retries(longest_wait_s=60.0))
    assert recovery.counts == {"data": 4, "failed": 8}
    assert clock.slept == pytest.approx([1.0, 0.1, 1.0, 0.2, 1.0])
    with pytest.raises(us.OracleError, match=r"put off .* for 2.3 s and asks for 1 s more"):
        us.learn(oracle(), Script([[sequences(4)]]), retries=us.Retries(longest_wait_s=3.0))


def test_other_workers_go_on_meanwhile(tmp_path):
    """While one waits the other asks all the rest; the first asks nothing else."""
    script, waiting = Script([[sequences(12)]]), threading.Event()
    asked: list[float] = []

    def oracle(X):
        if X[0, 0, 0] == script.rounds[0][0].X[0, 0, 0] and not waiting.is_set():
            waiting.set()
            raise us.RetryLater(0.3)
        assert waiting.wait(PATIENCE_S)
        asked.append(float(X[0, 0, 0]))
        return first_number(X)

    began = time.monotonic()
    recovery = us.learn(oracle, script, batch=2, workers=2)
    assert time.monotonic() - began >= 0.3
    assert asked[-1] == script.rounds[0][0].X[0, 0, 0]
    assert recovery.counts == {"data": 12}


def test_one_that_waits_is_not_asked_anything_else():
    """Four slots, one put off: the others never make more than three calls at once."""
    lock, flying, most = threading.Lock(), 0, 0
    script = Script([[sequences(40)]])
    refused = threading.Event()

    def oracle(X):
        nonlocal flying, most
        with lock:
            if not refused.is_set():
                refused.set()
                raise us.RetryLater(0.2)
            flying += 1
            most = max(most, flying)
        time.sleep(0.005)
        with lock:
            flying -= 1
        return first_number(X)

    us.learn(oracle, script, batch=2, workers=4)
    assert most <= 3


def test_waiting_is_told_to_the_watcher(clock):
    reports: list[us.Progress] = []
    us.learn(PuttingOff({1: 12.0}), Script([[sequences(4)]]), batch=2, progress=reports.append)
    assert [report.phase for report in reports] == [
        "part 0",
        "waiting 12 s: the target asks to",
        "part 0",
    ]
    assert [report.answered for report in reports] == [2, 2, 4]
    assert reports[1].spent == 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (0.25, "0.25 s"),
        (59.94, "59.9 s"),
        (100, "100 s"),
        (5400.4, "5,400 s"),
        (1e300, "1e+300 s"),
    ],
)
def test_durations_are_written_for_people(seconds, words):
    assert in_seconds(seconds) == words


def test_a_failed_try_is_not_told_to_the_watcher(clock):
    turns = iter([ConnectionError(), None])

    def oracle(X):
        if error := next(turns):
            raise error
        return first_number(X)

    reports: list[us.Progress] = []
    us.learn(oracle, Script([[sequences(4)]]), progress=reports.append)
    assert [(report.answered, report.spent) for report in reports] == [(4, 8)]


def test_a_watcher_may_end_it_while_it_waits(clock):
    def watch(report):
        if "waiting" in report.phase:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        us.learn(PuttingOff({1: 12.0}), Script([[sequences(4)]]), batch=2, progress=watch)
    assert clock.slept == []


class Waiting:
    """An oracle in a child process that says when it has asked for an hour's patience."""

    def pipe_to(self, pipe):
        self.pipe = pipe

    def __call__(self, X):
        if len(X) == 3:
            self.pipe.send("put off")
            raise us.RetryLater(3600)
        return first_number(X)


def test_ctrl_c_ends_the_wait_at_once(workers, ledger):
    script = Script([[sequences(6)], [sequences(3, seed=1)]])
    patient = us.Retries(longest_wait_s=1e5)
    life = Life(Waiting(), script, ledger=ledger, workers=workers, batch=6, retries=patient)
    assert life.hear() == "put off"
    time.sleep(0.2)
    began = time.monotonic()
    life.interrupt()
    assert isinstance(life.result(), KeyboardInterrupt)
    assert time.monotonic() - began < PATIENCE_S / 2
    now = account(ledger)
    assert (now.recorded, now.open) == (6, {})
    assert us.learn(first_number, script, ledger=ledger).counts == {"data": 9, "fingerprint": 6}


def test_ctrl_c_before_the_wait_is_not_lost(tmp_path):
    """Pressed in the very call that is put off, or by the watcher that is told of it."""

    def pressing(X):
        signal.raise_signal(signal.SIGINT)
        raise us.RetryLater(PATIENCE_S)

    def watch(report):
        if "waiting" in report.phase:
            signal.raise_signal(signal.SIGINT)

    patient = us.Retries(longest_wait_s=PATIENCE_S)
    with pytest.raises(KeyboardInterrupt):
        us.learn(pressing, Script([[sequences(4)]]), retries=patient)
    oracle = PuttingOff({0: PATIENCE_S})
    with pytest.raises(KeyboardInterrupt):
        us.learn(oracle, Script([[sequences(4)]]), retries=patient, progress=watch)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def pressed(interrupts):
    interrupts.press(signal.SIGINT, None)
    return interrupts


def test_ctrl_c_between_the_last_look_for_it_and_the_wait():
    interrupts = Interrupts()
    with pytest.raises(KeyboardInterrupt), interrupts.held(), pressed(interrupts).released():
        raise AssertionError("it waits")
    with pytest.raises(KeyboardInterrupt), interrupts.held():
        pass
    again = Interrupts()
    with again.held():
        with again.released(), pytest.raises(KeyboardInterrupt):
            again.press(signal.SIGINT, None)
        assert again.number is None
        again.press(signal.SIGINT, None)  # held back as before
        assert again.number == signal.SIGINT
        again.number = None


def test_killed_while_it_waits_nothing_is_in_doubt(ledger):
    script = Script([[sequences(6)], [sequences(3, seed=1)]])
    life = Life(Waiting(), script, ledger=ledger, retries=us.Retries(longest_wait_s=1e5))
    assert life.hear() == "put off"
    time.sleep(0.2)
    life.kill()
    now = account(ledger)
    assert (now.recorded, now.open) == (6, {})
    assert us.learn(first_number, script, ledger=ledger).counts == {"data": 9, "fingerprint": 6}


def test_the_fingerprint_waits_too(workers, ledger):
    script = Script([[sequences(6)], [sequences(3, seed=1)]])
    with pytest.raises(us.BudgetExceeded):
        us.learn(first_number, script, ledger=ledger, budget=6)
    oracle = PuttingOff({0: 0.01, 2: 0.01})
    recovery = us.learn(oracle, script, ledger=ledger, workers=workers, retries=AT_ONCE, batch=2)
    assert recovery.counts == {"data": 9, "fingerprint": 6}
    assert oracle.oracle.queries == 6 + 3


def test_seconds_are_checked_and_cross_process_borders():
    again = pickle.loads(pickle.dumps(us.RetryLater(2.5)))
    assert (type(again), again.seconds) == (us.RetryLater, 2.5)
    assert str(again) == str(us.RetryLater(2.5))
    assert isinstance(again, us.OracleError)
    assert us.RetryLater(np.float64(2)).seconds == 2.0
    bad: Any
    for bad in (-1, np.nan, np.inf):
        with pytest.raises(ValueError, match="finite number, 0 or more"):
            us.RetryLater(bad)
    for bad in ("5", None, True):
        with pytest.raises(TypeError, match="must be a number"):
            us.RetryLater(bad)


class Busy(us.RetryLater):
    """A subclass that leaves out or spoils what it should say."""

    def __init__(self, *seconds: Any) -> None:
        Exception.__init__(self, "busy")
        for number in seconds:
            self.seconds = number


@pytest.mark.parametrize("seconds", [(), ("soon",), (np.nan,), (-1.0,), (None,)])
def test_a_refusal_without_sound_seconds_is_a_failed_try(workers, seconds, ledger):
    script = Script([[sequences(4)], [sequences(2, seed=1)]])

    def busy(X):
        if len(X) == 2:
            raise Busy(*seconds)
        return first_number(X)

    counted = Counted(busy)
    with pytest.raises(us.OracleError, match=r"in 3 tries \(.*seconds must be"):
        us.learn(counted, script, ledger=ledger, workers=workers, retries=AT_ONCE)
    assert counted.queries == 4 + 3 * 2
    now = account(ledger)
    assert (now.recorded, now.failed, now.open) == (4, 6, {})


def test_seconds_of_any_kind_of_number(clock):
    for seconds in (Fraction(1, 2), np.float32(0.5), 1):
        turns = iter([Busy(seconds), None])

        def oracle(X, turns=turns):
            if error := next(turns):
                raise error
            return first_number(X)

        assert us.learn(oracle, Script([[sequences(4)]])).counts == {"data": 4}
    assert clock.slept == [0.5, 0.5, 1.0]
    with pytest.raises(ValueError, match="finite number"):
        us.RetryLater(10**400)


# -- answered in part


def flawed(flaws, value=np.nan):
    """Answer as `first_number`, but sequences in ``flaws`` so many times with ``value``."""
    left = dict(flaws)

    def oracle(X):
        y = first_number(X)
        for row, number in enumerate(y):
            if left.get(number, 0) > 0:
                left[number] -= 1
                y[row] = value
        return y

    return Counted(oracle)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("times", [1, 2])
def test_only_what_is_missing_is_asked_again(times, workers, value, ledger):
    script = Script([[sequences(10)], [sequences(4, seed=1)]])
    X, other = (first_number(asked[0].X) for asked in script.rounds)
    # one in the midst, two that touch, the first and the last, a whole round
    bad = [*X[[2, 4, 5]], X[0], X[9], *other]
    oracle = flawed(dict.fromkeys(bad, times), value)
    settings: dict[str, Any] = {"ledger": ledger, "workers": workers, "retries": AT_ONCE}
    recovery = us.learn(oracle, script, batch=5, **settings)
    assert oracle.queries == 14 + 9 * times == recovery.queries
    assert recovery.counts == {"data": 14, "failed": 9 * times}
    for asked, answers in zip(script.rounds, answers_of(recovery), strict=True):
        assert np.array_equal(answers[0], first_number(asked[0].X))
    # and they are there for the next run
    counted = Counted(first_number)
    us.learn(counted, script, **settings)
    assert counted.queries == 8


def test_what_stays_missing_ends_the_run_and_the_rest_is_kept(workers, ledger):
    script = Script([[sequences(4)], [sequences(9, seed=1)]])
    X = first_number(script.rounds[1][0].X)
    oracle = flawed({X[4]: 99})
    settings: dict[str, Any] = {"ledger": ledger, "batch": 3, "retries": AT_ONCE}
    with pytest.raises(us.OracleError) as caught:
        us.learn(oracle, script, workers=workers, **settings)
    for words in ("“part 1”", "nan", "sequence 4", "in 3 tries", "must be finite"):
        assert words in str(caught.value)
    assert "Earlier" not in str(caught.value)
    assert "in the ledger: run the same again" in str(caught.value)
    now = account(ledger)
    assert (now.failed, now.open) == (3, {})
    assert now.recorded + 3 == now.paid == oracle.queries
    assert now.recorded >= 4 + 5
    counted = Counted(first_number)
    recovery = us.learn(counted, script, **settings)
    assert counted.queries == 13 - now.recorded + 8
    assert np.array_equal(answers_of(recovery)[1][0], X)


def test_the_last_try_keeps_what_it_brings(ledger):
    script = Script([[sequences(6)]])
    X = first_number(script.rounds[0][0].X)
    with pytest.raises(us.OracleError, match=r"sequence 2\) in 1 try:"):
        us.learn(flawed({X[2]: 1}), script, ledger=ledger, retries=1)
    now = account(ledger)
    assert (now.recorded, now.failed) == (5, 1)


def test_a_budget_that_ends_amid_the_missing_ones_is_exact(workers, tmp_path):
    for budget in range(6, 16):
        script, ledger = Script([[sequences(8)]]), tmp_path / str(budget)
        X = first_number(script.rounds[0][0].X)
        oracle = flawed(dict.fromkeys(X[[1, 3, 4, 6]], 2))
        settings: dict[str, Any] = {"ledger": ledger, "workers": workers, "retries": AT_ONCE}
        with pytest.raises(us.BudgetExceeded) as end:
            us.learn(oracle, script, batch=8, budget=budget, **settings)
        now = account(ledger)
        assert oracle.queries == end.value.spent == now.paid == budget
        assert end.value.needed == 8 - now.recorded + now.first
        assert np.array_equal(answers_of(us.learn(first_number, script, **settings))[0][0], X)


def test_a_fingerprint_answered_in_part(ledger):
    script = Script([[sequences(8)], [sequences(3, seed=1)]])
    with pytest.raises(us.BudgetExceeded):
        us.learn(first_number, script, ledger=ledger, budget=8, batch=3)
    X = first_number(script.rounds[0][0].X)
    oracle = flawed({X[0]: 1, X[4]: 1, X[7]: 2})
    recovery = us.learn(oracle, script, ledger=ledger, batch=8, retries=AT_ONCE)
    assert recovery.counts == {"data": 11, "failed": 4, "fingerprint": 8}
    assert oracle.queries == 8 + 4 + 3


@pytest.mark.parametrize("moment", range(4, 11))
def test_killed_between_the_parts(moment, ledger):
    """The rows that came are recorded with the first try, and asked for no more."""
    script = Script([[sequences(6)]])
    X = first_number(script.rounds[0][0].X)
    life = Life(Flawed(X[2]), script, last=moment, ledger=ledger, retries=AT_ONCE)
    assert life.result() is None
    now = account(ledger)
    assert now.recorded == (0 if moment < 6 else 5)
    assert sum(now.open.values()) <= 6 if moment < 6 else 1
    counted = Counted(first_number)
    recovery = us.learn(counted, script, ledger=ledger)
    assert counted.queries == 6 - now.recorded + now.first
    assert np.array_equal(answers_of(recovery)[0][0], X)
    assert recovery.counts["data"] == 6


class Flawed:
    """In a child process: one sequence is always NaN."""

    def __init__(self, number):
        self.number = number

    def __call__(self, X):
        y = first_number(X)
        return np.where(y == self.number, np.nan, y)


# -- how patient


@pytest.mark.parametrize(("tries", "retries"), [(1, 1), (2, np.int64(2)), (5, us.Retries(5))])
def test_retries_are_tries(tries, retries, clock):
    calls = []

    def down(X):
        calls.append(len(X))
        raise ConnectionError("down")

    with pytest.raises(us.OracleError, match=f"in {tries} tr"):
        us.learn(down, Script([[sequences(4)]]), retries=retries)
    assert calls == [4] * tries


def test_pauses_double_up_to_the_longest_wait(clock):
    def down(X):
        raise ConnectionError

    with pytest.raises(us.OracleError):
        us.learn(down, Script([[sequences(4)]]), retries=us.Retries(6, 1.0, 5.0))
    assert clock.slept == pytest.approx([1.0, 2.0, 4.0, 5.0, 5.0])
    assert us.Retries(10**9).pause(10**9) == 600.0


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "3", None])
def test_bad_tries_are_value_errors(bad, ledger):
    with pytest.raises(ValueError, match="retries counts all tries and must be a whole number"):
        us.learn(first_number, Script([[sequences(4)]]), retries=bad, ledger=ledger)
    assert not (ledger).exists()


@pytest.mark.parametrize("name", ["pause_s", "longest_wait_s"])
def test_bad_seconds_are_refused(name):
    bad: Any
    for bad in (-1.0, np.nan, np.inf, 1e7):
        with pytest.raises(ValueError, match=f"{name} must be"):
            us.Retries(**{name: bad})
    for bad in ("1", None, True):
        with pytest.raises(TypeError, match=f"{name} must be a number"):
            us.Retries(**{name: bad})


def test_a_number_that_is_masked_is_missing(workers, ledger):
    """What lies under a mask is no answer."""
    script, asked = Script([[sequences(6)]]), []

    def oracle(X):
        asked.append(len(X))
        y = np.ma.MaskedArray(first_number(X))
        if len(X) == 6:
            y[2] = np.ma.masked
        return y

    settings: dict[str, Any] = {"workers": workers, "retries": AT_ONCE}
    recovery = us.learn(oracle, script, ledger=ledger, **settings)
    assert asked == [6, 1]
    assert recovery.counts == {"data": 6, "failed": 1}
    assert np.array_equal(answers_of(recovery)[0][0], first_number(script.rounds[0][0].X))
    whole = np.ma.MaskedArray(np.arange(6), mask=np.arange(6) == 2)
    assert checked(whole, SPAN, "scalar").missing == ((2, 3),)


# -- the table by itself

SPAN = Span(0, 10, 16, sequences(20))
ROWS = np.arange(6.0)[:, None]


def reply(*missing):
    keep = np.ones(6, dtype=bool)
    keep[list(missing)] = False
    y = np.where(keep[:, None], ROWS, np.nan)
    return checked(y, SPAN, "scalar")


@pytest.mark.parametrize(
    ("result", "failed", "outcome"),
    [
        (reply(), 0, CallOutcome.ANSWERED),
        (reply(), 2, CallOutcome.ANSWERED),
        (reply(1, 2, 5), 1, CallOutcome.PARTLY),
        (reply(1, 2, 5), 2, CallOutcome.LOST),
        (reply(*range(6)), 0, CallOutcome.FAILED),
        (reply(*range(6)), 2, CallOutcome.LOST),
        (ConnectionError(), 1, CallOutcome.FAILED),
        (ConnectionError(), 2, CallOutcome.LOST),
        (MemoryError(), 0, CallOutcome.LOST),
        (us.OracleError("no"), 0, CallOutcome.LOST),
        (us.DimensionRefused("no"), 0, CallOutcome.LOST),
        (us.RetryLater(5), 2, CallOutcome.PUT_OFF),
        (us.RetryLater(601), 0, CallOutcome.OVERDUE),
        (KeyboardInterrupt(), 0, CallOutcome.INTERRUPTED),
        (GeneratorExit(), 2, CallOutcome.INTERRUPTED),
    ],
)
def test_every_result_has_its_outcome(result, failed, outcome):
    landing = end_of(PlannedCall(SPAN, failed), result, us.Retries(), 0.0)
    assert landing.outcome is outcome
    assert bool(landing.again) is landing.outcome.again
    kept = sum(len(rows) for _, rows in landing.rows_kept())
    again = sum(len(call.span) for call in landing.again)
    if landing.outcome.again:
        assert kept + again == 6
    if isinstance(result, OracleReply):
        places = [start + k for start, rows in landing.rows_kept() for k in range(len(rows))]
        values = [float(y) for _, rows in landing.rows_kept() for y in rows[:, 0]]
        assert [place - 10.0 for place in places] == values


def test_the_missing_stretches_are_calls_of_their_own():
    landing = end_of(PlannedCall(SPAN), reply(0, 2, 3), us.Retries(), 0.0)
    assert [(call.span.start, call.span.stop, call.failed) for call in landing.again] == [
        (10, 11, 1),
        (12, 14, 1),
    ]
    assert landing.pause_s == 0.1


def test_every_outcome_has_its_consequence():
    drawn = (calls.__doc__ or "").split("\n\n")
    for outcome in CallOutcome:
        assert any(outcome.name in part for part in drawn)


def test_sequences_too_long_for_short_floats_are_told_so():
    rng = np.random.default_rng(0)
    heads = us.MultiHead(rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3)))

    def overflowing(X):
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        return np.where(longest > 300, np.nan, heads(X))

    learner = us.learners.MultiHeadLearner(3, 4)
    with pytest.raises(us.OracleError, match=r"overflow in float16: it ends at 65,504\."):
        us.learn(overflowing, learner, retries=us.Retries(1))
