"""Trained networks: scikit-learn's regressors, recovered from `predict` alone."""

import warnings

import numpy as np
import pytest
from scipy.ndimage import zoom
from sklearn.datasets import load_diabetes, load_digits
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

import unsoftmax as us
from tests.networks import function_error, within
from tests.truth import Counted, relative
from unsoftmax.cli.minilm import minilm_head

NEURONS = 64


def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return scale(X), scale(y)


def which_digit():
    digits = load_digits()
    return digits.data / 16, digits.target.astype(float)


def is_it_a_3():
    digits = load_digits()
    return digits.data / 16, (digits.target == 3).astype(float)


def trained(X, y, solver, seed, *before, neurons=NEURONS):
    """Train a regressor, for a while; pixels that are always 0 keep their first weights."""
    network = MLPRegressor(
        hidden_layer_sizes=(neurons,), solver=solver, max_iter=100, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that training has not converged
        return make_pipeline(*before, network).fit(X, y)


def weights_of(pipeline):
    """Write a regressor as a network, a scaler in front merged into it."""
    *before, network = (step for _, step in pipeline.steps)
    (A, w_o), (b, c) = network.coefs_, network.intercepts_
    for scaler in before:
        A = A / scaler.scale_[:, None]
        b = b - scaler.mean_ @ A
    return us.ReluNetwork(A, w_o[:, 0], b, c[0])


@pytest.mark.few(3)
@pytest.mark.parametrize("solver", ["lbfgs", "adam"])
@pytest.mark.parametrize("data", [diabetes, which_digit, is_it_a_3])
def test_a_trained_regressor_from_its_predictions_alone(data, solver, trials, evidence):
    (X, y), errors, ratios = data(), [], []
    d = X.shape[1]
    for seed in range(trials(1, 10)):
        regressor = trained(X, y, solver, seed)
        true = weights_of(regressor)
        oracle = Counted(lambda X, f=regressor: f.predict(X[:, 0]))
        recovery = us.learn(oracle, us.learners.ReluNetworkLearner(d, seed=seed))
        assert oracle.queries == recovery.queries
        assert recovery.model.A.shape[1] <= NEURONS + 2
        errors.append(function_error(recovery.model, true, d, True))
        assert errors[-1] <= 3e-9, seed
        assert us.equivalent(recovery.model, true, rtol=3e-9), seed
        assert within(recovery, true, d, True)
        ratios.append(oracle.queries / (NEURONS * (d + 2) + 1))
    # at d = 10 the search of the kinks is most of it
    assert np.median(ratios) <= (2.5 if d == 10 else 1.5)
    evidence(
        f"scikit-learn's MLPRegressor, 64 neurons, {data.__name__.replace('_', ' ')}, {solver}",
        networks=len(errors),
        largest_error=max(errors),
        queries_per_parameter=f"{np.median(ratios):.2f} in the median, {max(ratios):.2f} at most",
    )


def test_neurons_that_are_nearly_dead_cost_no_second_search(trials):
    """Weight decay leaves some that bend lines by less than a search tells from noise."""
    neurons, (X, y) = 128, which_digit()
    regressor = trained(X, y, "adam", 0, neurons=neurons)
    true = weights_of(regressor)
    sizes = np.linalg.norm(true.A, axis=0) * np.abs(true.w_o)
    assert 2 <= np.sum(sizes < 1e-7 * np.median(sizes)) <= 10
    for seed in range(trials(3, 10)):
        oracle = Counted(lambda X: regressor.predict(X[:, 0]))
        recovery = us.learn(oracle, us.learners.ReluNetworkLearner(64, seed=seed))
        assert us.equivalent(recovery.model, true, rtol=3e-9), seed
        # a second search would ask at least 2.2 times the parameters
        assert oracle.queries <= 1.3 * (neurons * 66 + 1), seed


def test_a_scaler_in_front_merges_into_the_network(trials):
    X, y = load_diabetes(return_X_y=True, scaled=False)
    for seed in range(trials(1, 10)):
        pipeline = trained(X, scale(y), "lbfgs", seed, StandardScaler())
        recovery = us.learn(
            lambda X, f=pipeline: f.predict(X[:, 0]),
            us.learners.ReluNetworkLearner(X.shape[1], seed=seed),
        )
        assert us.equivalent(recovery.model, weights_of(pipeline), rtol=3e-9), seed
        # The data lie up to 9 of their deviations from 0: in other directions answers there are 400
        # times as large and more, and errors are relative to those.
        truth = pipeline.predict(X)
        assert np.max(np.abs(recovery.model(X) - truth)) <= 1e-7 * np.std(truth)


def test_two_hidden_layers_are_refused():
    X, y = diabetes()
    deep = MLPRegressor(hidden_layer_sizes=(8, 8), solver="lbfgs", max_iter=5000, random_state=0)
    deep.fit(X, y)
    with pytest.raises(us.ModelMismatch):
        us.learn(lambda X: deep.predict(X[:, 0]), us.learners.ReluNetworkLearner(X.shape[1]))


@pytest.mark.claimed
def test_a_trained_head_before_a_trained_network(trials, evidence):
    """Head 0 of MiniLM's first layer pools the tokens, a regressor answers: d = 384, rank 32."""
    digits, head = load_digits(), minilm_head()
    X = np.stack([zoom(image / 16, (2, 3), order=1).ravel() for image in digits.images])
    network = weights_of(trained(X, digits.target.astype(float), "lbfgs", 0))
    K, Q = (head.arrays()[name] for name in "KQ")
    target = us.Transformer.from_factors(K, Q, network, head.w)
    learner = us.learners.TransformerLearner(
        384, head=us.learners.LowRankHead(384, 32, biases=True), anchored=True
    )
    oracle = Counted(lambda X: target(X))
    recovery = us.learn(oracle, learner)
    assert relative(recovery.model.W, target.W) <= 1e-9
    assert relative(recovery.model.w, target.w) <= 1e-9
    assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error
    rng, missed, answers = np.random.default_rng(0), [], []
    for length in range(1, 9):
        sequences = rng.standard_normal((50, length, 384))
        answers.append(target(sequences))
        missed.append(recovery.model(sequences) - answers[-1])
    error = np.max(np.abs(missed)) / np.sqrt(np.mean(np.square(answers)))
    assert error <= 2e-9
    evidence(
        "MiniLM's head 0 before a trained regressor",
        queries=oracle.queries,
        error_of_W=relative(recovery.model.W, target.W),
        error_on_sequences=error,
    )
