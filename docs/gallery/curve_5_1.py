# %% [markdown]
# # Theorem 5.1: measurements against error
#
# A head whose W has rank r has r(2d − r) free parameters there. Theorem 5.1 of arXiv 2601.16873
# reads a_k·(W b_k) for Gaussian a_k and b_k, one query each, and takes the matrix of least nuclear
# norm that agrees with all of them: O(rd) measurements are enough. How many are, is an experiment:
# below about two per parameter the matrix of least norm is another one, above it is W to 1e-15.
# `SensingHead` refuses what may be another matrix, and hands it back with the refusal, as
# `.determined["least_norm_W"]`. `LowRankHead` chooses its questions as the answers come, and needs
# one per parameter: the dashed line.
#
# ![Share of heads recovered, and errors, by measurements per parameter](curve_5_1.png)

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

DIM, SEEDS = 16, 8
SHARES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0)

# %% [markdown]
# Heads that the learner sees as a function alone; and what a recovery's error is.


# %%
def head(rank, seed):
    """W = KᵀQ with Gaussian factors, v Gaussian."""
    rng = np.random.default_rng([rank, seed])
    K, Q = rng.standard_normal((2, rank, DIM))
    return us.SingleHead.from_factors(K, Q, v=rng.standard_normal(DIM))


def attempt(rank, measurements, seed):
    """Learn from so many measurements: was W refused, and the error of the matrix of least norm."""
    target = head(rank, seed)
    learner = us.learners.SensingHead(DIM, rank, measurements=measurements, seed=seed)
    try:
        W, refused = us.learn(target, learner).model.W, False
    except us.NotIdentifiable as refusal:
        W, refused = refusal.determined["least_norm_W"], True
    return refused, np.linalg.norm(W - target.W) / np.linalg.norm(target.W)


# %%
attempts = {}
for rank in (1, 2, 3):
    free = rank * (2 * DIM - rank)
    for share in SHARES:
        attempts[rank, share] = [attempt(rank, round(share * free), seed) for seed in range(SEEDS)]

# %% [markdown]
# Above: the share of heads recovered. Below: the error of the matrix of least norm, a dot where it
# was returned as W, a cross where it was refused.

# %%
figure = Figure(figsize=(7, 6.5), layout="constrained")
above, below = figure.subplots(2, 1, sharex=True)
for rank, colour in zip((1, 2, 3), ("#1b6ca8", "#c8553d", "#4c956c"), strict=True):
    refused, errors = np.moveaxis([attempts[rank, share] for share in SHARES], 2, 0)
    refused = refused.astype(bool)
    above.plot(SHARES, 1 - refused.mean(axis=1), "o-", color=colour, label=f"r = {rank}")
    x = np.add.outer(SHARES, 0.03 * (rank - 2) + np.zeros(SEEDS))
    below.semilogy(x[~refused], errors[~refused], "o", color=colour, alpha=0.5)
    below.semilogy(x[refused], errors[refused], "x", color=colour, alpha=0.5)
for axis in (above, below):
    axis.axvline(1.0, color="0.5", linestyle="--")
    axis.grid(alpha=0.3)
above.annotate("LowRankHead", (1.03, 0.4), color="0.4")
above.set(ylabel="share of heads recovered", title=f"SensingHead, d = {DIM}, {SEEDS} heads each")
above.legend()
below.annotate("refused", (2.85, 0.1), color="0.4")
below.annotate("returned as W", (1.05, 1e-13), color="0.4")
below.set(xlabel="measurements per free parameter of W", ylabel="relative error of Ŵ")
below.set_ylim(1e-16, 30)
figure.savefig("curve_5_1.png", dpi=100)

# %%
runs = {at: np.array(outcome) for at, outcome in attempts.items()}
always = min(s for s in SHARES if not any(runs[rank, s][:, 0].any() for rank in (2, 3)))
refused, errors = np.concatenate([*runs.values()]).T
print(f"worst error of W where it was returned: {errors[refused == 0].max():.0e}")
print(f"least error of what was refused: {errors[refused == 1].min():.0e}")
print(f"r = 2 and 3 always recovered from {always} measurements per parameter: {always <= 3}")
