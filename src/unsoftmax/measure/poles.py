"""Logits of several heads along one line of offsets, from the poles of the answers.

Along offsets λe, with n copies of λe + b and one b, ℓ = ln n, answers are

    y(λ) = Σ_h λ w_h (σ(λ t_h + ℓ) − σ(ℓ)) + what is linear in λ,    t_h = e·u_h, w_h = e·v_h

a function of one variable with poles where λ t_h = −ℓ + iπ(2k + 1), and residues λ w_h / t_h
there. The poles of k = 0 and k = −1, nearest to the real axis, lie on the rays of slope ±π/ℓ;
those of another k on steeper ones. So a pole on these rays is a head, whatever the others are:
heads whose gates switch at the same place on every line (t and 2t, t and −t) have different
poles. A rational approximation (AAA) of moderate logits finds the poles; nothing is saturated.

Where a pole is off its ray, or a weight is not real, the reading is in error by as much. Nothing
is asked or refused here.

Source: Nakatsukasa, Sète, Trefethen, The AAA algorithm for rational approximation, 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from unsoftmax.probes import Array

Complex = NDArray[np.complex128]

# Accuracy of the approximation, relative to the largest value: finer ones follow rounding, with
# pairs of a pole and a zero all over the line.
FINEST = 1e-13
# The same in units of the answers' error; the larger of the two counts.
NOISES = 2.0
# Terms of the approximation at most: four heads take 15 to 30.
TERMS = 100
# A pole may be off its ray by this share of its size: those of slow heads of small values are
# rough, and those of the next k are off by 0.22.
OFF_RAY = 0.15


@dataclass(frozen=True, slots=True)
class GatePoles:
    """Heads along a line, the surest first.

    Attributes
    ----------
    rate, weight : ndarray (m,)
        t_h and w_h.
    rate_error, weight_error : ndarray (m,)
        How far a pole is off its ray, and a weight off the real axis.

    Examples
    --------
    >>> x = np.linspace(-12, 12, 200)
    >>> gate = lambda t: x * (3 / (3 + np.exp(-t * x)) - 0.75)
    >>> heads = read_poles(x, 2 * gate(1.0) - 5 * gate(2.0), np.log(3.0), np.full(200, 1e-14))
    >>> heads.rate[:2].round(5).tolist(), heads.weight[:2].round(4).tolist()
    ([2.0, 1.0], [-5.0, 2.0])
    """

    rate: Array
    weight: Array
    rate_error: Array
    weight_error: Array

    def __len__(self) -> int:
        return len(self.rate)


def read_poles(offsets: Array, y: Array, shift: float, noise: Array) -> GatePoles:
    """Read rates and weights off answers y (n,) at offsets λ (n,).

    ``shift`` is ℓ > 0, ``noise`` (n,) what the answers may be off by.
    """
    largest = float(np.max(np.abs(y)))
    if not largest > 0:
        return GatePoles(*np.zeros((4, 0)))
    finest = max(FINEST, NOISES * float(np.median(noise)) / largest)
    poles, residues = _poles_of(*_approximation(offsets, y, finest * largest, TERMS))
    upper = (poles.imag > 0) & (poles.real != 0)
    poles, residues = poles[upper], residues[upper]
    towards = -np.sign(poles.real) * 1j * np.pi - shift  # t times the pole, if it is a head's
    rate = np.real(towards * poles.conj()) / np.abs(poles) ** 2
    off = np.abs(towards - rate * poles) / np.abs(towards)
    order = np.argsort(off)[: np.count_nonzero(off < OFF_RAY)]
    weight = (residues * rate / poles)[order]
    rate = rate[order]
    return GatePoles(rate, weight.real, np.abs(rate) * off[order], np.abs(weight.imag))


def _approximation(x: Array, y: Array, error: float, terms: int) -> tuple[Array, Array, Array]:
    """Return support points z, values f and weights w of Σ w f/(x−z) / Σ w/(x−z) (AAA)."""
    rest = np.ones(len(x), dtype=bool)
    missed = np.abs(y - np.mean(y))
    z = f = w = np.zeros(0)
    while len(z) < min(terms, len(x) // 2):
        new = int(np.argmax(missed))
        rest[new] = False
        z, f = np.append(z, x[new]), np.append(f, y[new])
        cauchy = 1 / (x[rest, None] - z)
        loewner = (y[rest, None] - f) * cauchy
        w = np.linalg.svd(loewner, full_matrices=False)[2][-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            values = (cauchy @ (w * f)) / (cauchy @ w)
        missed = np.zeros(len(x))
        missed[rest] = np.nan_to_num(np.abs(y[rest] - values), nan=np.inf)
        if np.max(missed) <= error:
            break
    return z, f, w


def _poles_of(z: Array, f: Array, w: Array) -> tuple[Complex, Complex]:
    """Return poles and residues: roots of Σ w/(λ−z) are eigenvalues of an arrowhead pencil."""
    arrow = np.diag(np.append(0.0, z))
    arrow[0, 1:], arrow[1:, 0] = w, 1.0
    finite = np.diag(np.append(0.0, np.ones(len(z))))
    top, bottom = scipy.linalg.eigvals(arrow, finite, homogeneous_eigvals=True)
    ends = np.abs(bottom) > 0
    poles = np.asarray(top[ends] / bottom[ends], dtype=np.complex128)
    poles = poles[np.isfinite(poles) & (poles.imag != 0)]
    cauchy = 1 / (poles[:, None] - z)
    return poles, np.asarray((cauchy @ (w * f)) / -(cauchy**2 @ w))
