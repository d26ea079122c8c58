"""Killed at any moment, by any signal, a run loses no answer and pays for none twice.

What flies is in doubt after SIGKILL, and recorded after SIGTERM and SIGHUP.

One learner per kind of answer is attacked; in `make evidence` one case of every learner of
`tests.laws`. The target is in a process that is not killed and counts what it is asked.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import Ghosts, Life, Remote, Served, same_bits
from tests.laws import CASES, KINDS, cases

LEARNERS = list({type(case.learner(0)): case for case in reversed(CASES)}.values())[::-1]
"""The first case of every learner."""
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "HUP": signal.SIGHUP}
MOST_FINGERPRINT = 32
CALLS = 40
"""About how many calls a run is made of."""


@cache
def oracle_of(name):
    [case] = [case for case in CASES if case.name == name]
    return case.oracle(case.target(0))


@dataclass(frozen=True)
class Registered:
    """The target of a case, which may be sent to another process."""

    name: str

    def __call__(self, X):
        return oracle_of(self.name)(X)


@pytest.mark.few
@pytest.mark.parametrize("name", SIGNALS)
@cases(LEARNERS, few=KINDS)
def test_killed_at_any_moment_nothing_is_lost_or_paid_twice(case, name, tmp_path, trials, evidence):
    learner, kills = case.learner(0), trials(1, 17)
    rng = np.random.default_rng(len(case.name) + len(name))
    queries = us.learn(oracle_of(case.name), learner).queries
    settings = {"batch": max(2, queries // CALLS), "workers": 1 + len(case.name) % 2}
    most = settings["batch"] * settings["workers"]
    with Served(Registered(case.name), pause_s=0.002) as served:
        begun = time.monotonic()
        whole = Life(Remote(served.address, "whole"), learner, **settings, ledger=tmp_path / "0")
        expected, _ = whole.result()
        length = time.monotonic() - begun
        once, done = served.asked()["whole"], 0
        while done < kills:
            ghosts = Ghosts(tmp_path / f"from {done}", most, MOST_FINGERPRINT, once)
            left, first = min(kills - done, 4), done
            for _ in range(left):
                life = Life(
                    Remote(served.address, str(done)), learner, **settings, ledger=ghosts.ledger
                )
                # uniform over twice the mean: together these moments lie all over the run
                time.sleep(rng.uniform(0, 2 * length / (left + 1)))
                life.kill(SIGNALS[name])
                asked = served.asked().get(str(done), Counter())
                ghosts.died(asked)
                if asked and name != "KILL":  # what flew is recorded
                    assert not ghosts.before.open
                done += 1
            last = f"after {first}"
            life = Life(Remote(served.address, last), learner, **settings, ledger=ghosts.ledger)
            recovery, _ = life.result()
            ghosts.finished(served.asked()[last], recovery)
            assert same_bits(recovery, expected)
    evidence(
        f"killed with SIG{name} and resumed, {type(learner).__name__}",
        kills=kills,
        recorded_answers_asked_again=0,
        same_bits_as_uninterrupted="always",
    )
