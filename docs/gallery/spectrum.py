# %% [markdown]
# # The spectrum of a low-rank head
#
# `LowRankHead` is not told the rank. The singular values of W that it returns end where the
# target's do, and queries were asked for as many numbers as a matrix of that rank has.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

DIM, RANK = 64, 6
rng = np.random.default_rng(0)
K, Q = rng.standard_normal((2, RANK, DIM))
Q *= 0.3 ** np.arange(RANK)[:, None]  # singular values that fall by three each time
target = us.SingleHead.from_factors(K, Q, v=rng.standard_normal(DIM))
recovery = us.learn(target, us.learners.LowRankHead(DIM))
true, found = (np.linalg.svd(head.W, compute_uv=False) for head in (target, recovery.model))

# %%
figure = Figure(figsize=(7, 4), layout="constrained")
axis = figure.subplots()
axis.semilogy(np.arange(1, 17), true[:16], "o", ms=11, mfc="none", color="#c8553d", label="target")
axis.semilogy(np.arange(1, 17), found[:16], ".", ms=9, color="#1b6ca8", label="recovered")
axis.axhline(recovery.certificate.W_error, ls="--", color="0.5", label="certified error of W")
title = f"d = {DIM}, rank {RANK} found with {recovery.queries} queries; d + d² = {DIM + DIM**2}"
axis.set(xlabel="number", ylabel="singular value of W", title=title, ylim=(1e-18, 1e3))
axis.legend()
figure.savefig("spectrum.png", dpi=100)
print(f"the rank was found: {int(np.sum(found > 1e-10)) == RANK}")
