"""Whole layers from ids of a known table: every head, with a certificate, beside the truth."""

import numpy as np
import pytest

import unsoftmax as us
from tests.behind_vocabularies import LayerServer
from unsoftmax.theory import counts

# (H, r, d): queries over the unknown numbers per answer at worst, W in the median and at worst
PROMISED = {
    (2, 8, 16): (8.2, 1e-11, 1e-8),
    (4, 8, 32): (4.7, 1e-10, 1e-8),
    (4, 16, 64): (3.4, 1e-9, 1e-8),
}
# A hundred layers of each; the larger ones take minutes, so ten at a time: processes share them.
TENS = [range(first, first + 10) for first in range(0, 100, 10)]
LAYERS = [
    (shape, seeds) for shape in PROMISED for seeds in ([range(100)] if shape[0] == 2 else TENS)
]


def named(one):
    return f"seeds {one[0]}-{one[-1]}" if isinstance(one, range) else str(one)


def unknown(heads, rank, dim):
    """Count the free numbers of a layer, over those of an answer."""
    each = counts.of_rank(dim, rank) + rank * (2 * dim + 1 - rank)
    return (dim + heads * each) / dim


@pytest.mark.few(2)
@pytest.mark.parametrize(("shape", "seeds"), LAYERS, ids=named)
def test_a_layer_is_recovered_within_its_certificate(shape, seeds, trials, evidence):
    """Every other one has a residual connection."""
    tried = trials(1, len(seeds))
    over, off, inside, predicted = [], [], [], []
    for seed in seeds[:tried]:
        residual = (seed + shape[0]) % 4 > 1
        server = LayerServer(seed, shape=shape, residual=residual)
        learner = us.learners.AttentionLayerLearner(shape[2], table=server.table, seed=seed)
        found = us.learn(us.oracles.from_ids(server, len(server.table)), learner)
        assert found.queries == server.queries <= learner.plan().at_most + 32
        assert found.model.residual == residual
        assert found.evidence.passed
        over.append((server.queries - 32) / unknown(*shape))
        misses, errors = server.misses(found.model), found.certificate.errors
        off.append(misses["W"])
        inside += [misses[name] / errors[name] for name in misses]
        ids = np.random.default_rng([8, seed]).integers(len(server.table), size=(50, 20))
        y = server.truth(ids)
        predicted.append(float(np.abs(found.model(server.table[ids]) - y).max() / np.abs(y).max()))
    most, median, worst = PROMISED[shape]
    assert max(over) <= most
    assert np.median(off) <= median
    assert max(off) <= worst
    assert max(inside) <= 1
    assert max(predicted) <= 1e-8
    which = "" if len(seeds) == 100 else f", seeds {seeds[0]} to {seeds[-1]} of 100"
    evidence(
        f"layer of {shape[0]} heads of {shape[1]} at d = {shape[2]} from ids{which}",
        trials=tried,
        queries_over_unknown=float(np.median(over)),
        W_off_by_at_most=max(off),
        share_of_the_certificate=max(inside),
        predictions_off_by_at_most=max(predicted),
    )


def test_a_table_in_a_hyperplane(trials):
    """Outputs of a LayerNorm: what counts is on the span of the table."""
    for seed in range(trials(1, 20)):
        server = LayerServer(seed, shape=(2, 4, 12))
        x = server.table - server.table.mean(axis=1, keepdims=True)
        server.table = x / x.std(axis=1, keepdims=True) * 1.3 + 0.2
        found = us.learn(server, us.learners.AttentionLayerLearner(12, table=server.table))
        ids = np.random.default_rng(seed).integers(len(x), size=(200, 9))
        predicted = found.model(server.table[ids])
        np.testing.assert_allclose(predicted, server.truth(ids), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "context", "off"), [("float32 answers", 512, 1e-3), ("plain", 6, 1e-8)]
)
def test_coarse_answers_and_short_contexts(kind, context, off, trials):
    for seed in range(trials(1, 20)):
        server = LayerServer(seed, kind, (2, 8, 16))
        learner = us.learners.AttentionLayerLearner(16, table=server.table, context=context)
        found = us.learn(server, learner)
        misses, errors = server.misses(found.model), found.certificate.errors
        assert misses["W"] <= off
        assert all(misses[name] <= errors[name] for name in misses)


REFUSED = {
    "BOS": "NOT_OF_THE_TABLE",
    "positions": "COPIES_DIFFER",
    "other tokenizer": "NOT_OF_THE_TABLE",
    "turned": "IDS_ORDER_MATTERS",
    "cut on the left": "IDS_ORDER_MATTERS",
    "squashed": "NOT_OF_THE_TABLE",
    "a nonlinearity": "NOT_OF_THE_TABLE",
    "one head saturated": "BAGS_SATURATED",
    "the last token alone": "FIRST_TOKEN_DOES_NOT_COUNT",
    "half a residual": "LAST_ID_ADDS",
    "the last token turned": "LAST_ID_ADDS",
    "normed behind": "NOT_OF_THE_TABLE",
    "LayerNorm behind": "BEHIND_A_NORM",
    "one number": "ONE_NUMBER",
    "a number for each head": "NUMBERS_TOO_FEW",
    "few numbers": "NUMBERS_TOO_FEW",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_such_layer_is_refused_by_name(kind, trials, evidence):
    tried = trials(1, 100)
    for seed in range(tried):
        server = LayerServer(seed, kind)
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)) as refusal:
            us.learn(server, us.learners.AttentionLayerLearner(8, table=server.table, seed=seed))
        assert getattr(refusal.value, "reason", "") == REFUSED[kind]
    evidence(f"a target of ids that is no layer of its table: {kind}", trials=tried, refused=tried)


def test_what_lone_ids_determine_behind_a_layer_norm(trials):
    """Scale and shift of the norm, and [I + M, c] up to one factor and the mean over numbers."""
    for seed in range(trials(2, 100)):
        server = LayerServer(seed, "LayerNorm behind", (3, 4, 12), residual=bool(seed % 2))
        with pytest.raises(us.NotIdentifiable) as refusal:
            us.learn(server, us.learners.AttentionLayerLearner(12, table=server.table, seed=seed))
        found = refusal.value.determined
        np.testing.assert_allclose(found["scale"], server.scale, rtol=1e-7)
        np.testing.assert_allclose(found["shift"], server.shift, atol=1e-7)
        M = server.M.sum(axis=0) + server.residual * np.eye(12)
        M, c = M - M.mean(axis=0), server.c - np.mean(server.c)
        factor = np.vdot(found["M"], M) / np.vdot(found["M"], found["M"])
        np.testing.assert_allclose(factor * found["M"], M, atol=1e-7)
        np.testing.assert_allclose(factor * found["c"], c, atol=1e-7)
        parts = zip(server.M, server.W, server.w, strict=True)
        norm = us.LayerNorm(server.scale, server.shift, eps=0.0)
        heads = [us.LayerHead(*one) for one in parts]
        claimed = us.AttentionLayer(heads, server.c, server.residual, norm)
        assert us.verify(us.oracles.from_ids(server), claimed, table=server.table)


def test_settings_that_do_not_go_together():
    table = np.eye(4)
    for wrong in ({"rotary": True}, {"norm": "post"}, {"polish": True}):
        with pytest.raises(ValueError, match="beside table"):
            us.learners.AttentionLayerLearner(4, table=table, **wrong)
    with pytest.raises(ValueError, match="without positions"):
        us.learners.AttentionLayerLearner(4, table=[np.eye(9, 4)] * 2)
    server = LayerServer(0, shape=(2, 4, 8), ids=30)
    with pytest.raises(us.NotIdentifiable) as refusal:
        us.learn(server, us.learners.AttentionLayerLearner(8, table=server.table))
    assert refusal.value.reason == "TABLE_TOO_SMALL"
    server = LayerServer(0)
    with pytest.raises(us.ModelMismatch, match="more than max_heads = 1"):
        us.learn(server, us.learners.AttentionLayerLearner(8, 1, table=server.table))
