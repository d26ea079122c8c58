"""Kill -9: what was recorded is never asked again, and the result is the uninterrupted one."""

import time
from collections import Counter

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.lives import Ghosts, Life, Remote, Served, account, one_by_one, same_bits
from tests.campaign.script import head
from tests.vector_learners import LinearMap, LinearModel

FINGERPRINT = 8


def linear(dim: int, width: int) -> LinearModel:
    rng = np.random.default_rng([dim, width])
    return LinearModel(c=rng.standard_normal(width), M=rng.standard_normal((width, dim)))


NUMBERS_AND_VECTORS = pytest.mark.parametrize(
    ("target", "learner"),
    [(head(2), us.learners.ExactHead(2)), (linear(2, 3), LinearMap(2))],
    ids=["numbers", "vectors"],
)


@pytest.mark.few
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("target", "learner"),
    [(head(6), us.learners.ExactHead(6)), (linear(40, 4), LinearMap(40))],
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
            ghosts = Ghosts(ledger, workers * 2, FINGERPRINT, once)
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


@pytest.mark.few
@NUMBERS_AND_VECTORS
@pytest.mark.parametrize("workers", [1, 3])
def test_killed_at_every_commit_and_every_yield(workers, target, learner, tmp_path, trials):
    """At every fourth one, where tests are few."""
    settings = {"batch": 2, "workers": workers, "holdout": 8}
    with Served(target) as served:
        life = Life(
            Remote(served.address, "whole"), learner, last=-1, **settings, ledger=tmp_path / "whole"
        )
        expected, moments = life.result()
        once = served.asked()["whole"]
        assert moments > 20

        for moment in range(0, moments, trials(4, 1)):
            ledger = tmp_path / f"{moment}.sqlite"
            ghosts = Ghosts(ledger, workers * 2, FINGERPRINT, once)
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
def test_killed_again_and_again_in_the_same_place(target, learner, ledger):
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
