# %% [markdown]
# # Five heads, one after the other
#
# Offsets so long that every softmax is a switch: along half a circle of them, each head switches
# once, where a·(W_h b) = 0. Between two switches the answer is a sine, and at each it jumps.
# `MultiHeadLearner` finds heads by these jumps. The lines are where the heads that it has
# recovered switch.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

rng = np.random.default_rng(4)
target = us.MultiHead(rng.standard_normal((5, 6, 6)), rng.standard_normal((5, 6)))
b, p, q = np.linalg.qr(rng.standard_normal((6, 3)))[0].T
angles = np.linspace(0, np.pi, 2000)
a = 1e9 * (np.outer(np.cos(angles), p) + np.outer(np.sin(angles), q))
answers = target(np.stack([a + b, np.broadcast_to(b, a.shape)], axis=1)) / 1e9

found = us.learn(target, us.learners.MultiHeadLearner(dim=6, max_heads=8)).model
switches = np.arctan2(-(found.W @ b) @ p, (found.W @ b) @ q) % np.pi

# %%
figure = Figure(figsize=(7, 4), layout="constrained")
axis = figure.subplots()
axis.plot(angles, answers, ".", ms=2, color="#1b6ca8", label="answers, per unit of length")
for number, angle in enumerate(switches):
    label = "a recovered head switches" if number == 0 else None
    axis.axvline(angle, color="#c8553d", ls="--", lw=1, label=label)
axis.set(xlabel="angle of the offset on half a circle", ylabel="f([a+b; b]) / ‖a‖")
axis.legend()
figure.savefig("switches.png", dpi=100)
jumps = angles[np.argsort(-np.abs(np.diff(answers)))[:5]]
near = np.allclose(np.sort(jumps), np.sort(switches), atol=0.01)
print(f"the five largest jumps are where the recovered heads switch: {near}")
