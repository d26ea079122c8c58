# %% [markdown]
# # Theorem B.1: labels against bits
#
# An oracle says only whether f(X) > 0. Theorem B.1 of arXiv 2601.16873 averages labels of single
# tokens for v and bisects for W; the average needs k ∝ 1/ε_v² labels with ε_v ∝ μ³ε_W. Bisection of
# everything asks about one label per bit of a parameter. Here are both counts by the bits of W that
# they buy, ε_W = ‖W‖·2^-bits, and runs that show what was got: the theorem's own algorithm at d = 2
# with all of its samples, and with a stated share of them where all would take days.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

NORM = 2.0
DIMS, BITS = (2, 8, 32), (4, 8, 16, 24, 32, 40, 50)


# %%
def head(dim, seed):
    """‖W‖_F = 2, ‖v‖ = 1, entries of v of one size: the theorem's best case."""
    rng = np.random.default_rng([dim, seed])
    W, signs = rng.standard_normal((dim, dim)), rng.choice([-1.0, 1.0], dim)
    return us.SingleHead(NORM * W / np.linalg.norm(W), signs / np.sqrt(dim))


def run(learner):
    """Labels asked, and bits of W that are right: the median of three heads."""
    right = []
    for seed in range(3):
        target = head(learner.dim, seed)
        recovery = us.learn(us.oracles.labels(target), learner)
        off = np.linalg.norm(recovery.model.W - target.W)
        assert off <= recovery.certificate.W_error
        right.append(np.log2(NORM / off))
    return recovery.queries, np.median(right)


def paper(dim, bits, share=1.0):
    """Theorem B.1 with δ = 0.01 and μ just below 1/√d."""
    return us.learners.LabelHead(
        dim,
        bits,
        norm_bound=NORM,
        margin=0.99 / np.sqrt(dim),
        method="paper",
        failure=0.01,
        sample_share=share,
    )


# %%
bisected = {d: [run(us.learners.LabelHead(d, bits)) for bits in BITS] for d in DIMS}
promised = {d: [paper(d, bits).plan().queries for bits in BITS] for d in DIMS}
whole = run(paper(2, 1))
shares = [run(paper(2, 6, share)) for share in (1e-6, 1e-5, 1e-4)]

# %%
figure = Figure(figsize=(7, 5), layout="constrained")
axis = figure.subplots()
for d, colour in zip(DIMS, ("#1b6ca8", "#4c956c", "#c8553d"), strict=True):
    labels, right = np.array(bisected[d]).T
    axis.semilogy(right, labels, "o-", color=colour, label=f"bisection, d = {d}")
    axis.semilogy(BITS, promised[d], "--", color=colour, label=f"Theorem B.1 promises, d = {d}")
axis.semilogy([whole[1]], [whole[0]], "*", ms=13, color="k", label="Theorem B.1 run, d = 2")
axis.semilogy(
    [bits for _, bits in shares],
    [labels for labels, _ in shares],
    "x",
    ms=9,
    mew=2,
    color="k",
    label="with 1e-6 to 1e-4 of its samples for 6 bits",
)
axis.set(
    xlabel="bits of W: log₂ of its norm over its error's, got or promised",
    ylabel="labels",
    title="LabelHead: what a bit of W costs",
    ylim=(50, 1e64),
)
axis.grid(alpha=0.3)
axis.legend(loc="upper left")
figure.savefig("curve_b_1.png", dpi=100)

# %%
per_bit = bisected[32][-1][0] / 50 / (32 * 32 + 32)
print(f"bisection, d = 32: {per_bit:.2f} labels per bit and parameter")
print(f"the theorem at d = 2 got {whole[1]:.1f} bits, and promised 1: {whole[1] >= 1}")
