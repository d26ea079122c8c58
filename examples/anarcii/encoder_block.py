"""Both sub-layers of an antibody model's encoder, recovered and put back together.

python encoder_block.py [CHECKPOINT] [LAYER]

The block is x ↦ LayerNorm(h + B relu(A h + b) + c) with h = LayerNorm(x + attention(x)), as the
package anarcii serves it (its weights are read as in antibody_layer.py, without running a pickle).
Each sub-layer is asked by itself, vectors in and out, in float64; what is recovered of both is
then run on whole antibody sequences, every token in its place, and compared with the block itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from antibody_layer import HEADS, WEIGHTS, package_folder, read_state
from numpy.typing import NDArray

import unsoftmax as us

Array = NDArray[np.float64]

EPS = 1e-5
"""Of torch's LayerNorm, unless it is told another."""
VOCABULARY = "ACDEFGHIKLMNPQRSTVWXY"
START, END, FIRST = 1, 2, 4
"""Numbers of the tokens that begin and end a sequence, and of the first residue's."""
SEQUENCES = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAED"
    "TAVYYCAKDRLSITIRPRYYGLDVWGQGTTVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQSISSYLNWYQQKPGKAPKLLIYAASSLQSGVPSRFSGSGSGTDFTLTISSLQPEDFATYYCQQ"
    "SYSTPLTFGGGTKVEIK",
    "QVQLQQSGAELARPGASVKMSCKASGYTFTRYTMHWVKQRPGQGLEWIGYINPSRGYTNYNQKFKDKATLTTDKSSSTAYMQLSSLTSED"
    "SAVYYCARYYDDHYCLDYWGQGTTLTVSS",
)
"""Variable domains of antibodies: two of human germlines, and OKT3's heavy chain."""


def sub_layers(
    state: Mapping[str, NDArray[np.float32]], layer: str
) -> tuple[us.AttentionLayer, us.FeedForward]:
    """Return the attention and the feed-forward sub-layer, each with its residual and norm."""
    wide = {name: np.asarray(array, dtype=np.float64) for name, array in state.items()}
    projections = us.find_projections(wide, f"{layer}.self_attention.multihead_attn")
    plain = us.from_projections(**projections, heads=HEADS)
    norms = [
        us.LayerNorm(wide[f"{layer}.{name}.weight"], wide[f"{layer}.{name}.bias"], EPS)
        for name in ("self_attn_layer_norm", "ff_layer_norm")
    ]
    A, b, B, c = (
        wide[f"{layer}.positionwise_feedforward.{name}"]
        for name in ("fc_1.weight", "fc_1.bias", "fc_2.weight", "fc_2.bias")
    )
    attention = us.AttentionLayer(plain.heads, plain.c, residual=True, norm=norms[0])
    return attention, us.FeedForward(A, b, B, c, residual=True, norm=norms[1])


def embedded(state: Mapping[str, NDArray[np.float32]], sequence: str) -> Array:
    """Return what the block is given for a sequence of residues, (N, d)."""
    tokens = [START, *(FIRST + VOCABULARY.index(residue) for residue in sequence), END]
    embeddings = np.asarray(state["encoder.tok_embedding.weight"], dtype=np.float64)
    positions = np.asarray(state["encoder.pos_embedding.weight"], dtype=np.float64)
    return np.asarray(embeddings[tokens] * np.sqrt(embeddings.shape[1]) + positions[: len(tokens)])


def block(attention: us.AttentionLayer, network: us.FeedForward, x: Array) -> Array:
    """Run a block on all tokens of a sequence (N, d): each is the last one in its turn."""
    n = len(x)
    turned = np.array([np.vstack([np.delete(x, i, axis=0), x[i]]) for i in range(n)])
    return network(attention(turned))


def recovered(target: us.AttentionLayer | us.FeedForward, learner: object) -> object:
    """Learn a sub-layer from its answers alone, and say what it took."""
    start = time.process_time()
    recovery = us.learn(lambda X: target(X), learner)  # type: ignore[arg-type]
    seconds = time.process_time() - start
    print(f"{recovery.model}: {recovery.queries} queries, {seconds:.0f} s")
    return recovery.model


def compared(checkpoint: Path, layer: str) -> float:
    """Recover both sub-layers of a checkpoint; return by how much the block's outputs differ."""
    state = read_state(checkpoint)
    attention, network = sub_layers(state, layer)
    d = attention.dim
    found = (
        recovered(attention, us.learners.AttentionLayerLearner(d, norm="post")),
        recovered(network, us.learners.FeedForwardLearner(d, norm="post")),
    )
    off = 0.0
    for sequence in SEQUENCES:
        x = embedded(state, sequence)
        before, after = block(attention, network, x), block(*found, x)  # type: ignore[arg-type]
        off = max(off, float(np.max(np.abs(after - before))))
    return off


def main(checkpoint: str = "", layer: str = "encoder.layers.0") -> None:
    """Compare the block before and after."""
    path = package_folder().joinpath("models", checkpoint) if checkpoint else None
    off = compared(path or package_folder().joinpath(*WEIGHTS), layer)
    print(f"outputs of the block on {len(SEQUENCES)} antibody sequences differ by {off:.1e}")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
