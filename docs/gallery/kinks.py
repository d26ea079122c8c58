# %% [markdown]
# # Where a ReLU network bends
#
# A network of seven neurons in the plane is linear but on seven lines, one for each neuron.
# `ReluNetworkLearner` finds the lines from values alone: the colours are the target's values,
# the lines are those of the network that was found. (Two of its neurons, without a bias, are a
# linear part: they bend nothing.)

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

rng = np.random.default_rng(3)
target = us.ReluNetwork(rng.standard_normal((2, 7)), rng.standard_normal(7), rng.uniform(-2, 2, 7))
recovery = us.learn(target, us.learners.ReluNetworkLearner(dim=2))
lines = us.canonical(recovery.model)

# %%
side = np.linspace(-3, 3, 300)
x, y = np.meshgrid(side, side)
figure = Figure(figsize=(6.4, 5.2), layout="constrained")
axis = figure.subplots()
values = target(np.stack([x, y], axis=-1).reshape(-1, 2)).reshape(x.shape)
figure.colorbar(axis.contourf(x, y, values, levels=24, cmap="PuOr"), label="g(x)")
for (a0, a1), b in zip(lines.A.T[lines.b != 0], lines.b[lines.b != 0], strict=True):
    axis.contour(x, y, a0 * x + a1 * y + b, levels=[0], colors="k", linewidths=1)
axis.set(title=f"{recovery.queries} queries", aspect="equal")
figure.savefig("kinks.png", dpi=100)
print(f"the same function: {bool(us.equivalent(recovery.model, target, rtol=1e-8))}")
