"""Recover a whole feed-forward layer of all-MiniLM-L6-v2 from its answers, and put it back.

python feed_forward_layer.py [LAYER] [FOLDER] [alone]

A function answers single tokens as the model serves layer LAYER: with n(x + F(x)) in float64, n the
LayerNorm behind it, F(x) = B gelu(A x + b) + c of 1,536 neurons in 384 dimensions. The learner is
told d = 384 alone. What it finds is written to FOLDER (demo-feed-forward), and takes the layer's
place in the model, which embeds ten sentences with it. With the word "alone" answers are F(x): that
takes six minutes of a processor, and the other less than two.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from sentence_embeddings import MiniLM, main, package_folder

import unsoftmax as us


def recover(place: str = "0", folder: str = "demo-feed-forward", how: str = "served") -> None:
    """Recover a layer, print what it took and how far off it is, and put it back."""
    model = MiniLM(dict(us.load_weights(package_folder() / "model.safetensors")))
    hidden, began = model.feed_forward(int(place), how == "served"), time.process_time()
    recovery = us.learn(hidden, us.learners.FeedForwardLearner(hidden.dim))
    seconds, found = time.process_time() - began, recovery.model
    recovery.save(folder)
    x = np.random.default_rng(1).standard_normal((1000, hidden.dim))
    missed = np.linalg.norm(found(x) - hidden(x), axis=1) / np.linalg.norm(hidden(x), axis=1)
    print(f"{found}: {recovery.queries:,} questions, {seconds:.0f} seconds of processor time.")
    print(f"A thousand fresh answers: relative errors of {missed.max():.1e} at most.")
    main(f"{folder}/model.safetensors", place)


if __name__ == "__main__":
    recover(*sys.argv[1:])
