"""The registry: every learner, with targets of its class, for the laws that all must keep."""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.attention_layers import layer as attention_layer
from tests.attention_layers import normalised, prenorm, share_after, share_behind, share_of_bounds
from tests.blocks import PlainBlock, apart
from tests.feed_forward import after as layer_after
from tests.feed_forward import behind as layer_behind
from tests.feed_forward import layer, parameter_errors
from tests.feed_forward import share_after as layer_share_after
from tests.feed_forward import share_behind as layer_share_behind
from tests.heads import several
from tests.networks import network, within
from tests.rotary_heads import rotary_head, several_rotary, within_bounds
from tests.rotary_layers import rotary_layer
from tests.rotary_layers import share_of_bounds as share_of_turned_bounds
from tests.smooth_layers import share_of_bounds_behind, smooth_behind, smooth_errors, smooth_layer
from tests.truth import driven, share
from tests.vector_learners import LinearMap, LinearModel
from unsoftmax.protocol import Learner, Model, Oracle


def _values(model: Model) -> Oracle:
    return model


def _within_the_bounds(recovery: us.Recovery[Any], target: Any) -> bool:
    """Hold every parameter against its bound."""
    return all(
        np.linalg.norm(np.subtract(getattr(recovery.model, name), getattr(target, name))) <= bound
        for name, bound in recovery.certificate.errors.items()
    )


def _equivalent(found: Any, target: Any, accuracy: float) -> bool:
    """Compare functions, and their canonical forms."""
    forms = us.canonical(found), us.canonical(target)
    return all(us.equivalent(*pair, rtol=accuracy) for pair in ((found, target), forms))


def _same_arrays(found: Any, target: Any, accuracy: float) -> bool:
    """Compare parameters that the answers determine: for models of the tests alone."""
    mine, other = found.arrays(), target.arrays()
    return all(np.allclose(mine[name], other[name], rtol=0, atol=accuracy) for name in other)


def _arrays_within_the_bounds(recovery: us.Recovery[Any], target: Any) -> bool:
    mine, other = recovery.model.arrays(), target.arrays()
    return all(
        np.linalg.norm(mine[name] - other[name]) <= bound
        for name, bound in recovery.certificate.errors.items()
    )


def _equal_by_the_certificate(recovery: us.Recovery[Any], target: Any) -> bool:
    found = us.equivalent(recovery.model, target, rtol=0, errors=recovery.certificate.errors)
    return found.verdict == "equal"


def _block_within_the_bounds(recovery: us.Recovery[Any], target: Any) -> bool:
    far, errors = apart(recovery.model, target), recovery.certificate.errors
    return all(far[name] <= errors[name] for name in far)


@dataclass(frozen=True)
class Case:
    """A learner and a family of targets that it must recover."""

    name: str
    learner: Callable[[int], Learner[Any]]
    """From a seed."""
    target: Callable[[int], Model]
    """From a seed; every call makes another target of the class."""
    oracle: Callable[[Model], Oracle] = _values
    """What a target is asked through."""
    within: Callable[[Any, Any], bool] = _within_the_bounds
    """Whether a recovery's certificate holds for a target."""
    accuracy: float = 1e-9
    """How close a recovery must come."""
    single: bool = True
    """Whether every probe is a float32 number."""
    same: Callable[[Any, Any, float], bool] = _equivalent
    """Whether a recovery is a target, to a relative accuracy."""


def _head(dim: int, biases: bool) -> Callable[[int], us.SingleHead]:
    def make(seed: int) -> us.SingleHead:
        rng = np.random.default_rng([dim, seed])
        W, v = rng.standard_normal((dim, dim)), rng.standard_normal(dim)
        return us.SingleHead(W, v, rng.standard_normal(dim), 0.5) if biases else us.SingleHead(W, v)

    return make


def _low_rank(dim: int, rank: int, biases: bool = False) -> Callable[[int], us.SingleHead]:
    def make(seed: int) -> us.SingleHead:
        rng = np.random.default_rng([dim, rank, seed])
        K, Q = rng.standard_normal((2, rank, dim)) / np.sqrt(dim)
        v = rng.standard_normal(dim)
        w = K.T @ rng.standard_normal(rank) if biases else None
        return us.SingleHead.from_factors(K, Q, v, w, 0.5 if biases else 0.0)

    return make


def _of(name: str) -> Callable[..., Callable[[int], Learner[Any]]]:
    """Make a maker of learners: of settings, and then of a seed."""
    kind = getattr(us.learners, name)
    return lambda *sizes, **settings: lambda seed: kind(*sizes, seed=seed, **settings)


_exact, _low, _sensing, _approximate = map(
    _of, ("ExactHead", "LowRankHead", "SensingHead", "ApproximateHead")
)
_heads, _orthogonal_heads, _labels = map(_of, ("MultiHeadLearner", "OrthogonalHeads", "LabelHead"))
_relu, _layer, _several_before = map(
    _of, ("ReluNetworkLearner", "TransformerLearner", "MultiHeadTransformerLearner")
)
_tokens = _of("TokenHeadLearner")
_sublayer, _feed_forward_layer, _block = map(
    _of, ("AttentionLayerLearner", "FeedForwardLearner", "BlockLearner")
)


def _behind_a_vocabulary(vocabulary: int, rank: int) -> Callable[[int], us.TokenHead]:
    def make(seed: int) -> us.TokenHead:
        rng = np.random.default_rng([vocabulary, rank, seed])
        rho, x = rng.standard_normal((2, vocabulary, rank))
        return us.TokenHead(rng.standard_normal(vocabulary), rho, x)

    return make


def _vectors_of(ids: Any) -> Any:
    """Look ids up, whole numbers (B, N), or probes (B, N, 1) of a generator driven by hand."""
    return _TABLE[np.reshape(ids, (len(ids), -1)).astype(np.intp)]


_TABLE = np.random.default_rng(6).standard_normal((60, 6))
_SMALL = 0.25 * _TABLE


def _rotary(dim: int, rank: int, **settings: Any) -> Callable[[int], Model]:
    return lambda seed: rotary_head(dim, rank, seed, **settings)


def _to_six_decimals(model: Model) -> Oracle:
    return us.oracles.rounded(model, 6)


def _network(dim: int, neurons: int, biases: bool) -> Callable[[int], us.ReluNetwork]:
    return lambda seed: network("random", dim, neurons, seed, biases)


def _transformer(dim: int, neurons: int, biases: bool) -> Callable[[int], us.Transformer]:
    def make(seed: int) -> us.Transformer:
        rng = np.random.default_rng([dim, neurons, seed])
        W = rng.standard_normal((dim, dim)) / np.sqrt(dim)
        return us.Transformer(W, _network(dim, neurons, biases)(seed))

    return make


def _attention_within(recovery: us.Recovery[Any], target: Any) -> bool:
    return bool(np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error)


def _to_one_decimal(model: Model) -> Oracle:
    return us.oracles.rounded(model, 1)


def _within_the_unit_ball(model: Model) -> Oracle:
    return us.oracles.norm_capped(us.oracles.rounded(model, 9), 1.0)


def _labels_of_the_paper(seed: int) -> Learner[Any]:
    return us.learners.LabelHead(1, 1, 4.0, 1.0, "paper", seed)


def _unit(dim: int) -> Callable[[int], us.SingleHead]:
    """Labels determine v up to its norm: it is 1."""

    def make(seed: int) -> us.SingleHead:
        head = _head(dim, False)(seed)
        return us.SingleHead(head.W / dim, head.v / np.linalg.norm(head.v))

    return make


def _subspaces(sizes: tuple[int, ...]) -> list[Any]:
    """Make orthonormal bases of mutually orthogonal subspaces that fill the space."""
    Q = np.linalg.qr(np.random.default_rng(sizes).standard_normal((sum(sizes),) * 2))[0]
    return np.split(Q, np.cumsum(sizes)[:-1], axis=1)


def _orthogonal(sizes: tuple[int, ...]) -> Callable[[int], us.MultiHead]:
    def make(seed: int) -> us.MultiHead:
        rng = np.random.default_rng([*sizes, seed])
        parts = _subspaces(sizes)
        W = [E @ rng.standard_normal((E.shape[1],) * 2) @ E.T for E in parts]
        return us.MultiHead(W, [E @ rng.standard_normal(E.shape[1]) for E in parts])

    return make


def _every_head_within_the_bounds(recovery: us.Recovery[Any], target: Any) -> bool:
    """Hold every head against the bounds, heads matched by their values."""
    model, errors = recovery.model, recovery.certificate.errors
    nearest = [np.argmin(np.linalg.norm(model.v - v, axis=1)) for v in target.v]
    return len(set(nearest)) == model.H == target.H and all(
        np.linalg.norm(getattr(model, name)[g] - getattr(target, name)[h]) <= errors[name]
        for name in "Wvw"
        for h, g in enumerate(nearest)
    )


def _linear(dim: int, width: int) -> Callable[[int], Any]:
    def make(seed: int) -> Any:
        rng = np.random.default_rng([dim, width, seed])
        return LinearModel(c=rng.standard_normal(width), M=rng.standard_normal((width, dim)))

    return make


def _attention_layer(residual: bool) -> Callable[[int], us.AttentionLayer]:
    return lambda seed: attention_layer(2, 2, 6, seed, residual=residual)


def _heads_within_the_bounds(recovery: us.Recovery[Any], target: Any) -> bool:
    return bool(share_of_bounds(recovery, target) < 1)


def _feed_forward(dim: int, neurons: int, outputs: int, residual: bool = False) -> Any:
    return lambda seed: layer(dim, neurons, outputs, seed, residual=residual)


def _heads_before_a_network(heads: int, dim: int, neurons: int) -> Any:
    def make(seed: int) -> us.MultiHeadTransformer:
        rng = np.random.default_rng([heads, dim, neurons, seed])
        W, B = (rng.standard_normal((heads, n, dim)) / np.sqrt(dim) for n in (dim, neurons))
        w_o, b = rng.standard_normal((2, neurons))
        return us.MultiHeadTransformer(W, B, w_o, b, rng.standard_normal((heads, dim)), 0.5)

    return make


def _transformer_within_the_bounds(recovery: us.Recovery[Any], target: Any) -> bool:
    return share(recovery.model, target, recovery.certificate.errors) <= 1


def _layer_within_the_bounds(recovery: us.Recovery[Any], target: Any) -> bool:
    errors, bounds = parameter_errors(recovery.model, target), recovery.certificate.errors
    return all(errors[name] <= bounds[name] for name in errors)


def _vectors(name: str, learner: Any, target: Any) -> Case:
    within = _arrays_within_the_bounds
    return Case(name, learner, target, _one_by_one, within=within, same=_same_arrays)


@dataclass(frozen=True)
class OurNetworks:
    """A_FFN as a plain function: our own learner, driven by hand, for errors up to 1e-9."""

    seed: int

    def __call__(self, oracle: Any) -> us.ReluNetwork:
        learner = us.learners.ReluNetworkLearner(oracle.dim, seed=self.seed)
        found, _ = driven(learner.steps(0), oracle)
        if max(found.certificate.errors.values()) > 1e-9:
            raise us.ModelMismatch("The network is known too coarsely for what is declared of it.")
        network: us.ReluNetwork = found.model
        return network


def _odd_part_of_softplus(model: Model) -> Oracle:
    """f with f(X) − f(−X) the model: softplus of it, one by one."""
    return _one_by_one(lambda X: np.logaddexp(0.0, model(X)))


def _several(dim: int, heads: int, biases: bool, rank: int | None = None) -> Any:
    """Heads by `tests.heads`, with the target's biases."""
    return lambda seed: several(heads, dim, seed, rank, biases)


def _one_by_one(model: Oracle) -> Oracle:
    """Matrix products round by the batch's size: where a run stopped would show in last bits."""
    return lambda X: np.concatenate([model(X[k : k + 1]) for k in range(len(X))])


# Targets of one class are asked and judged alike.
_heads_apart = partial(Case, within=_every_head_within_the_bounds, single=False)
_many_heads = partial(_heads_apart, oracle=_one_by_one)
_turning_head = partial(Case, oracle=_one_by_one, within=within_bounds)
_labelled = partial(Case, oracle=us.oracles.labels, single=False)
_behind_a_head = partial(Case, within=_attention_within, single=False)
_one_layer = partial(Case, oracle=_one_by_one, within=_heads_within_the_bounds)
_neurons = partial(Case, oracle=_one_by_one, within=_layer_within_the_bounds, single=False)


def _relu_case(name: str, learner: Any, target: Any, of: tuple[int, bool], **more: Any) -> Case:
    """A network of a dimension, with biases or without."""

    def held(recovery: us.Recovery[Any], target: Any) -> bool:
        return bool(within(recovery, target, *of))

    return Case(name, learner, target, within=held, single=False, **more)


def _held(name: str, learner: Any, target: Any, share_of: Any, **more: Any) -> Case:
    """What takes no more than its bounds, by their largest share."""

    def held(recovery: us.Recovery[Any], target: Any) -> bool:
        return bool(share_of(recovery, target) <= 1)

    return Case(name, learner, target, _one_by_one, within=held, **more)


CASES = [
    Case("ExactHead balanced", _exact(6), _head(6, False)),
    Case("ExactHead paper", _exact(6, probes="paper"), _head(6, False)),
    Case("ExactHead paper, unit scales", _exact(6, probes="paper-unit"), _head(6, False)),
    Case("ExactHead gaussian", _exact(6, probes="gaussian"), _head(6, False)),
    Case("ExactHead with biases", _exact(7, biases=True), _head(7, True)),
    Case("ExactHead in one dimension", _exact(1), _head(1, False)),
    Case("LowRankHead", _low(9, rank=2), _low_rank(9, 2)),
    Case("LowRankHead with biases", _low(9, rank=2, biases=True), _low_rank(9, 2, True)),
    Case("LowRankHead, rank unknown", _low(12), _low_rank(12, 3)),
    Case(
        "LowRankHead, approximate values",
        _low(9, rank=2, tolerance=5e-7),
        _low_rank(9, 2),
        _to_six_decimals,
    ),
    _turning_head("LowRankHead with rotary positions", _low(9, rank=4, rotary=True), _rotary(9, 4)),
    _turning_head(
        "LowRankHead with rotary positions and biases",
        _low(9, rank=4, biases=True, rotary=us.Rotary.of(1e4, 4)),
        _rotary(9, 4, biases=0.3),
    ),
    _turning_head("ExactHead with rotary positions", _exact(6, rotary=True), _rotary(6, 6)),
    Case("SensingHead", _sensing(9, rank=1), _low_rank(9, 1)),
    Case("SensingHead, told how many", _sensing(8, rank=2, measurements=60), _low_rank(8, 2)),
    Case("SensingHead at full rank", _sensing(4, rank=4), _head(4, False)),
    Case(
        "ApproximateHead",
        _approximate(6, tolerance=0.05, repeats=2),
        _head(6, False),
        _to_one_decimal,
    ),
    Case(
        "ApproximateHead within a radius",
        _approximate(6, tolerance=5e-10, radius=1.0),
        _head(6, False),
        _within_the_unit_ball,
        accuracy=1e-5,
    ),
    Case(
        "ApproximateHead paper",
        _approximate(6, tolerance=1e-11, norm_bound=16.0, probes="paper"),
        _head(6, False),
        accuracy=1e-5,
    ),
    _heads_apart(
        "OrthogonalHeads, subspaces given",
        lambda seed: us.learners.OrthogonalHeads(5, _subspaces((2, 3)), seed=seed),
        _orthogonal((2, 3)),
    ),
    _heads_apart("OrthogonalHeads", _orthogonal_heads(6), _orthogonal((2, 4))),
    _heads_apart(
        "OrthogonalHeads, the paper's tokens",
        _orthogonal_heads(4, tokens="all"),
        _orthogonal((2, 2)),
    ),
    _many_heads("MultiHeadLearner", _heads(5, 8), _several(5, 3, False)),
    _heads_apart(
        "MultiHeadLearner, capped",
        _heads(5, 8, radius=100.0),
        _several(5, 3, False),
        lambda target: us.oracles.norm_capped(_one_by_one(target), 100.0),
    ),
    _many_heads(
        "MultiHeadLearner with biases, low rank",
        _heads(9, 4, biases=True, rank=2),
        _several(9, 2, True, 2),
    ),
    Case(
        "MultiHeadLearner with rotary positions",
        _heads(6, 4, rotary=True),
        lambda seed: several_rotary(2, 6, 4, seed),
        _one_by_one,
        within=_equal_by_the_certificate,
        single=False,
    ),
    _many_heads(
        "MultiHeadLearner in one dimension", _heads(1, 4, biases=True), _several(1, 2, True)
    ),
    _many_heads(
        "MultiHeadLearner, polished",
        _heads(4, 8, polish=True),
        _several(4, 5, False),
        accuracy=1e-11,
    ),
    _labelled("LabelHead", _labels(4, 50), _unit(4)),
    _labelled("LabelHead in one dimension", _labels(1, 50), _unit(1)),
    _labelled("LabelHead paper", _labels_of_the_paper, _unit(1), accuracy=1.0),
    _relu_case("ReluNetworkLearner", _relu(6), _network(6, 9, True), of=(6, True)),
    _relu_case(
        "ReluNetworkLearner without biases",
        _relu(6, biases=False),
        _network(6, 9, False),
        of=(6, False),
    ),
    _relu_case(
        "ReluNetworkLearner, polished",
        _relu(5, polish=True, max_neurons=8),
        _network(5, 8, True),
        accuracy=1e-11,
        of=(5, True),
    ),
    _relu_case(
        "ReluNetworkLearner in one dimension",
        _relu(1, biases=False),
        _network(1, 3, False),
        of=(1, False),
    ),
    _behind_a_head("TransformerLearner", _layer(5), _transformer(5, 8, True)),
    _behind_a_head(
        "TransformerLearner, anchored", _layer(5, anchored=True), _transformer(5, 8, True)
    ),
    _behind_a_head(
        "TransformerLearner, a plain algorithm",
        lambda seed: us.learners.TransformerLearner(
            5, us.learners.NetworkAlgorithm(5, OurNetworks(seed), 1e-9, 1e-9), seed=seed
        ),
        _transformer(5, 8, True),
    ),
    _relu_case(
        "NetworkAlgorithm",
        lambda seed: us.learners.NetworkAlgorithm(5, OurNetworks(seed), 1e-9, 1e-9, seed=seed),
        _network(5, 8, True),
        of=(5, True),
    ),
    _behind_a_head(
        "TransformerLearner, antisymmetric",
        _layer(5, attention="antisymmetric"),
        _transformer(5, 8, False),
    ),
    Case(
        "Antisymmetric",
        lambda seed: us.learners.Antisymmetric(us.learners.ExactHead(6, seed=seed)),
        _head(6, False),
        _odd_part_of_softplus,
    ),
    Case(
        "Antisymmetric, low rank",
        lambda seed: us.learners.Antisymmetric(us.learners.LowRankHead(9, 2, seed=seed)),
        _low_rank(9, 2),
        _odd_part_of_softplus,
    ),
    _one_layer("AttentionLayerLearner", _sublayer(6), _attention_layer(residual=True)),
    _one_layer(
        "AttentionLayerLearner behind a table",
        lambda seed: us.learners.AttentionLayerLearner(6, seed=seed, table=_SMALL, context=64),
        _attention_layer(residual=True),
        oracle=lambda target: _one_by_one(lambda X: target(0.25 * _vectors_of(X))),
    ),
    _held(
        "AttentionLayerLearner with rotary positions",
        _sublayer(8, rotary=True),
        lambda seed: rotary_layer(8, 2, 1, 4, seed, residual=True),
        share_of_turned_bounds,
    ),
    _held(
        "AttentionLayerLearner with rotary positions and biases",
        _sublayer(8, rotary=True),
        lambda seed: rotary_layer(8, 2, 1, 4, seed, residual=True, biases=0.3),
        share_of_turned_bounds,
    ),
    _one_layer(
        "AttentionLayerLearner, half as many keys",
        _sublayer(6, polish="fine"),
        _attention_layer(residual=False),
    ),
    _held(
        "AttentionLayerLearner behind a LayerNorm",
        _sublayer(16, norm="post"),
        lambda seed: normalised(2, 4, 16, seed),
        share_behind,
        accuracy=1e-8,
    ),
    Case(
        "MultiHeadTransformerLearner",
        _several_before(4, 4),
        _heads_before_a_network(2, 4, 5),
        _one_by_one,
        within=_transformer_within_the_bounds,
        accuracy=1e-7,
        single=False,
    ),
    _held(
        "AttentionLayerLearner after a LayerNorm",
        _sublayer(6, norm="pre"),
        lambda seed: prenorm(1, 2, 6, seed),
        share_after,
        single=False,
        accuracy=1e-8,
    ),
    _neurons("FeedForwardLearner", _feed_forward_layer(6), _feed_forward(6, 9, 6, residual=True)),
    _neurons("FeedForwardLearner of other outputs", _feed_forward_layer(5), _feed_forward(5, 8, 7)),
    _held(
        "FeedForwardLearner after a LayerNorm",
        _feed_forward_layer(6, norm="pre"),
        lambda seed: layer_after(layer(6, 9, 6, seed), seed),
        layer_share_after,
        single=False,
        accuracy=1e-8,
    ),
    _held(
        "FeedForwardLearner of gated neurons after a norm",
        _feed_forward_layer(8, activation="silu"),
        lambda seed: layer_after(smooth_layer(8, 5, seed, "silu", True, False), seed),
        lambda recovery, true: layer_share_after(recovery, true, smooth_errors),
        single=False,
        accuracy=1e-7,
    ),
    _held(
        "FeedForwardLearner behind a LayerNorm",
        _feed_forward_layer(8, norm="post"),
        lambda seed: layer_behind(layer(8, 12, 8, seed), seed),
        layer_share_behind,
        single=False,
        accuracy=1e-6,
    ),
    _held(
        "FeedForwardLearner of smooth neurons behind a norm",
        _feed_forward_layer(8, norm="post"),
        lambda seed: smooth_behind(8, 9, seed, "silu", centred=False),
        lambda recovery, true: share_of_bounds_behind(recovery, true, 20.0),
        single=False,
        accuracy=1e-8,
    ),
    _held(
        "FeedForwardLearner of smooth neurons behind a norm without an eps to see",
        _feed_forward_layer(8, norm="post"),
        lambda seed: smooth_behind(8, 9, seed, "gelu", eps=1e-12),
        lambda recovery, true: share_of_bounds_behind(recovery, true, 100.0),
        single=False,
        accuracy=1e-6,
    ),
    Case(
        "TokenHeadLearner",
        _tokens(vocabulary=40, rank=2, context=64),
        _behind_a_vocabulary(40, 2),
        _one_by_one,
        within=_equal_by_the_certificate,
    ),
    Case(
        "TokenHeadLearner, rank unknown",
        _tokens(vocabulary=40, context=64),
        _behind_a_vocabulary(40, 3),
        _one_by_one,
        within=_equal_by_the_certificate,
    ),
    Case(
        "LowRankHead behind a table",
        lambda seed: us.learners.LowRankHead(6, seed=seed, table=_TABLE, context=64),
        _low_rank(6, 2, True),
        lambda target: _one_by_one(lambda X: target(_vectors_of(X))),
    ),
    Case(
        "BlockLearner",
        _block(6),
        lambda seed: PlainBlock((6, 1, 3), seed).model(),
        _one_by_one,
        within=_block_within_the_bounds,
        same=lambda found, target, accuracy: max(apart(found, target).values()) <= accuracy,
        single=False,
    ),
    _vectors("LinearMap (tests)", lambda seed: LinearMap(5, seed), _linear(5, 3)),
    _vectors("LinearMap of one number (tests)", lambda seed: LinearMap(4, seed), _linear(4, 1)),
]

# One learner per kind of answer, numbers, coarse numbers, labels and vectors, and two adaptive.
KINDS = (
    "ExactHead balanced",
    "ApproximateHead",
    "LabelHead",
    "AttentionLayerLearner",
    "ReluNetworkLearner",
    "MultiHeadLearner",
)


def cases(of: Iterable[Case] = CASES, few: Container[str] | None = None) -> pytest.MarkDecorator:
    """Parametrize a test with cases: those that are not named only at claimed counts."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=case.name,
                marks=() if few is None or case.name in few else pytest.mark.claimed,
            )
            for case in of
        ],
    )


every_case = cases()
kinds = cases(few=KINDS)
