"""Laws that every oracle keeps, whatever is behind it; all counts are the other side's own."""

import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.oracles.other_side import DIM, OtherSide, V, W
from tests.oracles.places import PLACES, skip_without

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

X = np.random.default_rng(0).standard_normal((23, 5, DIM))
TRUTH = us.SingleHead(W, V[0])


@pytest.fixture(scope="module", params=PLACES, ids=lambda place: place.name)
def started(request, tmp_path_factory):
    """A place, and what of it is made once."""
    place = request.param
    skip_without(place)
    if place.parts is None:
        yield place, None
    else:
        with place.parts(tmp_path_factory) as parts:
            yield place, parts


@pytest.fixture
def place(started):
    return started[0]


@pytest.fixture
def asking(started, tmp_path):
    """``asking(kind)``: an oracle of the place, and its other side."""
    place, parts = started

    def make(kind="number"):
        if kind not in place.kinds:
            pytest.skip(f"{place.name} is no oracle of {kind}")
        return place.open(tmp_path, kind, parts)

    return make


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Pauses between tries take no time here."""
    monkeypatch.setattr(us.Retries, "pause", lambda self, failed: 0.0)


def answers_of(place, X=X):
    """What a place must answer, and how closely."""
    y = TRUTH(X)
    return (y, 1e-12) if place.exact else ((y > 0).astype(float), 0.0)


def one_each(answers, count):
    """Take (B, 1), which servers make of (B,), for (B,), as the runner does."""
    y = np.asarray(answers)
    assert y.shape in ((count,), (count, 1))
    assert y.dtype.kind in "fiub"
    return y.reshape(count)


def close_to(answers, expected):
    y, off = expected
    return np.allclose(one_each(answers, len(y)), y, rtol=0, atol=off)


DEFENCES = {
    "rounded": lambda oracle: us.oracles.rounded(oracle, 2),
    "noisy": lambda oracle: us.oracles.noisy(oracle, 0.1, seed=3),
    "clipped": lambda oracle: us.oracles.clipped(oracle, -0.5, 0.25),
    "norm_capped": lambda oracle: us.oracles.norm_capped(oracle, 3.0),
    "labels": us.oracles.labels,
    "within": lambda oracle: us.oracles.within(oracle, 0.1),
}


def defended(name, y):
    """Say what a defence makes of answers, and how closely that is known."""
    if name == "rounded":
        return np.round(y, 2), 1e-12
    if name == "clipped":
        return np.clip(y, -0.5, 0.25), 1e-12
    if name == "labels":
        return y > 0, 0.0
    return y, {None: 0.0, "noisy": 0.6, "norm_capped": 1e-12, "within": 0.1 + 1e-12}[name]


# -- an oracle asked by hand


def test_answers_do_not_depend_on_batch_or_order(place, asking):
    y, off = answers_of(place)
    order = np.random.default_rng(1).permutation(len(X))
    with asking() as asked:
        assert close_to(asked.oracle(X), (y, off))
        assert close_to(asked.oracle(X[order]), (y[order], off))
        for size in (1, 7):
            parts = [asked.oracle(X[k : k + size]) for k in range(0, len(X), size)]
            assert close_to(np.concatenate(parts), (y, off))
        assert asked.other.queries == 4 * len(X)
        assert asked.other.tokens == 4 * X[..., 0].size


def test_answers_do_not_depend_on_how_numbers_are_stored(place, asking):
    """Any type that holds the numbers, in any order of bytes; the question stays as it was."""
    whole = np.round(4 * X[:9])
    read_only = whole.copy()
    read_only.flags.writeable = False
    stored: list[Any] = [
        whole.astype(np.float32),
        whole.astype(np.int64),
        whole.astype(">f8"),
        np.asfortranarray(whole),
        whole[::-1].copy()[::-1],
        np.repeat(whole, 2, axis=2)[..., ::2],
        read_only,
    ]
    with asking() as asked:
        for form in stored:
            before = form.copy()
            assert close_to(asked.oracle(form), answers_of(place, whole))
            assert np.array_equal(form, before)


@pytest.mark.parametrize("kind", [bool, np.int8, np.float16, np.float32, list])
@pytest.mark.parametrize("name", [None, *DEFENCES])
def test_answers_of_any_type_of_real_numbers_serve(kind, name):
    """On the other side's part: with every defence, and with none."""
    signs = np.sign(TRUTH(X)) > 0

    def oracle(X):
        return signs.tolist() if kind is list else signs.astype(kind)

    answers = np.asarray(DEFENCES.get(name, lambda oracle: oracle)(oracle)(X / 9))
    assert answers.shape == (len(X),)
    assert answers.dtype.kind in "fiub"
    assert np.allclose(answers, defended(name, signs * 1.0)[0], atol=0.6)


def test_threads_get_their_own_answers(place, asking):
    with asking() as asked, ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(asked.oracle, [X[k : k + 1] for k in range(len(X))]))
    assert close_to(np.concatenate(parts), answers_of(place))


def test_a_copy_asks_the_same(place, asking):
    if not place.pickles:
        pytest.skip(f"{place.name} cannot be copied to another process")
    with asking() as asked:
        copy = pickle.loads(pickle.dumps(asked.oracle))
        assert close_to(copy(X), answers_of(place))


# -- asked by the runner


@pytest.mark.few
@pytest.mark.parametrize(("batch", "workers"), [(None, 1), (7, 3)])
def test_the_model_is_recovered_and_the_other_side_counts_the_same(place, asking, batch, workers):
    with asking() as asked:
        recovery = us.learn(asked.oracle, place.learner(), batch=batch, workers=workers)
        assert recovery.evidence.passed
        assert place.recovered(recovery.model, TRUTH)
        assert asked.other.queries == recovery.queries


def test_another_dimension_is_refused(place, asking):
    with asking() as asked:
        if place.knows_dim:
            assert asked.oracle.dim == DIM
            with pytest.raises(us.DimensionRefused, match=f"dim={DIM}"):
                us.learn(asked.oracle, us.learners.ExactHead(DIM + 1))
            assert not asked.other.queries
        else:
            assert not hasattr(asked.oracle, "dim")
            with pytest.raises(us.OracleError):
                us.learn(asked.oracle, us.learners.ExactHead(DIM + 1), retries=1, batch=4)
            # and a short token, which shows that it is for the dimension
            assert asked.other.queries <= 4 + 1


@pytest.mark.parametrize("kind", ["vectors", "too many"])
def test_a_wrong_shape_ends_the_run_at_the_first_call(place, asking, kind):
    with asking(kind) as asked:
        with pytest.raises(us.OracleError, match="shape"):
            us.learn(asked.oracle, place.learner(), batch=3)
        assert asked.other.calls == 1


def test_numbers_of_a_vector_come_one_by_one(place, asking):
    with asking("vectors") as asked:
        assert np.asarray(asked.oracle(X)).shape == (len(X), len(V))
        for k in (0, -1):
            one = us.oracles.coordinate(asked.oracle, k)
            recovery = us.learn(one, place.learner())
            assert us.equivalent(recovery.model, us.SingleHead(W, V[k]))


@pytest.mark.few
@pytest.mark.parametrize(("kind", "workers"), [("number", 3), ("failing", 1), ("failing", 3)])
def test_the_budget_is_never_passed_at_the_other_side(place, asking, kind, workers, tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    with asking(kind) as asked:

        def agree(paid):
            arrived = asked.other.queries
            assert arrived <= paid if place.cuts and kind == "failing" else arrived == paid
            return paid

        for budget in (0, 1, 19):
            with pytest.raises(us.BudgetExceeded) as stopped:
                us.learn(
                    asked.oracle, place.learner(), budget, ledger,
                    batch=place.batch, workers=workers, retries=9,
                )  # fmt: skip
            assert agree(stopped.value.spent) <= budget
        recovery = us.learn(asked.oracle, place.learner(), None, ledger, retries=9)
        assert place.recovered(recovery.model, TRUTH)
        agree(recovery.queries)


@pytest.mark.usefixtures("signals")
def test_an_interrupted_run_goes_on_and_nothing_recorded_is_asked_again(place, asking, tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    with asking() as asked:
        whole = us.learn(asked.oracle, place.learner()).queries
        before = asked.other.queries
        for after in (3, 5):
            reports: list[object] = []

            def stop(report, reports=reports, after=after):
                reports.append(report)
                if len(reports) == after:
                    signal.raise_signal(signal.SIGINT)

            with pytest.raises(KeyboardInterrupt):
                us.learn(
                    asked.oracle, place.learner(), ledger=ledger,
                    batch=place.batch, workers=2, progress=stop,
                )  # fmt: skip
        recovery = us.learn(asked.oracle, place.learner(), ledger=ledger)
        assert place.recovered(recovery.model, TRUTH)
        assert asked.other.queries - before == recovery.queries <= whole + 2 * 32


# -- defences compose with every oracle


def test_every_defence_is_tested_here():
    places = {"from_onnx", "from_torch", "from_url", "HttpLimits", "on_dask", "coordinate"}
    # test_probabilities.py, test_ids.py, and a real server alone: test_grpc.py
    elsewhere = {"log_ratios", "one_against", "from_grpc", "from_ids"}
    assert set(us.oracles.__all__) - places - elsewhere == {*DEFENCES}
    names = {place.name.partition(",")[0] for place in PLACES}
    assert names - {"a function"} == {*us.oracles.__all__} - {"HttpLimits"} - elsewhere


@pytest.mark.few
@pytest.mark.parametrize("name", DEFENCES)
def test_defences_compose(place, asking, name):
    allowed = X / np.maximum(1, np.linalg.norm(X, axis=-1, keepdims=True) / 3)
    expected = defended(name, answers_of(place, allowed)[0])
    with asking() as asked:
        oracle = DEFENCES[name](asked.oracle)
        answers = oracle(allowed)
        assert close_to(answers, expected)
        assert asked.other.queries == len(X)
        if name == "within":
            signs = [np.sign(one_each(y, len(X)) - expected[0]) for y in (answers, oracle(allowed))]
            assert np.array_equal(*signs)
        if name == "noisy":
            assert not np.any(oracle(allowed) == answers)
        if name == "norm_capped":
            with pytest.raises(us.OracleError, match="up to norm 3"):
                oracle(4 * X)
            assert asked.other.queries == len(X)
        assert getattr(oracle, "dim", None) == getattr(asked.oracle, "dim", None)
        if place.pickles:
            assert close_to(pickle.loads(pickle.dumps(oracle))(allowed), expected)


@pytest.mark.few
@pytest.mark.parametrize("name", DEFENCES)
def test_defences_of_vectors_compose(place, asking, name):
    """A defence inside or outside of `coordinate`: the same number."""
    if name == "norm_capped":
        pytest.skip("it changes no answer")
    with asking("vectors") as asked:
        inside = us.oracles.coordinate(DEFENCES[name](asked.oracle), 1)
        outside = DEFENCES[name](us.oracles.coordinate(asked.oracle, 1))
        y = OtherSide(asked.other.folder, "vectors").answers(X, W, V, np)[:, 1]
        expected = defended(name, y)
        for oracle in (inside, outside):
            assert close_to(oracle(X), expected)
