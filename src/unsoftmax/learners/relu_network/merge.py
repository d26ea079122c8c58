"""From a form to a network, and from two forms to one.

Parallel neurons are one, s·relu(z) = s·z + s·relu(−z) flips one. What is left of the affine
part after flips takes two neurons, relu(w·x) − relu(−w·x); where the neurons' weights are
linearly independent it can only be a sum of flips (Milli et al. 2019), and is found as one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unsoftmax.arrangement.lift import Form, Lift
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array

Flags = NDArray[np.bool_]

_PARALLEL = 1e-9  # 1 − |cos|: hyperplanes of what is left over that are those known already
_FLIPPED = 1e-6  # how close to 0 or 1 the share of a flip must be
# What is left of a neuron that another sweep takes away; a true one that small shows in the next.
_GONE, _GONE_ERRORS = 1e-5, 30.0
# A neuron counts if it is 10 deviations large, or one deviation and no 10⁻⁷ of the others.
_LEAST_JUMP, _LEAST_SHARE = 10.0, 1e-7


def merged(form: Form, rest: Form) -> tuple[Form, Flags]:
    """Add two forms; say which of the sum's neurons ``rest`` touched."""
    # what is left of the affine part also makes up for the errors of neurons that were active there
    g_error = float(np.hypot(rest.g_error, np.linalg.norm(form.error)))
    if not len(rest.a):
        whole = replace(form, g0=form.g0 + rest.g0, g_error=g_error)
        return whole, np.zeros(len(form.a), dtype=bool)
    unit = form.a / np.linalg.norm(form.a, axis=1, keepdims=True)
    other = rest.a / np.linalg.norm(rest.a, axis=1, keepdims=True)
    cosine = other @ unit.T if len(unit) else np.zeros((len(other), 1))
    nearest = np.argmax(np.abs(cosine), axis=1)
    along = cosine[np.arange(len(other)), nearest]
    same = 1 - np.abs(along) < _PARALLEL
    g0, a, eps, error = form.g0 + rest.g0, form.a.copy(), form.eps.copy(), form.error.copy()
    touched = np.zeros(len(a), dtype=bool)
    for k in np.flatnonzero(same):
        j = nearest[k]
        if along[k] < 0:
            g0 = g0 + rest.eps[k] * rest.a[k]
            g_error = float(np.hypot(g_error, rest.error[k]))
        jump = eps[j] * a[j] + rest.eps[k] * np.sign(along[k]) * rest.a[k]
        error[j] = np.hypot(error[j], rest.error[k])
        # a wrong neuron is taken away whole, not left as what the errors leave of it
        gone = max(_GONE * np.linalg.norm(a[j]), _GONE_ERRORS * error[j])
        eps[j] = 1.0 if jump @ a[j] >= 0 else -1.0
        a[j] = eps[j] * jump * (np.linalg.norm(jump) > gone)
        touched[j] = True
    new = ~same
    whole = Form(
        g0,
        np.vstack([a, rest.a[new]]),
        np.concatenate([eps, rest.eps[new]]),
        np.concatenate([error, rest.error[new]]),
        g_error,
    )
    return pruned(whole, np.concatenate([touched, np.full(np.sum(new), True)]))


def pruned(form: Form, touched: Flags) -> tuple[Form, Flags]:
    """Leave out neurons that are nothing but error."""
    if not len(form.a):
        return form, touched
    size = np.linalg.norm(form.a, axis=1)
    keep = (size > _LEAST_SHARE * np.median(size)) | (size > _LEAST_JUMP * form.error)
    keep &= size > form.error
    return replace(form, a=form.a[keep], eps=form.eps[keep], error=form.error[keep]), touched[keep]


def network_of(form: Form, lift: Lift) -> ReluNetwork:
    """Write a form as a network with at most two neurons more."""
    d = lift.dim
    U, w = form.a[:, :d] / lift.length, form.g0[:d] / lift.length
    b = form.a[:, d] if lift.biases else np.zeros(len(U))
    c = float(form.g0[d]) if lift.biases else 0.0
    eps = form.eps
    flips = _flips(eps[:, None] * U, w)
    linear = w
    if flips is not None:
        c += float(np.sum((eps * b)[flips]))
        sign = np.where(flips, -1.0, 1.0)
        U, b, linear = sign[:, None] * U, sign * b, np.zeros(d)
    if np.linalg.norm(linear) * lift.length <= form.g_error:
        linear = np.zeros(d)
    if np.any(linear):
        U = np.vstack([U, linear, -linear])
        b, eps = np.concatenate([b, [0.0, 0.0]]), np.concatenate([eps, [1.0, -1.0]])
    return ReluNetwork(U.T, eps, b, c)


def _flips(jumps: Array, w: Array) -> Flags | None:
    """Find the neurons whose flips make up the linear part, if there are some that do."""
    if not len(jumps) or len(jumps) > jumps.shape[1] or not np.any(w):
        return None
    # neurons of unlike size count alike
    size = np.linalg.norm(jumps, axis=1)
    share, _, rank, _ = np.linalg.lstsq((jumps / size[:, None]).T, -w, rcond=1e-10)
    if rank < len(jumps):
        return None
    share = share / size
    whole = np.round(share)
    left = np.linalg.norm(w + whole @ jumps)
    if np.any(np.abs(share - whole) > _FLIPPED) or np.any((whole != 0) & (whole != 1)):
        return None
    return None if left > _FLIPPED * np.linalg.norm(w) else whole == 1
