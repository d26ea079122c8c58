"""From two forms to one, and from a form to a network.

Parallel neurons are one, s·relu(z) = s·z + s·relu(−z) flips one. What is left of the affine
part after flips takes two neurons, relu(w·x) − relu(−w·x); where the neurons' weights are
linearly independent it can only be a sum of flips (Milli et al. 2019), and is found as one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.arrangement.homogeneous import Lift, PiecewiseLinear
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import Array, Flags, Indices

# Two hyperplanes are the same if 1 − |cos| is below this. Smaller: one neuron is found twice.
# Larger: two close neurons become one.
PARALLEL = 1e-9
# A neuron is removed if the correction leaves at most this share of it, or at most so many
# standard deviations. A true neuron that small is found by the next sweep.
GONE, GONE_ERRORS = 1e-5, 30.0
# A neuron is kept if it exceeds so many standard deviations, or one standard deviation and this
# share of the median neuron.
LEAST_JUMP, LEAST_SHARE = 10.0, 1e-7
# Tolerance for the share of a flip, which must be 0 or 1.
FLIPPED = 1e-6
# What flips leave of the linear part must be error: at most so many standard deviations of all
# neurons and of the affine part, or this share of the sum of their sizes.
FLIPS_LEAVE, FLIPS_ROUND = 30.0, 1e-13


def merged(form: PiecewiseLinear, rest: PiecewiseLinear) -> tuple[PiecewiseLinear, Flags]:
    """Add two forms; say which of the sum's neurons ``rest`` touched."""
    g0 = form.g0 + rest.g0
    # what is left of the affine part also makes up for the errors of neurons that were active there
    g_error = float(np.hypot(rest.g_error, np.linalg.norm(form.error)))
    touched = np.zeros(len(form), dtype=bool)
    if not len(rest):
        return replace(form, g0=g0, g_error=g_error), touched
    nearest, along = _nearest(form, rest)
    same = 1 - np.abs(along) < PARALLEL
    a, eps, error = form.a.copy(), form.eps.copy(), form.error.copy()
    for k in np.flatnonzero(same):
        j = nearest[k]
        if along[k] < 0:
            g0 = g0 + rest.eps[k] * rest.a[k]
            g_error = float(np.hypot(g_error, rest.error[k]))
        jump = eps[j] * a[j] + rest.eps[k] * np.sign(along[k]) * rest.a[k]
        error[j] = np.hypot(error[j], rest.error[k])
        # a wrong neuron is taken away whole, not left as what the errors leave of it
        gone = max(GONE * np.linalg.norm(a[j]), GONE_ERRORS * error[j])
        eps[j] = 1.0 if jump @ a[j] >= 0 else -1.0
        a[j] = eps[j] * jump * (np.linalg.norm(jump) > gone)
        touched[j] = True
    new = ~same
    whole = PiecewiseLinear(
        g0,
        np.vstack([a, rest.a[new]]),
        np.concatenate([eps, rest.eps[new]]),
        np.concatenate([error, rest.error[new]]),
        g_error,
    )
    return pruned(whole, np.concatenate([touched, np.ones(int(np.sum(new)), dtype=bool)]))


def _nearest(form: PiecewiseLinear, rest: PiecewiseLinear) -> tuple[Indices, Array]:
    """Return for each neuron of ``rest`` the most parallel one of ``form``, and their cosine."""
    unit = form.a / np.linalg.norm(form.a, axis=1, keepdims=True)
    other = rest.a / np.linalg.norm(rest.a, axis=1, keepdims=True)
    cosine = other @ unit.T if len(unit) else np.zeros((len(other), 1))
    nearest = np.argmax(np.abs(cosine), axis=1)
    return nearest, cosine[np.arange(len(other)), nearest]


def pruned(form: PiecewiseLinear, touched: Flags) -> tuple[PiecewiseLinear, Flags]:
    """Leave out neurons that are nothing but error."""
    if not len(form):
        return form, touched
    size = form.sizes
    keep = size > LEAST_SHARE * np.median(size)
    keep |= size > LEAST_JUMP * form.error
    keep &= size > form.error
    return replace(form, a=form.a[keep], eps=form.eps[keep], error=form.error[keep]), touched[keep]


def network_of(form: PiecewiseLinear, lift: Lift) -> ReluNetwork:
    """Write a form as a network with at most two neurons more."""
    d = lift.dim
    U, w = form.a[:, :d] / lift.length, form.g0[:d] / lift.length
    b = form.a[:, d] if lift.biases else np.zeros(len(U))
    c = float(form.g0[d]) if lift.biases else 0.0
    eps = form.eps
    errors = form.g_error + float(np.sum(form.error))
    error = max(FLIPS_LEAVE * errors, FLIPS_ROUND * float(np.sum(form.sizes)))
    flips = _flips(eps[:, None] * U, w, FLIPPED, error / lift.length)
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


def _flips(jumps: Array, w: Array, close: float, error: float) -> Flags | None:
    """Find the neurons whose flips make up the linear part but for its error, if some do."""
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
    if np.any(np.abs(share - whole) > close) or np.any((whole != 0) & (whole != 1)):
        return None
    return None if left > error else whole == 1
