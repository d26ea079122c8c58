"""A resumed run is never answered by another target, and never refuses its own.

One learner per kind of answer is attacked; in `make evidence` every learner of `tests.laws`.
"""

import shutil
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

import unsoftmax as us
from tests.laws import CASES, KINDS, cases, kinds
from tests.truth import Counted

# By how much one parameter changes where 1e-6 of it cannot show in the answers.
COARSE = {
    "LowRankHead, approximate values": 1e-2,
    "ApproximateHead": 1.0,
    "ApproximateHead within a radius": 1e-3,
    "LabelHead": 1e-2,
    "LabelHead in one dimension": 1e-2,
    "LabelHead paper": 10.0,
}
# Labels in one dimension do not tell the length of v.
UNSEEN = {"LabelHead in one dimension": {"v"}, "LabelHead paper": {"v"}}
# W̄ of "LabelHead paper", in `tests.laws`.
PROMISED = 4.0
SHARES = (1.0, 0.25, 0.5, 0.75, 0.95)
SIZES = (1e-12, 1e-6)


def made_of(target, arrays):
    """Return a model of the same class with other arrays."""
    kind = type(target)
    return kind.from_arrays(arrays) if hasattr(kind, "from_arrays") else kind(**arrays)


def changed(case, target, rng):
    """Return another target, or this one with one parameter changed, and what was changed."""
    if rng.random() < 0.2:
        return case.target(int(rng.integers(100, 10**6))), "all"
    arrays = {name: np.array(array) for name, array in target.arrays().items()}
    places = [
        (name, place)
        for name in sorted(arrays.keys() - UNSEEN.get(case.name, set()))
        for place in np.argwhere(arrays[name] != 0).tolist()
    ]
    name, place = places[rng.integers(len(places))]
    sign = rng.choice([-1.0, 1.0])
    arrays[name][tuple(place)] *= 1 + sign * COARSE.get(case.name, 1e-6)
    if case.name.startswith("Label"):
        # f and f/‖v‖ have the same labels, and bounds are for v/‖v‖
        arrays["v"] = arrays["v"] / np.linalg.norm(arrays["v"])
    if case.name == "LabelHead paper":
        # Theorem B.1 requires ‖W‖_F ≤ W̄: of a larger one nothing is promised
        arrays["W"] = np.clip(arrays["W"], -PROMISED, PROMISED)
    return made_of(target, arrays), f"{name}{place}"


def asked(oracle, learner, **settings):
    """Run as far as it comes, to a result or to a refusal."""
    with suppress(us.BudgetExceeded, us.ModelMismatch, us.NotIdentifiable):
        us.learn(oracle, learner, **settings)


def started(case, seed, share, ledger):
    """Write a ledger of a run that came to this share of its end; return what is its target."""
    target = case.target(seed)
    counted = Counted(case.oracle(target))
    asked(counted, case.learner(seed), ledger=ledger)
    if share < 1:
        ledger.unlink()
        budget = int(share * counted.queries)
        asked(case.oracle(target), case.learner(seed), ledger=ledger, budget=budget)
    return target


def resumed(case, seed, target, ledger, **settings):
    """Say how a run ends that goes on with a target."""
    try:
        recovery = us.learn(case.oracle(target), case.learner(seed), ledger=ledger, **settings)
    except us.LedgerMismatch:
        return "mismatch"
    except (us.ModelMismatch, us.NotIdentifiable):
        return "refused"
    return "right" if case.within(recovery, target) else "accepted"


@pytest.mark.few
@kinds
@pytest.mark.parametrize("share", SHARES)
def test_a_changed_target_is_not_accepted(case, share, trials, evidence, tmp_path):
    count = trials(1, 200)
    ends: Counter[str] = Counter()
    for trial in range(count):
        seed = trial // 20
        ledger, copy = tmp_path / f"{seed}", tmp_path / "copy"
        if not ledger.exists():
            target = started(case, seed, share, ledger)
        shutil.copy(ledger, copy)
        other, what = changed(case, target, np.random.default_rng([trial, int(100 * share)]))
        end = resumed(case, seed, other, copy)
        assert end != "accepted", (trial, what)
        ends[end] += 1
        copy.unlink()
    evidence(
        f"changed target, {case.name}, {share:.0%} of its ledger", runs=count, accepted=0, **ends
    )


@pytest.mark.few
@kinds
@pytest.mark.parametrize("share", SHARES)
def test_the_same_target_is_recognised_in_other_batches(case, share, trials, evidence, tmp_path):
    count = trials(1, 60)
    # one question a call, but for the learner that asks 10⁵ labels of one kind
    smallest = 256 if case.name == "LabelHead paper" else 1
    for seed in range(count):
        ledger = tmp_path / f"{seed}"
        target = started(case, seed, share, ledger)
        batch = max(smallest, (1, 3, 64)[seed % 3])
        assert resumed(case, seed, target, ledger, batch=batch) != "mismatch"
    evidence(f"same target, {case.name}, {share:.0%} of its ledger", runs=count, refused=0)


def wavering(oracle, size):
    """Compute more coarsely, and otherwise in other batches."""

    def answer(X):
        y = oracle(X)
        rng = np.random.default_rng([len(X), *np.frombuffer(X[0].tobytes(), dtype=np.uint32)])
        return y * (1 + size * rng.uniform(-1, 1, np.shape(y)))

    return answer


@pytest.mark.few
@cases([case for case in CASES if not case.name.startswith("Label")], few=KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_the_same_target_is_recognised_through_noise(case, size, trials, evidence, tmp_path):
    """Also through arithmetic that is as coarse, and adds up otherwise from batch to batch.

    Labels that waver are wrong labels.
    """
    count = trials(1, 20)
    for seed in range(count):
        oracle = case.oracle(case.target(seed))
        counted = Counted(oracle)
        us.learn(counted, case.learner(seed))
        for number, disturbed in enumerate(
            (us.oracles.noisy(oracle, size, seed=1), wavering(oracle, size))
        ):
            ledger = tmp_path / f"{seed} {number}"
            for share in (0.5, 1.0):
                budget = int(share * counted.queries) + 64
                asked(disturbed, case.learner(seed), ledger=ledger, budget=budget, batch=5)
    claim = f"same target through noise and jitter of {size:.0e}, {case.name}"
    evidence(claim, runs=2 * count, taken_for_another=0)
