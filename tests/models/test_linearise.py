"""Every map and every model: values, derivatives, roundings and tensors, checked once and here.

Values and derivatives are held against `tests.models.formulas`: the formulas in plain loops, which
autograd differentiates.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import autograd
import numpy as np
import pytest
from autograd.misc.flatten import flatten
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from tests.models import formulas
from unsoftmax.measure.precision import KAPPA
from unsoftmax.models.attention_map import BIASES, WHOLE, Attention
from unsoftmax.models.composition import Composition, Map, chain
from unsoftmax.models.linearised import Direct, Linearised, Outer, Transposed
from unsoftmax.models.model import FrozenModel
from unsoftmax.models.neurons import ACTIVATIONS, Neurons
from unsoftmax.probes import Array

# Sums of some hundred terms of about 1, each rounded to 1.1e-16, and what softmax makes of them.
same = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
D, N, B = 4, 3, 2


@dataclass(frozen=True)
class Subject:
    """A map or a model, with what it is held against."""

    name: str
    linearise: Callable[[Array], Linearised]
    tensors: dict[str, Array]
    """By what `linearise` takes changes of."""
    changed: Callable[[dict[str, Array]], Callable[[Array], Array]]
    """Its own values with other tensors."""
    formula: Callable[[dict[str, Array], Array], Any]
    """Of tensors and one sequence (N, d)."""
    model: Any = None
    map: Map | None = None
    tokens: int = N

    def __repr__(self) -> str:
        return self.name

    def sequences(self, count: int = B, tokens: int | None = None) -> Array:
        rng = np.random.default_rng(len(self.name))
        return in_float32(rng.standard_normal((count, tokens or self.tokens, D)))


def in_float32(x: Array) -> Array:
    return np.asarray(x.astype(np.float32), dtype=np.float64)


class Drawn:
    """Random arrays of about unit products with tokens, of float32 numbers."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> Array:
        drawn = self.rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 1)
        return in_float32(drawn)

    def norm(self, width: int = D, **settings: Any) -> us.LayerNorm:
        scale, shift = in_float32(1 + 0.3 * self(width)), self(width)
        return us.LayerNorm(scale, shift, eps=0.125, **settings)

    def attention(self, m: int = D) -> Attention:
        return Attention(
            self(2, 3, D), self(2, 3, D), self(2, D), self(2, m, 2), self(2, 2, D), self(m)
        )

    def turning(self, m: int = D) -> Attention:
        """Three heads in two groups, with positions and biases."""
        theta = np.array([[1.0, 0.25], [0.75, 0.0]])
        arrays: Any = {"k_bias": self(2, 4), "q_bias": self(3, 4), "frequencies": theta}
        parts = self(3, 4, D), self(2, 4, D), None, self(3, m, 2), self(2, 2, D), self(m)
        return Attention(*parts, **arrays, groups=np.array([0, 1, 0]))

    def neurons(self, activation: str = "relu", gated: bool = False, out: int = D) -> Neurons:
        gate = {"G": self(5, D), "g": self(5)} if gated else {}
        return Neurons(self(5, D), self(5), self(out, 5), self(out), activation, **gate)

    def head(self, factors: str = "") -> us.LayerHead:
        """M or W may be in factors: "OV", "KQ" or both."""
        names = {"O": (D, 2), "V": (2, D), "K": (3, D), "Q": (3, D), "M": (D, D), "W": (D, D)}
        wanted = ("OV" if "OV" in factors else "M") + ("KQ" if "KQ" in factors else "W")
        return us.LayerHead.from_arrays({n: self(*names[n]) for n in wanted} | {"w": self(D)})

    def network(self) -> us.ReluNetwork:
        return us.ReluNetwork(self(D, 5), self(5), self(5), 0.5)


def sublayer(name: str, inside: Map, norm: us.LayerNorm) -> Composition:
    """Compose the norm before, the map inside and the residual, or the norm behind."""
    before = norm if norm.before else None
    whole = Composition.of({"norm": before, name: inside}, residual=True)
    return whole if before else Composition.of({"": whole, "norm": norm})


# -- maps


def leaves(part: Map, prefix: str = "") -> dict[str, Array]:
    """Return the arrays of a map by their paths."""
    if isinstance(part, Composition):
        found: dict[str, Array] = {}
        for name, inner in part.parts:
            found |= leaves(inner, f"{prefix}{name}." if name else prefix)
        return found
    assert isinstance(part, Attention | Neurons | us.LayerNorm)
    own = part.arrays() if isinstance(part, us.LayerNorm) else part.arrays
    return {prefix + n: np.asarray(x) for n, x in own.items() if n not in ("before", "centred")}


def rebuilt(part: Map, arrays: dict[str, Array]) -> Map:
    """Return a map with other arrays."""
    if isinstance(part, Composition):
        parts = []
        for name, inner in part.parts:
            prefix = f"{name}." if name else ""
            own = {n[len(prefix) :]: x for n, x in arrays.items() if n.startswith(prefix)}
            parts.append((name, rebuilt(inner, own)))
        return Composition(tuple(parts), part.residual)
    if isinstance(part, us.LayerNorm):
        own = {n: x for n, x in arrays.items() if n in part.arrays()}
        return us.LayerNorm.from_arrays({**part.arrays(), **own})
    known: Any = part
    return cast(Map, replace(known, **{n: x for n, x in arrays.items() if n in known.arrays}))


def products(part: Map, prefix: str = "") -> dict[str, Array]:
    """Return changes of W and M, 0 as yet, of every attention in a map."""
    if isinstance(part, Composition):
        found: dict[str, Array] = {}
        for name, inner in part.parts:
            found |= products(inner, f"{prefix}{name}." if name else prefix)
        return found
    if not isinstance(part, Attention):
        return {}
    H, d = len(part.Q), part.Q.shape[2]
    m = d if part.O is None else part.O.shape[1]
    named = {"M": np.zeros((H, m, d)), "w": np.zeros((H, d))}
    if part.frequencies is None:
        named["W"] = np.zeros((H, d, d))
    return {prefix + n: x for n, x in named.items() if n not in part.arrays}


def of_map(name: str, part: Map, every: bool = False) -> Subject:
    more = products(part)
    where = slice(None) if every else slice(-1, None)
    return Subject(
        f"{name}{', everywhere' if every else ''}",
        lambda X: part.linearise(X, every),
        leaves(part) | more,
        lambda arrays: lambda X: rebuilt(part, arrays).linearise(X, every).value,
        lambda t, x: formulas.answers(part, t, x)[where],
        map=part,
    )


def maps() -> list[Subject]:
    draw = Drawn(0)
    plain = Attention(draw(2, D, D), None, draw(2, D))
    whole = Attention(draw(2, D, D), None, draw(2, D), draw(2, 3, D), None, draw(3))
    attention = {
        "tokens pooled": plain,
        "whole matrices": whole,
        "factors": draw.attention(3),
        "factors of scores and a residual matrix": replace(
            draw.attention(3), V=None, O=draw(2, 3, D), R=draw(3, D)
        ),
        "factors of values": replace(draw.attention(), K=None, Q=draw(2, D, D)),
        "no heads": Attention(np.zeros((0, D, D)), O=np.zeros((0, 3, D)), c=draw(3)),
        "positions": draw.turning(3),
        "positions and QK-norm": replace(
            draw.turning(3), k_scale=draw(4), q_scale=draw(4), qk_eps=0.125
        ),
        "positions in one group": replace(
            draw.turning(),
            K=draw(1, 4, D),
            V=draw(1, 2, D),
            k_bias=draw(1, 4),
            frequencies=np.array([[0.5, 2.0]]),
            groups=np.zeros(3, dtype=np.intp),
        ),
    }
    found = []
    for name, one in attention.items():
        found += [of_map(name, one), of_map(name, one, True)]
        found.append(of_map(f"{name}, not causal", replace(one, causal=False), True))
    for phi in ACTIVATIONS:
        found += [
            of_map(phi, draw.neurons(phi, out=3)),
            of_map(f"{phi}, gated", draw.neurons(phi, True)),
        ]
    found += [
        of_map("neurons", draw.neurons("silu", True, 3), True),
        of_map("neurons given their sums", Neurons(None, draw(D), draw(3, D), draw(3), "tanh")),
        of_map("no neurons", Neurons(draw(0, D), draw(0), np.zeros((3, 0)), draw(3))),
    ]
    for centred in (True, False):
        for every in (False, True):
            found.append(of_map(f"norm, centred {centred}", draw.norm(centred=centred), every))
    return found + compositions(draw)


def compositions(draw: Drawn) -> list[Subject]:
    rms = draw.norm(centred=False)
    blocks = {
        "nothing": Composition(()),
        "nothing but a residual": Composition((), True),
        "maps by number": chain([draw.neurons("tanh"), draw.norm(), draw.neurons("gelu")]),
        "BERT's block": Composition.of(
            {
                "attention": sublayer("heads", draw.attention(), draw.norm()),
                "mlp": sublayer("neurons", draw.neurons("gelu"), draw.norm()),
            }
        ),
        "Llama's block": Composition.of(
            {
                "attention": sublayer(
                    "heads", draw.turning(), draw.norm(before=True, centred=False)
                ),
                "mlp": Composition.of({"norm": rms, "neurons": draw.neurons("silu", True)}, True),
                "norm": draw.norm(centred=False),
            }
        ),
        "attention after attention": Composition.of(
            {
                "one": Composition.of({"heads": draw.attention()}, True),
                "other": Composition.of({"norm": draw.norm(), "heads": draw.turning(3)}),
            }
        ),
    }
    found = []
    for name, block in blocks.items():
        found += [of_map(name, block), of_map(name, block, True)]
        if block.attends:
            free = without_causality(block)
            found += [of_map(f"{name}, not causal", free, every) for every in (False, True)]
    return found


def without_causality(part: Any) -> Any:
    if isinstance(part, Composition):
        parts = tuple((name, without_causality(inner)) for name, inner in part.parts)
        return Composition(parts, part.residual)
    return replace(part, causal=False) if isinstance(part, Attention) else part


# -- models

BY_HEAD: dict[Any, str] = {
    us.MultiHead: "W w v",
    us.MultiHeadTransformer: "W w B",
    us.RotaryHeads: "K Q k_bias q_bias frequencies v",
    us.RotaryLayer: "Q q_bias O",
}
BY_GROUP: dict[Any, str] = {us.RotaryLayer: "K k_bias V"}


def whole_arrays(model: Any) -> dict[str, Array]:
    """Return the arrays of a model, whole matrices in place of factors."""
    arrays: dict[str, Array] = model.arrays()
    if isinstance(model, us.AttentionLayer):
        arrays = {name: x for name, x in arrays.items() if not name.startswith("heads.")}
        for h, head in enumerate(model.heads):
            arrays |= {f"heads.{h}.{name}": getattr(head, name) for name in "MWw"}
    elif "K" in arrays and "frequencies" not in arrays:
        arrays = {name: x for name, x in arrays.items() if name not in "KQ"} | {"W": model.W}
    return arrays


def places(model: Any) -> dict[str, tuple[str, Any]]:
    """Return which array of `whole_arrays`, and which place of it, every tensor is."""
    found: dict[str, tuple[str, Any]] = {}
    by_head, by_group = (some.get(type(model), "").split() for some in (BY_HEAD, BY_GROUP))
    for key, array in whole_arrays(model).items():
        if key in ("activation", "dim", "groups", "norm.before", "norm.centred"):
            continue
        if key == "residual" and not array.ndim:
            continue
        prefix, _, own = key.rpartition(".")
        if prefix == "norm":
            found[f"{own} of the norm"] = key, ...
        elif prefix.startswith("heads."):
            found[f"{own} of head {prefix[6:]}"] = key, ...
        elif key in (*by_head, *by_group):
            of = "head" if key in by_head else "group"
            found |= {f"{key} of {of} {h}": (key, h) for h in range(len(array))}
        else:
            found[key] = key, ...
    return found


def formula_of(model: Any) -> Callable[..., Any]:
    count = getattr(model, "H", None)
    if isinstance(model, us.AttentionLayer | us.FeedForward):
        if isinstance(model, us.AttentionLayer):
            inside = partial(formulas.attention_layer, count=count)
        else:
            inside = partial(formulas.feed_forward, activation=model.activation)
        return partial(formulas.sublayer, inside, residual=model.residual, norm=model.norm)
    if isinstance(model, us.RotaryLayer):
        return partial(formulas.rotary_layer, groups=model.groups, residual=model.residual)
    if isinstance(model, us.MultiHeadTransformer):
        return partial(formulas.heads_before_a_network, count=count)
    if isinstance(model, us.ReluNetwork | us.Transformer):
        return formulas.network if isinstance(model, us.ReluNetwork) else formulas.transformer
    turning = isinstance(model, us.RotaryHead | us.RotaryHeads)
    return partial(formulas.rotary_heads if turning else formulas.heads, count=count)


def of_model(name: str, model: Any) -> Subject:
    arrays, where = whole_arrays(model), places(model)

    def build(t: dict[str, Array]) -> Any:
        changed = {key: array.copy() for key, array in arrays.items()}
        for tensor, (key, place) in where.items():
            changed[key][place] = t[tensor]
        return type(model).from_arrays(changed)

    single = isinstance(model, us.FeedForward | us.ReluNetwork)
    return Subject(
        f"{type(model).__name__} {name}".strip(),
        model.linearise,
        {tensor: np.array(arrays[key][place]) for tensor, (key, place) in where.items()},
        build,
        formula_of(model),
        model,
        tokens=1 if single else N,
    )


def models() -> list[Subject]:
    draw = Drawn(1)
    found = heads_and_networks(draw) + rotary_models(draw)
    for phi, gated in itertools.product(ACTIVATIONS, (False, True)):
        if (phi, gated) not in (("relu", False), ("identity", True)):  # whose products are squares
            gate = (draw(5, D), draw(5)) if gated else None
            arrays = draw(5, D), draw(5), draw(D, 5), draw(D)
            layer = us.FeedForward(*arrays, activation=phi, gate=gate)
            found.append(of_model(f"{phi}, {'gated' if gated else 'plain'}", layer))
    norms: dict[str, us.LayerNorm | None] = {"no norm": None}
    for before, centred in itertools.product((True, False), (True, False)):
        name = f"{'LayerNorm' if centred else 'RMSNorm'} {'before' if before else 'behind'}"
        norms[name] = draw.norm(before=before, centred=centred)
    kinds = {"whole": ["", ""], "in factors": ["OV KQ"] * 2, "mixed": ["OV", "KQ", ""], "none": []}
    for (name, norm), residual in itertools.product(norms.items(), (False, True)):
        for kind, factors in kinds.items():
            heads = [draw.head(one) for one in factors]
            whole = us.AttentionLayer(heads, draw(D), residual, norm)
            found.append(of_model(f"{kind}, {name}, residual {residual}", whole))
        feed = us.FeedForward(draw(5, D), draw(5), draw(D, 5), draw(D), residual, norm)
        found.append(of_model(f"{name}, residual {residual}", feed))
    return found


def heads_and_networks(draw: Drawn) -> list[Subject]:
    """Without positions, whole and in factors."""
    v, w, factors, network = draw(D), draw(D), (draw(2, D), draw(2, D)), draw.network()
    some: list[tuple[str, Any]] = [
        ("plain", us.SingleHead(draw(D, D), v)),
        ("whole", us.SingleHead(draw(D, D), v, w, 0.5)),
        ("in factors", us.SingleHead.from_factors(*factors, v, w, 0.5)),
        ("", network),
        ("whole", us.Transformer(draw(D, D), network, w)),
        ("in factors", us.Transformer.from_factors(*factors, network, w)),
    ]
    for H in (0, 1, 3):
        values, w, factors = draw(H, D), draw(H, D), (draw(H, 2, D), draw(H, 2, D))
        some += [
            (f"of {H} whole", us.MultiHead(draw(H, D, D), values, w, 0.5)),
            (f"of {H} in factors", us.MultiHead.from_factors(*factors, values, w, 0.5)),
        ]
        for residual in (True, False):
            R = draw(5, D) if residual else None
            outer: Any = draw(H, 5, D), draw(5), draw(5), w, 0.5, R
            layer, thin = us.MultiHeadTransformer, us.MultiHeadTransformer.from_factors
            some += [
                (f"of {H} whole, residual {residual}", layer(draw(H, D, D), *outer)),
                (f"of {H} in factors, residual {residual}", thin(*factors, *outer)),
            ]
    return [of_model(*one) for one in some]


def rotary_models(draw: Drawn) -> list[Subject]:
    theta = us.Rotary([1.0, 0.25])
    biases: Any = {"k_bias": draw(4), "q_bias": draw(4)}
    some: list[tuple[str, Any]] = [
        ("", us.RotaryHead(draw(4, D), draw(4, D), draw(D), theta, c=0.5, **biases))
    ]
    for H, r in ((0, 0), (3, 4)):
        biases = {"k_bias": draw(H, r), "q_bias": draw(H, r)}
        angles = [us.Rotary(draw(2)) for _ in range(H)]
        keys, queries = draw(H, r, D), draw(H, r, D)
        some.append((f"of {H}", us.RotaryHeads(keys, queries, draw(H, D), angles, c=0.5, **biases)))
    for H, G, residual in ((4, 2, True), (3, 3, False), (2, 1, True)):
        biases = {"k_bias": draw(G, 4), "q_bias": draw(H, 4), "residual": residual}
        values = draw(H, D, 2), draw(G, 2, D)
        scores = draw(G, 4, D), draw(H, 4, D)
        layer = us.RotaryLayer(*values, *scores, draw(D), theta, **biases)
        some.append((f"of {H} in {G}", layer))
    return [of_model(*one) for one in some]


MAPS, MODELS = maps(), models()
every_subject = pytest.mark.parametrize("subject", MAPS + MODELS, ids=repr)
every_model = pytest.mark.parametrize("subject", MODELS, ids=repr)


# -- derivatives


def drawn_changes(subject: Subject) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(x.shape) for name, x in subject.tensors.items()}


def by_sequences(subject: Subject, t: dict[str, Any], X: Any) -> Array:
    return np.array([subject.formula(t, x) for x in X])


@cache
def jacobians(name: str) -> list[dict[str, Array]]:
    """Return ∂f/∂θ and ∂f/∂X, by autograd, of every sequence: of the answer's shape and θ's."""
    [subject] = [one for one in MAPS + MODELS if one.name == name]
    found = []
    for x in subject.sequences():
        flat, unflatten = flatten({**subject.tensors, " x": x})

        def answer(numbers: Any, unflatten: Any = unflatten) -> Any:
            t = unflatten(numbers)
            own = {n: t[n] for n in subject.tensors}
            return autograd.numpy.reshape(subject.formula(own, t[" x"]), -1)

        rows = [unflatten(row) for row in autograd.jacobian(answer)(flat)]
        shape = np.shape(subject.formula(subject.tensors, x))
        found.append(
            {n: np.reshape([row[n] for row in rows], (*shape, *rows[0][n].shape)) for n in rows[0]}
        )
    return found


def moved(J: dict[str, Array], name: str, change: Array) -> Array:
    return np.tensordot(J[name], change, axes=np.ndim(change))


def test_names_of_subjects_are_unique():
    assert len({subject.name for subject in MAPS + MODELS}) == len(MAPS + MODELS)


@every_subject
def test_values_are_those_of_the_formulas(subject):
    X = subject.sequences()
    expected = by_sequences(subject, subject.tensors, X)
    at = subject.linearise(X)
    same(at.value, expected)
    same(subject.changed(subject.tensors)(X), expected)
    assert at.rounding.shape == at.value.shape
    if subject.model is not None:
        same(subject.model(X), expected)


@pytest.mark.few(8)
@every_subject
def test_forward_derivatives(subject):
    X, changes = subject.sequences(), drawn_changes(subject)
    dX = np.random.default_rng(2).standard_normal(X.shape)
    at, exact = subject.linearise(X), jacobians(subject.name)
    assert np.all(at.jvp({}, None) == 0)
    assert at.jvp({}, None).shape == at.value.shape
    total = np.zeros_like(at.value)
    for name, change in changes.items():
        by_one = at.jvp({name: change}, None)
        expected = np.array([moved(J, name, change) for J in exact])
        same(by_one, expected, err_msg=name)
        total = total + by_one
    by_tokens = at.jvp({}, dX)
    expected = np.array([moved(J, " x", d) for J, d in zip(exact, dX, strict=True)])
    same(by_tokens, expected)
    same(at.jvp(changes, dX), total + by_tokens)


@pytest.mark.few(24)
@every_subject
def test_backward_derivatives(subject):
    """And norms of gradients, and their inner products with changes."""
    X = subject.sequences()
    at, exact = subject.linearise(X), jacobians(subject.name)
    y = np.random.default_rng(3).standard_normal((3, *at.value.shape))
    back = at.vjp(y)

    def pulled(name):
        rows = [np.tensordot(y[:, b], J[name], axes=y.ndim - 2) for b, J in enumerate(exact)]
        return np.stack(rows, axis=1)

    same(back.X, pulled(" x"))
    assert set(back.by) - {*bounds_of(back)} == {*subject.tensors}
    for name, tensor in subject.tensors.items():
        gradients, expected = back.by[name], pulled(name)
        found = np.concatenate(
            [one.whole.reshape(*y.shape[:2], -1) for one in gradients]
            or [np.zeros((*y.shape[:2], 0))],
            axis=2,
        )
        same(found, expected.reshape(found.shape), err_msg=name)
        one_each = len(gradients) != 1 or tensor.ndim > gradients[0].whole.ndim - 2
        parts = tensor.shape[1:] if one_each else tensor.shape
        changes = np.random.default_rng(4).standard_normal((len(gradients), *parts))
        for gradient, change in zip(gradients, changes, strict=True):
            whole = gradient.whole
            norms = np.linalg.norm(whole.reshape(*y.shape[:2], -1), axis=2)
            same(gradient.norms, norms, err_msg=name)
            change = change.reshape(whole.shape[2:])
            inner = np.tensordot(whole, change, axes=change.ndim)
            same(gradient.dot(change), inner, err_msg=name)


def bounds_of(back: Any) -> list[str]:
    """Return the sizes that stand beside gradients: of errors at any distance."""
    return [name for name in back.by if name.endswith((WHOLE, BIASES))]


# -- roundings, tensors, and what hypothesis draws


@pytest.mark.few(24)
@every_subject
def test_roundings_bound_the_errors_of_float32(subject):
    """As `measure.precision` counts them: κ roundoffs of 2⁻²⁴ and terms of the size that is said.

    Below float32's range, of 10⁻³⁷, nothing is said.
    """
    single = {name: np.asarray(x, dtype=np.float32) for name, x in subject.tensors.items()}
    long = [60] if subject.model and subject.tokens > 1 else []
    for tokens, size in itertools.product({1, subject.tokens, *long}, (0.1, 1.0, 10.0)):
        X = in_float32(size * subject.sequences(tokens=tokens))
        found = by_sequences(subject, single, X.astype(np.float32))
        assert found.dtype == np.float32
        at = subject.linearise(X)
        exact = by_sequences(subject, subject.tensors, X)
        assert np.all(np.abs(found - exact) <= KAPPA * 2.0**-24 * at.rounding + 1e-37)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_roundings_of_saturated_neurons(activation):
    """Where slopes are 0 neurons still round what they answer: 200 draws, sums up to 100."""
    phi, rng = formulas.ACTIVATIONS[activation], np.random.default_rng(0)
    for _ in range(200):
        size = 10 ** rng.uniform(-1, 1.5)
        arrays = [in_float32(rng.standard_normal(shape)) for shape in ((3, 2), 3, (2, 3), (1, 2))]
        A, a, weights, x = arrays
        x = in_float32(size * x)
        at = Neurons(A, a, weights, np.zeros(2), activation).linearise(x[None])
        z = x.astype(np.float32) @ A.T.astype(np.float32) + a.astype(np.float32)
        found = phi(z) @ weights.T.astype(np.float32)
        assert found.dtype == np.float32
        assert np.all(np.abs(found - at.value[0]) <= KAPPA * 2.0**-24 * at.rounding[0] + 1e-37)


@every_model
def test_tensors_are_those_of_the_arrays(subject):
    assert {*subject.model.tensors} == {*subject.tensors}
    for name, tensor in subject.model.tensors.items():
        array = subject.tensors[name]
        assert tensor.entries == array.size
        np.testing.assert_allclose(tensor.norm, np.linalg.norm(array), rtol=1e-12)


def test_sizes_of_arrays_by_their_paths():
    """Of a block of several sub-layers, where names are nested."""
    [block] = [one for one in MAPS if one.name == "Llama's block"]
    assert block.map is not None
    for path, array in leaves(block.map).items():
        shape, norms, by_head = block.map.size(path)
        assert shape == array.shape
        each_one = array if by_head else [array]
        np.testing.assert_allclose(norms, [np.linalg.norm(x) for x in each_one], rtol=1e-14)
    for unknown in ("mlp.neurons.W", "nowhere.W", "W"):
        assert block.map.size(unknown) == ((), (), False)


def test_a_model_that_is_made_of_no_maps_says_so():
    class Other(us.ReluNetwork):
        _composed = FrozenModel._composed

    with pytest.raises(NotImplementedError, match="Of what maps a Other is made is not known"):
        Other(np.eye(2), np.ones(2)).linearise(np.ones((1, 2)))


@pytest.mark.parametrize("every", [False, True])
def test_what_errors_at_any_distance_move(every):
    """Σ |γ_i| ‖x_i‖‖x_p‖ where W(Δ) is off by itself at every distance, and for biases' parts."""
    part, rng = Drawn(2).turning(3), np.random.default_rng(0)
    X = rng.standard_normal((2, N, D))
    at = part.linearise(X, every)
    y = rng.standard_normal((1, *at.value.shape))
    back, where = at.vjp(y), slice(None) if every else slice(-1, None)
    lengths = np.linalg.norm(X, axis=2)
    for b, x in enumerate(X):

        def moved_by(scores: Any, b: int = b, x: Any = x) -> Any:
            found = formulas.answers(part, {**part.arrays, "scores": scores}, x)
            return autograd.numpy.sum(y[0, b] * found[where])

        gamma = np.abs(autograd.grad(moved_by)(np.zeros((3, N, N))))
        pairs = lengths[b][:, None], lengths[b]
        for name, sizes in ((WHOLE, np.multiply(*pairs)), (BIASES, np.hypot(*pairs))):
            expected = np.sum(gamma * sizes, axis=(1, 2))
            same([one.norms[0, b] for one in back.by[name]], expected)
            same([one.whole[0, b, 0] for one in back.by[name]], expected)


def test_what_query_tokens_score_the_token_before_them_with():
    """Of [x; b] the score of x is x·u(b), and what biases of keys add."""
    draw = Drawn(5)
    b = draw(D)
    Q, w = draw(2, D, D), draw(2, D)
    same(Attention(Q, None, w).scored(b[None])[0], Q @ b + w)
    factors, turning = draw.attention(), draw.turning()
    t: Any = factors.arrays
    whole = np.einsum("hrd,hre->hde", t["K"], t["Q"])
    same(factors.scored(b[None])[0], whole @ b + factors.w)
    found = turning.scored(b[None])[0]
    t = turning.arrays
    for x in np.eye(D):
        for h, g in enumerate((0, 1, 0)):
            own = t["K"][g], t["Q"][h], 0 * t["k_bias"][g], t["q_bias"][h], t["frequencies"][g]
            same(x @ found[h], formulas.rotary_score(np.stack([x, b]), 1, *own)(0))


def test_products_with_all_unit_covectors():
    part = Drawn(3).attention(3)
    at = part.linearise(np.random.default_rng(0).standard_normal((2, N, D)))
    units = np.broadcast_to(np.eye(3)[:, None, None], (3, 2, 1, 3))
    for name in part.arrays:
        for mine, other in zip(at.every.by[name], at.vjp(units).by[name], strict=True):
            np.testing.assert_array_equal(mine.whole, other.whole)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_norms_and_products_of_gradients(seed, terms, rows, columns):
    """Of few outer products, which need no whole matrix, as of the matrix."""
    rng = np.random.default_rng(seed)
    outer = Outer(
        rng.standard_normal((2, 3, terms, rows)), rng.standard_normal((3, terms, columns))
    )
    change = rng.standard_normal((rows, columns))
    whole = np.einsum("cbto,bti->cboi", outer.left, outer.right)
    for one, matrix, step in (
        (outer, whole, change),
        (Direct(whole), whole, change),
        (Transposed(outer), whole.swapaxes(2, 3), change.T),
    ):
        same(one.whole, matrix)
        same(one.norms, np.linalg.norm(matrix, axis=(2, 3)))
        same(one.dot(step), np.einsum("cboi,oi->cb", matrix, step))


# -- what is extreme: no warnings, and no NaN where the answer is finite


def measured(at: Linearised) -> list[Array]:
    """Return everything that a linearisation knows: value, rounding, and all derivatives."""
    y = np.ones((2, *at.value.shape))
    back = at.vjp(y)
    norms = [gradient.norms for name in back.by for gradient in back.by[name]]
    return [at.value, at.rounding, back.X, *norms]


@every_subject
def test_no_sequences_and_sequences_of_one_token(subject):
    for count, tokens in ((0, subject.tokens), (2, 1)):
        X = subject.sequences(count, tokens)
        at = subject.linearise(X)
        value, rounding, of_x, *norms = measured(at)
        assert len(value) == len(rounding) == count
        assert of_x.shape == (2, *X.shape)
        assert at.jvp({}, np.ones_like(X)).shape == value.shape
        for some in (value, rounding, of_x, *norms):
            assert np.isfinite(some).all()
        assert all(some.shape == (2, count) for some in norms)


@pytest.mark.few(40)
@every_subject
def test_small_tokens(subject):
    for size in (1e-300, 5e-324):
        X = size * subject.sequences()
        at = subject.linearise(X)
        np.testing.assert_allclose(at.value, subject.linearise(0 * X).value, rtol=0, atol=1e-290)
        assert all(np.isfinite(some).all() for some in measured(at))
        assert np.isfinite(at.jvp(drawn_changes(subject), X)).all()


LARGE = [one for one in MAPS if one.name in {*ACTIVATIONS, "no heads", "no neurons"}]
LARGE += [one for one in MAPS if one.name.startswith("norm, ")]
PLAIN = [one for one in MODELS if "gated" not in one.name]  # sums times gates overflow
LARGE += [one for one in PLAIN if "before" in one.name or one.name.startswith("FeedForward")]
LARGE += [one for one in MODELS if "of 0" in one.name or one.name == "ReluNetwork"]


@pytest.mark.parametrize("subject", LARGE, ids=repr)
def test_large_tokens(subject):
    """Of norms, networks and what is behind a norm: answers are finite, of any finite token."""
    X = 1e200 * subject.sequences()
    at = subject.linearise(X)
    assert all(np.isfinite(some).all() for some in measured(at))
    assert np.isfinite(at.jvp(drawn_changes(subject), X)).all()
    same(at.value, subject.changed(subject.tensors)(X))


def test_sizes_by_powers_of_two_change_no_bit():
    """Scores of tokens of 10¹⁵⁰ whose W is 10⁻³⁰⁰, which no square may leave."""
    draw, unit = Drawn(4), 2.0**498
    X = np.random.default_rng(0).standard_normal((2, N, D))
    for every in (False, True):
        plain = Attention(draw(2, D, D), O=draw(2, 3, D))
        scaled = replace(plain, Q=plain.Q / unit / unit)
        small, large = plain.linearise(X, every), scaled.linearise(unit * X, every)
        for mine, other in ((small.value, large.value), (small.rounding, large.rounding)):
            np.testing.assert_array_equal(unit * mine, other)
        y = np.ones((1, *small.value.shape))
        np.testing.assert_array_equal(small.vjp(y).X, large.vjp(y).X)


@pytest.mark.parametrize("size", [700.0, -700.0, 1e5, 1e160, 1e300, -1e300])
def test_extreme_scores(size):
    """One token has all the weight, and scores move nothing to first order."""
    e, v = np.eye(D)[0], np.array([1.0, 2.0, 3.0, 4.0])
    W, root = np.outer(e, e) * size, np.sqrt(abs(size))
    K, Q = (np.array([e, 0 * e]) * one for one in (root, np.sign(size) * root))
    X = np.random.default_rng(0).standard_normal((2, 3, D))
    X[:, :, 0] = [[1.0, -1.0, 0.5], [-1.0, 0.25, 0.5]]
    x = X[np.arange(2), np.argmax(size * X[:, :, 0], axis=1)]
    heads = {
        "W": us.SingleHead(W, v),
        "w": us.SingleHead(0 * W, v, size * e),
        "positions": us.RotaryHead(K, Q, v, us.Rotary([0.0])),
        "layer": us.AttentionLayer([us.LayerHead(np.diag(v), W)], np.zeros(D)),
        "network": us.Transformer(W, us.ReluNetwork(np.diag(v), np.ones(D))),
    }
    expected = {"layer": x * v, "network": np.sum(np.maximum(x * v, 0), axis=1)}
    for name, model in heads.items():
        at = model.linearise(X)
        np.testing.assert_allclose(at.value, expected.get(name, x @ v), rtol=1e-14)
        _, rounding, of_x, *norms = measured(at)
        assert all(np.isfinite(some).all() for some in (rounding, of_x, *norms))
        assert np.isfinite(at.jvp({}, np.ones_like(X))).all()
        if abs(size) > 700:
            assert np.count_nonzero(np.any(of_x[0], axis=2)) <= len(X)  # the heaviest token alone
            assert np.all(rounding < 100)


@pytest.mark.parametrize("eps", [0.0, 5e-324, 1e-310, 1e-12])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("size", [0.0, 5e-324, 1e-200, 1e-155, 1.0, 1e200, 1e307])
def test_norms_of_any_size(eps, centred, size):
    """Values and roundings are finite; derivatives may be infinite, where σ is tiny, but no NaN."""
    norm = us.LayerNorm([1.0, -2.0, 0.5, 0.0], [0.0, 1.0, 2.0, 3.0], eps, centred=centred)
    u = np.random.default_rng(0).standard_normal((2, 3, D))
    constant = size * np.ones((2, 3, D))
    for X in (size * u, constant):
        for sizes in (None, lambda X=X: 2 * np.abs(X)):
            at = norm.linearise(X, True, sizes)
            np.testing.assert_array_equal(at.value, norm(X))
            _, rounding, *derivatives = measured(at)
            assert np.isfinite(rounding).all()
            assert not any(np.isnan(some).any() for some in derivatives)
            for change in ({}, {"eps": np.array(1e-3)}, {"scale": np.ones(D)}):
                assert not np.isnan(at.jvp(change, X)).any()
    if size and eps == 0:
        expected = norm.shift if centred else norm.shift + norm.scale
        np.testing.assert_array_equal(
            norm.linearise(constant, True).value, np.broadcast_to(expected, constant.shape)
        )
