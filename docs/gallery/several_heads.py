# %% [markdown]
# # Four heads behind one number
#
# The target adds four heads up and answers with the sum. `MultiHeadLearner` is not told how many
# there are. Each head of the target stands above the one that was found for it: their order is
# not determined, so `us.canonical` puts both models into the same one.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

rng = np.random.default_rng(0)
rows, columns = np.mgrid[:8, :8]
shapes = [rows == columns, rows + columns == 7, (rows - columns) % 4 == 2, rows == 3]
W = np.array(shapes) + 0.15 * rng.standard_normal((4, 8, 8))
target = us.MultiHead(W, v=rng.standard_normal((4, 8)))
recovery = us.learn(target, us.learners.MultiHeadLearner(dim=8, max_heads=6))

# %%
figure = Figure(figsize=(8, 4.4), layout="constrained")
for axes, model in zip(figure.subplots(2, 4), (target, recovery.model), strict=True):
    for axis, matrix in zip(axes, us.canonical(model).W, strict=True):
        axis.imshow(matrix, cmap="RdBu", vmin=-1.3, vmax=1.3)
        axis.set(xticks=[], yticks=[])
    axes[0].set_ylabel("target" if model is target else f"{recovery.queries} queries")
figure.savefig("several_heads.png", dpi=100)
print(f"the same function: {bool(us.equivalent(recovery.model, target, rtol=1e-8))}")
