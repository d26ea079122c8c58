# %% [markdown]
# # W, entry by entry
#
# `ExactHead` learns a head of 24 dimensions whose matrix is a picture of two rings: what was asked
# for, what was found, and how far the two are apart. No entry is off by more than a few roundings.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

grid = np.linspace(-1.5, 1.5, 24)
W = np.cos(5 * np.hypot(*np.meshgrid(grid, grid)))
target = us.SingleHead(W, v=np.random.default_rng(0).standard_normal(24))
recovery = us.learn(target, us.learners.ExactHead(24))
found = recovery.model.W

# %%
figure = Figure(figsize=(9, 3.2), layout="constrained")
panels = {"W of the target": W, f"W from {recovery.queries} answers": found}
*both, last = figure.subplots(1, 3)
for axis, (title, matrix) in zip(both, panels.items(), strict=True):
    axis.imshow(matrix, cmap="RdBu", vmin=-1, vmax=1)
    axis.set_title(title)
image = last.imshow(np.log10(np.abs(found - W) + 1e-18), cmap="viridis", vmin=-18, vmax=-14)
last.set_title("log₁₀ of the difference")
figure.colorbar(image, ax=last)
figure.savefig("entries.png", dpi=100)
print(f"every entry right to 1e-13: {bool(np.abs(found - W).max() < 1e-13)}")
