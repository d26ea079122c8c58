"""Masked arrays, wherever numbers are taken: what lies under a mask is never read as a number."""

import numpy as np
import pytest

import unsoftmax as us
from tests.campaign.script import Script, answers_of, first_number, sequences
from unsoftmax.protocol import as_array

MASK = np.arange(6) == 2


def masked(y, mask):
    return np.ma.MaskedArray(y, mask=mask)


WAYS = {
    "an array": masked,
    "an array of whole numbers": lambda y, m: masked(y.astype(int), m),
    "a column": lambda y, m: masked(y[:, None], m[:, None]),
    "a list": lambda y, m: list(masked(y, m)),
    "a list of rows": lambda y, m: list(masked(y[:, None], m[:, None])),
    "a tuple of rows": lambda y, m: tuple(masked(y[:, None], m[:, None])),
    "a list of lists": lambda y, m: [[x] for x in masked(y, m)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_masked_answer_is_a_missing_one(way, workers, evidence):
    """Asked again, once, and alone."""
    script, asked = Script([[sequences(6)]]), []

    def oracle(X):
        asked.append(len(X))
        return WAYS[way](first_number(X), MASK) if len(X) == 6 else first_number(X)

    recovery = us.learn(oracle, script, workers=workers, retries=us.Retries(pause_s=0.0))
    assert asked == [6, 1]
    assert recovery.counts == {"data": 6, "failed": 1}
    truth = first_number(script.rounds[0][0].X)
    if "whole" in way:
        truth = np.where(MASK, truth, truth.astype(int))
    assert np.array_equal(answers_of(recovery)[0][0], truth)
    evidence(f"a masked answer in {way}, {workers} workers", read_as_numbers=0, asked_again="once")


DEFENCES = {
    "rounded": lambda oracle: us.oracles.rounded(oracle, 3),
    "noisy": lambda oracle: us.oracles.noisy(oracle, 1e-3, 0),
    "clipped": lambda oracle: us.oracles.clipped(oracle, -9.0, 9.0),
    "labels": us.oracles.labels,
    "norm_capped": lambda oracle: us.oracles.norm_capped(oracle, 99.0),
    "within": lambda oracle: us.oracles.within(oracle, 1e-3),
    "coordinate": lambda oracle: us.oracles.coordinate(oracle, 0),
    "weights": lambda oracle: us.oracles.coordinate(oracle, [1.0]),
}


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_mask_passes_every_wrapper(defence, evidence):
    X = np.random.default_rng(0).standard_normal((6, 2, 2))
    for way, masked_as in WAYS.items():
        y = DEFENCES[defence](lambda X, m=masked_as: m(first_number(X), MASK))(X)
        assert np.array_equal(np.isnan(np.ravel(as_array(y))), MASK), way
    evidence(f"a masked answer behind `{defence}`", ways=len(WAYS), read_as_numbers=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda W, v: us.SingleHead(W, np.ones(3)),
        lambda W, v: us.SingleHead(np.eye(3), v),
        lambda W, v: us.MultiHead([W, np.eye(3)], np.ones((2, 3))),
        lambda W, v: us.MultiHead([np.eye(3)] * 2, [v, np.ones(3)]),
        lambda W, v: us.ReluNetwork(W, np.ones(3)),
        lambda W, v: us.SingleHead.from_factors(W, np.eye(3), np.ones(3)),
        lambda W, v: us.oracles.coordinate(first_number, v),
        lambda W, v: us.learners.OrthogonalHeads(3, subspaces=[W]),
    ],
)
def test_masked_parameters_are_refused(make):
    W, v = np.eye(3), np.ones(3)
    make(W, v)
    with pytest.raises(ValueError, match="finite"):
        make(masked(W, W > 0), masked(v, v > 0))


def test_a_model_answers_masked_tokens_with_nan():
    X = np.random.default_rng(0).standard_normal((3, 2, 3))
    for model in (us.SingleHead(np.eye(3), np.ones(3)), us.ReluNetwork(np.eye(3), np.ones(3))):
        tokens = X[:, :1] if isinstance(model, us.ReluNetwork) else X
        mask = np.zeros(tokens.shape, dtype=bool)
        mask[1, 0, 0] = True
        y = model(masked(tokens, mask))
        assert np.array_equal(np.isnan(y), [False, True, False])
