"""Answers straight from the formulas, token by token, by what autograd differentiates.

Written apart from `unsoftmax.models`, with loops in place of products of stacks: values,
derivatives (`autograd`) and errors of float32 arithmetic of the maps are held against these. Every
function takes one sequence x (N, d); arrays are in a dictionary by name, as `arrays` and `tensors`
name them, and of any dtype.
"""

import autograd.numpy as np
from autograd.scipy.special import erf, expit

from unsoftmax.models import LayerNorm
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition
from unsoftmax.models.neurons import Neurons

ACTIVATIONS = {
    "relu": lambda z: np.where(z > 0, z, 0 * z),
    "gelu": lambda z: z * (1 + erf(z / 2**0.5)) / 2,
    "gelu_tanh": lambda z: z / 2 * (1 + np.tanh((2 / 3.141592653589793) ** 0.5 * _cubic(z))),
    "silu": lambda z: z * expit(z),
    "quick_gelu": lambda z: z * expit(1.702 * z),
    "sigmoid": expit,
    "tanh": np.tanh,
    "softplus": lambda z: np.where(z > 0, z, 0 * z) + np.log1p(np.exp(-np.abs(z))),
    "identity": lambda z: z,
}


def _cubic(z):
    return z + 0.044715 * z * z * z


def pooled(x, tokens, score):
    """Pool the first tokens of a sequence, weighed by the softmax of score(i)."""
    scores = np.array([score(i) for i in range(tokens)])
    e = np.exp(scores - np.max(scores))
    alpha = e / np.sum(e)
    whole = alpha[0] * x[0]
    for i in range(1, tokens):
        whole = whole + alpha[i] * x[i]
    return whole


def turned(z, angles):
    """Turn pairs of coordinates (a, b) to (a cos − b sin, a sin + b cos)."""
    a, b, cosine, sine = z[0::2], z[1::2], np.cos(angles), np.sin(angles)
    return np.stack([cosine * a - sine * b, sine * a + cosine * b], axis=1).reshape(-1)


def rotary_score(x, p, K, Q, k_bias, q_bias, theta):
    """Return the score of token i at position p: (K x_i + b_k)·R(p − i)(Q x_p + b_q)."""
    query = Q @ x[p] + q_bias
    return lambda i: np.dot(K @ x[i] + k_bias, turned(query, (p - i) * theta))


def normalised(u, scale, shift, eps, centred=True):
    """Return shift + scale ⊙ (u − mean u)/√(var u + eps) of one token."""
    if centred:
        u = u - np.sum(u) / len(u)
    return shift + scale * u / np.sqrt(np.sum(u * u) / len(u) + eps)


# -- maps, at every position


def answers(part, t, x):
    """Return a map's answers at all positions, (N, m); its arrays are those of ``t``."""
    if isinstance(part, Composition):
        y = x
        for name, inner in part.parts:
            prefix = f"{name}." if name else ""
            own = {n[len(prefix) :]: array for n, array in t.items() if n.startswith(prefix)}
            y = answers(inner, own, y)
        return y + x if part.residual else y
    one = {Attention: _attention, Neurons: _neurons, LayerNorm: _norm}[type(part)]
    return np.stack([one(part, t, x, p) for p in range(len(x))])


def _attention(part, t, x, p):
    """Every array may be left out; W and M count beside what stands in their place."""
    tokens, groups = p + 1 if part.causal else len(x), part.groups
    answer = 0 * x[p, :1] if "c" not in t else t["c"]
    if "R" in t:
        answer = answer + t["R"] @ x[p]
    for h in range(len(t["Q"])):
        g = h if groups is None else groups[h]
        query = t["Q"][h] @ x[p]
        query = query + t["q_bias"][h] if "q_bias" in t else query
        query = _qk_normalised(part, t, "q_scale", query)

        def score(i, h=h, g=g, query=query):
            key = t["K"][g] @ x[i] if "K" in t else x[i]
            key = key + t["k_bias"][g] if "k_bias" in t else key
            key = _qk_normalised(part, t, "k_scale", key)
            met = turned(query, (p - i) * t["frequencies"][g]) if "frequencies" in t else query
            whole = np.dot(key, met)
            whole = whole + np.dot(t["w"][h], x[i]) if "w" in t else whole
            whole = whole + t["scores"][h, p, i] if "scores" in t else whole
            return whole + np.dot(x[i], t["W"][h] @ x[p]) if "W" in t else whole

        mean = pooled(x, tokens, score)
        read = t["V"][g] @ mean if "V" in t else mean
        answer = answer + (t["O"][h] @ read if "O" in t else read)
        answer = answer + t["M"][h] @ mean if "M" in t else answer
    return answer


def _qk_normalised(part, t, scale, u):
    return normalised(u, t[scale], 0.0, part.qk_eps, centred=False) if scale in t else u


def _neurons(part, t, x, p):
    phi = ACTIVATIONS[part.activation]
    z = (t["A"] @ x[p] if "A" in t else x[p]) + t["a"]
    h = phi(t["G"] @ x[p] + t["g"]) * z if "G" in t else phi(z)
    return t["B"] @ h + t["c"]


def _norm(part, t, x, p):
    return normalised(x[p], t["scale"], t["shift"], t["eps"], part.centred)


# -- models, at the last position, by the names of their tensors


def score(x, W, w):
    """Return the score of token i: x_i·(W x_N + w)."""
    u = W @ x[-1] + w
    return lambda i: np.dot(x[i], u)


def heads(t, x, count=None):
    """Return Σ_h Σ_i α_hi x_i·v_h + c; of one head without ``count``."""
    answer = t["c"]
    for of in _named(count):
        answer = answer + np.dot(pooled(x, len(x), score(x, t[f"W{of}"], t[f"w{of}"])), t[f"v{of}"])
    return answer


def rotary_heads(t, x, count=None):
    """Return the same where scores turn with distance."""
    answer = t["c"]
    for of in _named(count):
        parts = (t[f"{name}{of}"] for name in ("K", "Q", "k_bias", "q_bias", "frequencies"))
        mean = pooled(x, len(x), rotary_score(x, len(x) - 1, *parts))
        answer = answer + np.dot(mean, t[f"v{of}"])
    return answer


def _named(count):
    return [""] if count is None else [f" of head {h}" for h in range(count)]


def network(t, x):
    """Return relu(x A + b)·w_o + c of the last token."""
    return np.dot(ACTIVATIONS["relu"](x[-1] @ t["A"] + t["b"]), t["w_o"]) + t["c"]


def transformer(t, x):
    """Return the network of the pooled token."""
    own = {name.removeprefix("network."): array for name, array in t.items()}
    mean = pooled(x, len(x), score(x, t["W"], t["w"]))
    return network(own, np.stack([mean]))


def heads_before_a_network(t, x, count):
    """Return Σ_j w_o,j relu(Σ_h B_h pool_h + R x_N + b)_j + c."""
    z = t["b"] + (t["residual"] @ x[-1] if "residual" in t else 0 * t["b"])
    for of in _named(count):
        z = z + t[f"B{of}"] @ pooled(x, len(x), score(x, t[f"W{of}"], t[f"w{of}"]))
    return np.dot(ACTIVATIONS["relu"](z), t["w_o"]) + t["c"]


def sublayer(inside, t, x, residual, norm):
    """Return what is inside with the norm before or behind, and the residual."""

    def normed(u):
        scale, shift, eps = (t[f"{name} of the norm"] for name in ("scale", "shift", "eps"))
        return normalised(u, scale, shift, eps, norm.centred)

    answer = inside(t, np.stack([normed(token) for token in x]) if norm and norm.before else x)
    answer = answer + x[-1] if residual else answer
    return normed(answer) if norm and not norm.before else answer


def attention_layer(t, x, count):
    """Return Σ_h M_h pool_h + c."""
    answer = t["c"]
    for of in _named(count):
        mean = pooled(x, len(x), score(x, t[f"W{of}"], t[f"w{of}"]))
        answer = answer + t[f"M{of}"] @ mean
    return answer


def rotary_layer(t, x, groups, residual):
    """Return Σ_h O_h V_g pool_h + c, + x_N with a residual."""
    answer = t["c"] + x[-1] if residual else t["c"]
    for h, g in enumerate(groups):
        K, k_bias, V = (t[f"{name} of group {g}"] for name in ("K", "k_bias", "V"))
        Q, q_bias, O = (t[f"{name} of head {h}"] for name in ("Q", "q_bias", "O"))  # noqa: E741
        theta = t["frequencies"]
        mean = pooled(x, len(x), rotary_score(x, len(x) - 1, K, Q, k_bias, q_bias, theta))
        answer = answer + O @ (V @ mean)
    return answer


def feed_forward(t, x, activation):
    """Return B φ(A x_N + b) + c, or B (φ(G x_N + g) ⊙ (A x_N + b)) + c."""
    phi, z = ACTIVATIONS[activation], t["A"] @ x[-1] + t["b"]
    return t["B"] @ (phi(t["G"] @ x[-1] + t["g"]) * z if "G" in t else phi(z)) + t["c"]
