"""Kill -9: what was recorded is never asked again, and the result is the uninterrupted one."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import Account, Life, Remote, Served, account, one_by_one
from tests.vector_learners import VectorHead, VectorHeadModel

FINGERPRINT = 8


def head(dim: int, seed: int = 0) -> us.SingleHead:
    rng = np.random.default_rng(seed)
    return us.SingleHead(rng.standard_normal((dim, dim)), rng.standard_normal(dim))


def vector_head(dim: int, width: int) -> VectorHeadModel:
    rng = np.random.default_rng([dim, width])
    W, V = rng.standard_normal((dim, dim)) / dim, rng.standard_normal((width, dim))
    return VectorHeadModel(c=rng.standard_normal(width), W=W, V=V)


NUMBERS_AND_VECTORS = pytest.mark.parametrize(
    ("target", "learner"),
    [(head(2), us.learners.ExactHead(2)), (vector_head(2, 3), VectorHead(2))],
    ids=["numbers", "vectors"],
)


def same_bits(recovery, expected):
    mine, other = recovery.model.arrays(), expected.model.arrays()
    return (
        mine.keys() == other.keys()
        and all(mine[name].tobytes() == other[name].tobytes() for name in mine)
        and recovery.certificate == expected.certificate
        and recovery.evidence == expected.evidence
    )


class Ghosts:
    """Follows one ledger through its lives, and checks each against the oracle's count."""

    def __init__(self, ledger, most_in_flight: int, once: Counter[bytes]) -> None:
        self.ledger = ledger
        self.most_in_flight = most_in_flight
        self.once = once
        """What an uninterrupted run asks."""
        self.before = account(ledger)
        self.lost: dict[int, int] = {}
        """Queries in doubt, by the number of their intent."""
        self.deaths = 0

    def died(self, asked: Counter[bytes]) -> None:
        """Check a life that was killed, given what the oracle was asked in it."""
        now = self._settle(asked)
        assert sum(now.open.values()) <= max(self.most_in_flight, FINGERPRINT)
        self.lost |= now.open
        self.deaths += 1

    def finished(self, asked: Counter[bytes], recovery) -> None:
        """Check the life that was not, and the sums over all of them."""
        now = self._settle(asked)
        assert not now.open
        assert now.recorded == sum(self.once.values())
        lost = sum(self.lost.values())
        assert recovery.counts.get("in doubt", 0) == lost
        assert recovery.queries == now.paid
        notes = [note for note in recovery.notes if "in flight" in note]
        assert [note.split()[0] for note in notes] == ([f"{lost:,}"] if lost else [])

    def _settle(self, asked: Counter[bytes]) -> Account:
        """The oracle was asked what the ledger says, and what is in doubt at most on top."""
        now, count = account(self.ledger), sum(asked.values())
        unknown = sum(n for number, n in now.open.items() if number not in self.before.open)
        settled = (now.recorded - self.before.recorded) + (
            now.fingerprint - self.before.fingerprint
        )
        assert settled <= count <= settled + unknown
        # beyond what one run asks of each probe: the fingerprint, and what was in doubt
        assert sum((asked - self.once).values()) == 0
        self.before = now
        return now


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("target", "learner"),
    [(head(6), us.learners.ExactHead(6)), (vector_head(5, 4), VectorHead(5))],
    ids=["numbers", "vectors"],
)
def test_killed_at_any_moment_nothing_recorded_is_asked_again(
    workers, target, learner, tmp_path, trials, evidence
):
    settings = {"batch": 2, "workers": workers}
    rng = np.random.default_rng(workers)
    kills = trials(6, 25)
    with Served(target, pause_s=0.002) as served:
        life = Life(Remote(served.address, "whole"), learner, **settings, ledger=tmp_path / "whole")
        begun = time.monotonic()
        expected, _ = life.result()
        length = time.monotonic() - begun
        once = served.asked()["whole"]

        done = 0
        for chain in range(kills):
            ledger = tmp_path / f"{chain}.sqlite"
            ghosts = Ghosts(ledger, workers * 2, once)
            left = min(kills - done, 6)
            # uniform over twice the mean: together these moments lie all over the run
            for n in range(left):
                name = f"{chain}-{n}"
                life = Life(Remote(served.address, name), learner, **settings, ledger=ledger)
                time.sleep(rng.uniform(0, 2 * length / (left + 1)))
                life.kill()
                ghosts.died(served.asked().get(name, Counter()))
                done += 1
                if ghosts.before.recorded == sum(once.values()):
                    break  # this one had come to its end: the next gets a new ledger
            name = f"{chain}-last"
            life = Life(Remote(served.address, name), learner, **settings, ledger=ledger)
            recovery, _ = life.result()
            ghosts.finished(served.asked()[name], recovery)
            everything = sum(
                (asked for life, asked in served.asked().items() if life.startswith(f"{chain}-")),
                Counter(),
            )
            repeated = sum((everything - once).values())
            assert repeated <= ghosts.deaths * (workers * 2 + FINGERPRINT) + FINGERPRINT
            assert same_bits(recovery, expected)
            if done == kills:
                break
        assert done == kills
    evidence(
        f"killed with SIGKILL and resumed, {workers} worker{'s' if workers > 1 else ''}"
        + (", vectors" if learner.outputs == "vector" else ""),
        kills=kills,
        recorded_answers_asked_again=0,
        same_bits_as_uninterrupted="always",
    )


@NUMBERS_AND_VECTORS
@pytest.mark.parametrize("workers", [1, 3])
def test_killed_at_every_commit_and_every_yield(workers, target, learner, tmp_path):
    settings = {"batch": 2, "workers": workers, "holdout": 8}
    with Served(target) as served:
        life = Life(
            Remote(served.address, "whole"), learner, last=-1, **settings, ledger=tmp_path / "whole"
        )
        expected, moments = life.result()
        once = served.asked()["whole"]
        assert moments > 20

        for moment in range(moments):
            ledger = tmp_path / f"{moment}.sqlite"
            ghosts = Ghosts(ledger, workers * 2, once)
            dying, living = f"{moment} dies", f"{moment} lives"
            life = Life(
                Remote(served.address, dying), learner, last=moment, **settings, ledger=ledger
            )
            assert life.result() is None
            ghosts.died(served.asked().get(dying, Counter()))
            recovery = us.learn(Remote(served.address, living), learner, **settings, ledger=ledger)
            ghosts.finished(served.asked()[living], recovery)
            assert same_bits(recovery, expected)


@NUMBERS_AND_VECTORS
def test_killed_again_and_again_in_the_same_place(target, learner, tmp_path):
    ledger = tmp_path / "ledger"
    settings = {"batch": 2, "holdout": 8, "ledger": ledger}
    expected = us.learn(lambda X: one_by_one(target, X), learner, batch=2, holdout=8)
    with Served(target) as served:
        lost = []
        for n in range(5):
            life = Life(Remote(served.address, str(n)), learner, last=4, **settings)
            assert life.result() is None
            lost.append(sum(account(ledger).open.values()))
        recovery = us.learn(Remote(served.address, "last"), learner, **settings)
        paid = sum(sum(asked.values()) for asked in served.asked().values())
    assert recovery.counts["in doubt"] == sum(lost) > 0
    assert paid <= recovery.queries <= paid + sum(lost)
    assert same_bits(recovery, expected)
