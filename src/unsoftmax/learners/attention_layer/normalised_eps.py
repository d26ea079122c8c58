"""Step 7 behind a LayerNorm: eps, from 10 single tokens.

Tokens x0 + tδ with P((I + M)x0 + c) = 0 give u of any variance v, and ‖n‖² = d·v/(v + eps).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.attention_layer.normalised_tuning import EpsTuning
from unsoftmax.learners.attention_layer.readout import DirectionMap
from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array, Singles


@dataclass(frozen=True, slots=True)
class EpsRound:
    """Tokens (n, d), and their answers (the field that begins with y)."""

    tokens: Array
    y: Array


def find_eps(frame: DirectionMap, rng: np.random.Generator, tuning: EpsTuning) -> Asking[EpsRound]:
    """Ask tokens at which u is small."""
    still = -np.linalg.lstsq(frame.M, frame.c, rcond=None)[0]
    direction = rng.standard_normal(frame.dim)
    moved = frame.norm.centred(frame.M @ direction)
    lengths = np.sqrt(np.array(tuning.variances)) / np.sqrt(np.mean(moved**2))
    # as float32 sees them; where they are rounded to is known
    tokens = (still + lengths[:, None] * direction).astype(np.float32).astype(np.float64)
    [y] = yield [Singles(tokens, phase="eps", purpose="data")]
    return EpsRound(tokens, y)


def read_eps(frame: DirectionMap, asked: EpsRound, tuning: EpsTuning) -> tuple[float, float]:
    """Read eps where the variance is known best beside it, and about what it is off by."""
    u = frame.norm.centred(frame.known(asked.tokens).T)
    n = frame.norm.gain * (asked.y - frame.norm.shift)
    variance, length = np.mean(u**2, axis=0), np.mean(n**2, axis=1)
    eps = variance * (1 / length - 1)
    # u is off by a share of the token's length, n by a share of itself
    noise = frame.noise * np.sqrt(frame.dim)
    off = noise * np.sqrt(np.mean(asked.tokens**2, axis=1) + np.mean(frame.c**2))
    error = 2 * (off / np.sqrt(variance) * np.abs(eps) + noise * (variance + np.abs(eps)))
    best = int(np.argmin(np.where(eps > 0, error / np.maximum(eps, 1e-300), np.inf)))
    told = eps[best] > tuning.told * error[best]
    return float(eps[best]) if told else 0.0, float(error[best])
