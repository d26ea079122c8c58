# %% [markdown]
# # What is behind an endpoint, and what copying it would cost
#
# `us.audit` is not told what answers. It finds out with a few hundred questions, whatever the
# size, and says how many more would copy the target. Six targets of 32 dimensions, whose class it
# names; nothing is known of the block's feed-forward part, so only its attention can be copied.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

d, rng = 32, np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape) / np.sqrt(shape[-1])


norm = us.LayerNorm(np.ones(d), None, eps=1e-5, before=True, centred=False)
heads = [us.LayerHead(normal(d, d), normal(d, d)) for _ in range(2)]
gelu = us.FeedForward(normal(64, d), normal(64), normal(d, 64), normal(d), True, norm, "gelu")
plain = us.FeedForward(normal(64, d), normal(64), normal(d, 64), normal(d), activation="gelu")
block = us.Stack([us.AttentionLayer(heads, normal(d), True, norm), gelu])
targets = {
    "single head": us.SingleHead(normal(d, d), normal(d)),
    "several heads": us.MultiHead(normal(3, d, d), normal(3, d)),
    "ReLU network": us.ReluNetwork(normal(d, 6), normal(6), normal(6), 0.5),
    "position-dependent": us.RotaryHead(normal(4, d), normal(4, d), normal(d), us.Rotary([1, 0.1])),
    "smooth feed-forward layer": plain,
    "whole block": block,
}
found = {name: us.audit(target, d) for name, target in targets.items()}

# %%
figure = Figure(figsize=(8, 3.6), layout="constrained")
axis = figure.subplots()
for place, result in enumerate(found.values()):
    needed = result.whole or result.cost
    axis.barh(place - 0.2, result.queries, 0.38, color="tab:blue")
    axis.barh(place + 0.2, needed.queries if needed else 0, 0.38, color="tab:orange")
axis.set_yticks(range(len(found)), [f"{x.target_class} ({x.certainty})" for x in found.values()])
axis.set(xscale="log", xlim=(100, 5000), xlabel="questions: to name it (blue), to copy it (orange)")
axis.set_xticks([100, 200, 500, 1000, 2000, 5000], ["100", "200", "500", "1,000", "2,000", "5,000"])
axis.minorticks_off()
axis.invert_yaxis()
axis.grid(axis="x", alpha=0.3)
figure.savefig("audit.png", dpi=100)
print(f"all are named: {all(x.target_class == name for name, x in found.items())}")
