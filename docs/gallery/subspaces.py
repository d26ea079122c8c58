# %% [markdown]
# # Heads in orthogonal subspaces
#
# Three heads, each in a subspace of its own, seen from outside: the Hessian of the answers at one
# query token fills the whole matrix. In the basis of the subspaces that `OrthogonalHeads` finds
# it is three blocks, whatever the query token.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

DIM, SIZES = 12, (3, 4, 5)
rng = np.random.default_rng(1)
basis = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
spaces = np.split(basis, np.cumsum(SIZES)[:-1], axis=1)
W = [E @ rng.standard_normal((E.shape[1],) * 2) @ E.T for E in spaces]
target = us.MultiHead(W, [E @ rng.standard_normal(E.shape[1]) for E in spaces])
recovery = us.learn(target, us.learners.OrthogonalHeads(DIM))

hessian = us.theory.pair_hessian(target, rng.standard_normal(DIM))
found = [np.linalg.svd(head.W) for head in recovery.model.heads]
columns = np.hstack([U[:, s > 1e-6] for U, s, _ in found])  # one subspace after the other
inside = columns.T @ hessian @ columns

# %%
figure = Figure(figsize=(8, 3.6), layout="constrained")
panels = {"as asked": hessian, f"in the subspaces found ({recovery.queries} queries)": inside}
for axis, (title, matrix) in zip(figure.subplots(1, 2), panels.items(), strict=True):
    image = axis.imshow(np.log10(np.abs(matrix) + 1e-16), cmap="viridis", vmin=-14, vmax=1)
    axis.set_title(title)
figure.colorbar(image, label="log₁₀ of entries")
figure.savefig("subspaces.png", dpi=100)
owner = np.repeat(np.arange(3), [int(np.sum(s > 1e-6)) for _, s, _ in found])
print(f"blocks alone: {bool(np.abs(inside[owner[:, None] != owner]).max() < 1e-9)}")
