"""Crossings of single hyperplanes, of directions: which met another one on the way."""

import numpy as np

from tests.truth import driven
from unsoftmax.learners.feed_forward.hyperplane_spots import BEHIND, DirectionSpots
from unsoftmax.learners.feed_forward.search_steps import MOVED


def test_crossings_of_other_hyperplanes_are_known_by_their_answers(trials):
    """Of rows that are off; by signs, which no answer tells, for what is right."""
    astray, (m, d) = [], (60, 12)
    for seed in range(trials(3, 100)):
        rng = np.random.default_rng(seed)
        A, b = rng.standard_normal((m, d)), rng.standard_normal(m)
        B, c = rng.standard_normal((d, m)), rng.standard_normal(d)

        def ask(x, A=A, b=b, B=B, c=c):
            yield from ()
            u = x + np.maximum(x @ A.T + b, 0) @ B.T + c
            return u / np.linalg.norm(u, axis=1, keepdims=True)

        off = 10.0 ** rng.uniform(-6, 0, (m, 1))
        rows, bias = A + off * rng.standard_normal((m, d)), b + off[:, 0] * rng.standard_normal(m)
        search = DirectionSpots(ask, rows, bias, 1.0, lambda x: np.full(len(x), 1e-15), rng)
        seen, _ = driven(search.run(), ask)
        shares = np.array([-1.0, BEHIND, 0.0, 1.0])[:, None]
        places = seen.points[:, None] + shares * seen.ways[:, None]
        steps = np.diff(places @ A.T + b > 0, axis=1)  # neurons, three steps, hyperplanes crossed
        right = (np.sum(steps, axis=(1, 2)) == 1) & np.any(steps[:, 1], axis=1)
        np.testing.assert_array_equal(seen.astray, ~right)
        columns, error = (one[right] for one in seen.columns)
        true = B[:, np.argmax(steps[right, 1], axis=1)].T
        sine = columns - true * (np.sum(columns * true, axis=1) / np.sum(true**2, axis=1))[:, None]
        assert np.all(np.linalg.norm(sine, axis=1) <= MOVED * error)
        astray.append(np.sum(~right))
    assert 0 < np.mean(astray) < m
