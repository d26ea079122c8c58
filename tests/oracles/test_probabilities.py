"""Heads before a classifier: its probabilities as log-ratios, its classes as labels."""

import json

import numpy as np
import pytest

import unsoftmax as us

ROW = np.ones((1, 1, 2))


class Classifier:
    """A head of k logits in one arithmetic, before a softmax, or before a sigmoid for k = 1."""

    def __init__(self, seed, dim, k, kind, biased=True):
        rng = np.random.default_rng([seed, dim, k])
        self.W = (rng.standard_normal((dim, dim)) / np.sqrt(dim)).astype(kind)
        self.V = (rng.standard_normal((k, dim)) / np.sqrt(dim)).astype(kind)
        self.b = (biased * rng.standard_normal(k) * 10.0 ** rng.uniform(-3, 0)).astype(kind)

    def logits(self, X):
        X = np.asarray(X, dtype=self.W.dtype)
        scores = np.einsum("bid,de,be->bi", X, self.W, X[:, -1])
        return np.einsum("bi,bid,kd->bk", softmax(scores), X, self.V) + self.b

    def __call__(self, X):
        z = self.logits(X)
        with np.errstate(over="ignore"):
            return softmax(z) if z.shape[1] > 1 else 1 / (1 + np.exp(-z[:, 0]))

    def classes(self, X):
        return self.logits(X).argmax(axis=1)

    def value(self, j):
        """Return v and c of number j of the log-ratios, in float64."""
        V, b = self.V.astype(float), self.b.astype(float)
        return (V[0], b[0]) if len(V) == 1 else (V[j] - V[-1], b[j] - b[-1])


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def missed(model, certificate, target, j):
    """Return how often the error of W, v and c is their bound, the largest of the three."""
    v, c = target.value(j)
    off = {"W": np.linalg.norm(model.W[0] - target.W), "v": np.linalg.norm(model.v[0] - v)}
    off["c"] = abs(model.c - c)
    return max(error / certificate.errors[name] for name, error in off.items())


def learner(target):
    k, dim = target.V.shape
    radius = 20.0 if k > 1 else 3.0 / float(np.linalg.norm(target.V))
    return us.learners.MultiHeadLearner(dim, 2, biases=True, radius=radius)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 3])
def test_a_head_is_recovered_through_its_softmax_and_its_sigmoid(kind, k, trials, evidence):
    """All of it, within its bounds: a bias of 1e-3 too, beside logarithms of 1."""
    right, worst, count = 0, 0.0, trials(2, 500)
    accurate = {np.float64: 1e-10, np.float32: 1e-5 if k > 1 else 1e-2}[kind]
    for seed in range(count):
        target = Classifier(seed, 2 + seed % 7, k, kind)
        oracle = us.oracles.log_ratios(target)
        for j in range(max(1, k - 1)):
            one = us.oracles.coordinate(oracle, j) if k > 1 else oracle
            try:
                found = us.learn(one, learner(target))
            except us.UnsoftmaxError:
                break
            over = missed(found.model, found.certificate, target, j)
            assert over <= 1, (seed, j, over)
            worst = max(worst, over)
            off = np.linalg.norm(found.model.W[0] - target.W) / np.linalg.norm(target.W)
            if off > accurate:
                break
        else:
            right += 1
    assert right >= 0.98 * count
    name = f"a head through its {'softmax of 3' if k > 1 else 'sigmoid'}, {kind.__name__}"
    evidence(name, targets=count, recovered=right, error_over_bound=float(worst))


def test_audit_names_a_classifier_and_nothing_else_does(trials, evidence):
    """Heads whose answers lie between 0 and 1, cut off or not, are no probabilities."""
    wrong, count = 0, trials(1, 60)
    for seed in range(count):
        one = Classifier(seed, 4, 1, np.float64)
        three = Classifier(seed, 4, 3, np.float32)

        def cut_off(X, one=one):
            return np.clip(one.logits(X)[:, 0] + 0.5, 0.0, 1.0)

        seen = {
            "softmax": us.audit(three, 4, seed=seed).target_class,
            "sigmoid": us.audit(one, 4, seed=seed).target_class,
            "classes": us.audit(three.classes, 4, seed=seed).target_class,
            "logits": us.audit(one.logits, 4, seed=seed).target_class,
            "cut off": us.audit(cut_off, 4, seed=seed).target_class,
        }
        right = {"softmax": "probabilities", "sigmoid": "probabilities", "classes": "classes"}
        wrong += any(seen[name] != said for name, said in right.items())
        wrong += seen["logits"] != "single head"
        wrong += seen["cut off"] in ("probabilities", "classes")
    assert not wrong
    evidence("audit of classifiers and of heads", targets=5 * count, misnamed=wrong)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_audit_recovers_a_head_through_its_sigmoid(kind, trials, evidence):
    """The radius within which it does not saturate is found; errors are within their bounds."""
    queries: list[int] = []
    worst, count = 0.0, trials(3, 56)
    for seed in range(count):
        target = Classifier(seed, 2 + seed % 7, 1, kind)
        found = us.audit(us.oracles.log_ratios(target), 2 + seed % 7, recover=True, seed=seed)
        if found.recovery is None:
            assert "too coarse to exclude anything else: W is known to" in found.reasons[0], seed
            continue
        assert found.target_class == "single head", (seed, found.reasons)
        over = missed(found.recovery.model, found.recovery.certificate, target, 0)
        assert over <= 1, (seed, over)
        worst = max(worst, over)
        queries.append(found.queries)
    assert len(queries) >= 0.98 * count
    told = f"audit --recover, a head through its sigmoid, {kind.__name__}"
    median, refused = int(np.median(queries)), count - len(queries)
    evidence(told, refused, targets=count, error_over_bound=worst, median_queries=median)


def test_no_audit_says_that_nothing_can_be_had():
    three = Classifier(0, 4, 3, np.float64)
    found = us.audit(three.classes, 4, recover=True)
    assert "no learner" in found.recoverable
    assert "nothing" not in json.dumps(found.to_json()).lower()


def test_two_classes_are_labels():
    """A head before an argmax of two: W to the bits asked for."""
    target = Classifier(1, 3, 2, np.float64, biased=False)
    [label] = us.oracles.one_against(target.classes, 2)
    found = us.learn(label, us.learners.LabelHead(3, bits=30))
    assert np.linalg.norm(found.model.W - target.W) <= found.certificate.W_error < 1e-5


def test_three_classes_are_labels_where_two_are_largest():
    """On a plane of tokens where z_2 is the mean of z_0 and z_1, it is never the largest."""
    target = Classifier(1, 4, 3, np.float64, biased=False)
    beyond = target.V[2] - (target.V[0] + target.V[1]) / 2
    plane = np.linalg.svd(beyond[None])[2][1:]  # (3, 4), orthogonal to it
    against = us.oracles.one_against(target.classes, 3)
    assert len(against) == 2
    learner = us.learners.LabelHead(3, bits=30)
    found = us.learn(lambda Z: against[0](Z @ plane), learner)
    W = plane @ target.W @ plane.T
    assert np.linalg.norm(found.model.W - W) <= found.certificate.W_error < 1e-5
    calls = []

    def counted(X):
        calls.append(len(X))
        return against[0](X)

    with pytest.raises(us.OracleError, match="class 2: it hides whether class 1 or class 0"):
        us.learn(counted, us.learners.LabelHead(4, bits=30))
    assert sum(calls) < 500


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([[0.5, 0.75]], "their sum is off 1 by 0.25"),
        ([[-0.5, 1.5]], "no probabilities: they must be numbers from 0 to 1"),
        ([["a", "b"]], "no probabilities"),
        ([[1.0, 0.0]], "tokens of norm 1.414 are too long"),
        ([1.0], "tokens of norm 1.414 are too long"),
        ([0.001], "tokens of norm 1.414 are too long"),
        (np.array([[0.25, 0.75]], dtype=np.float16), "replica that answers in float32"),
    ],
)
def test_what_is_no_probability_is_refused(answer, said):
    with pytest.raises(us.OracleError, match=said):
        us.oracles.log_ratios(lambda X: answer)(ROW)


@pytest.mark.parametrize("decimals", [2, 3, 4, 5])
def test_rounded_probabilities_are_refused(decimals):
    target = Classifier(0, 3, 3, np.float64)
    X = np.random.default_rng(0).standard_normal((20, 2, 3))
    with pytest.raises(us.OracleError, match="rounded to decimals"):
        us.oracles.log_ratios(us.oracles.rounded(target, decimals))(X)
    single = us.oracles.log_ratios(lambda X: np.round(target(X), decimals).astype(np.float32))
    with pytest.raises(us.OracleError, match=r"rounded to decimals|significant bits"):
        single(X)


def test_what_is_missing_stays_missing_and_batches_do_not_matter():
    target = Classifier(0, 3, 3, np.float32)
    X = np.random.default_rng(0).standard_normal((20, 2, 3))
    whole = us.oracles.log_ratios(lambda X: target(X).tolist())(X)
    alone = us.oracles.log_ratios(target)
    assert np.array_equal(whole, np.concatenate([alone(x[None]) for x in X]))
    lost = us.oracles.log_ratios(lambda X: np.ma.MaskedArray(target(X), mask=X[:, 0, :] > 0))(X)
    gone = (X[:, 0] > 0).any(axis=1)
    assert np.isnan(lost[gone]).all()
    assert np.array_equal(lost[~gone], whole[~gone])
    labels = us.oracles.one_against(lambda X: np.ma.MaskedArray([0, 1], [True, False]), 2)[0]
    assert np.isnan(labels(X[:2])[0])


@pytest.mark.parametrize(("k", "error"), [(1, ValueError), (2.5, TypeError), (True, TypeError)])
def test_classes_are_two_or_more(k, error):
    with pytest.raises(error, match="k must be"):
        us.oracles.one_against(lambda X: X, k)


@pytest.mark.parametrize("answer", [[3], [0.5], [[0]], [-1], ["a"]])
def test_what_is_no_class_is_refused(answer):
    with pytest.raises(us.OracleError, match="no classes"):
        us.oracles.one_against(lambda X: answer, 3)[0](ROW)
