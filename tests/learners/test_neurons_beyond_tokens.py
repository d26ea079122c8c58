"""Neurons that no single token shows: their kinks are told from gates that open slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.learners.multi_head_transformer.neurons_beyond_tokens import (
    unseen_neuron,
)


def layer(seed, change):
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        "W": rng.standard_normal((3, 4, 4)) / 2,
        "B": rng.standard_normal((3, 6, 4)) / 2,
        "w_o": rng.standard_normal(6),
        "b": rng.standard_normal(6),
        "w": rng.standard_normal((3, 4)),
    }
    change(arrays)
    return us.MultiHeadTransformer(**arrays)


def shown(model):
    """What the rays of a cell tell, by hand."""
    network = us.ReluNetwork(*(model.on_single_tokens.arrays()[name] for name in ("A", "w_o", "b")))
    hinges = NetworkHinges.of(network)
    hinges = NetworkHinges(
        hinges.linear,
        hinges.c,
        *(x[np.linalg.norm(hinges.A, axis=1) > 1e-9] for x in (hinges.A, hinges.b, hinges.signs)),
    )
    x = np.random.default_rng(1).standard_normal((4096, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    best = x[np.argmax(hinges.margin(x))]
    steps = unseen_neuron(hinges, best, np.random.default_rng(2))
    asked = next(steps)
    while True:
        try:
            asked = steps.send([model(probes[:]) for probes in asked])
        except StopIteration as end:
            return end.value


def cancelling(arrays):
    arrays["B"][0, 0] -= arrays["B"][:, 0].sum(axis=0)


def weak(arrays):
    """Gates that open about where rays begin to be asked, and within them."""
    arrays["W"] *= 10.0 ** -np.array([4.0, 6.0, 8.0])[:, None, None]


def steep(arrays):
    """A neuron whose first layers nearly cancel shows at single tokens, far out."""
    arrays["B"][0, 0] -= 0.99 * arrays["B"][:, 0].sum(axis=0)


@pytest.mark.parametrize(
    ("change", "there"), [(cancelling, True), (weak, False), (steep, False), (len, False)]
)
def test_only_a_neuron_that_single_tokens_do_not_show_is_told(change, there):
    assert [shown(layer(seed, change)) for seed in range(8)].count(there) >= 8 - there
