# %% [markdown]
# # Balanced probes, and the paper's
#
# Theorem 4.1 asks with unit vectors: where an entry of v is small, the answer is small, and digits
# of W are lost. Balanced probes all see v alike. The error of W, for heads of 32 dimensions one
# of whose entries of v is made ever smaller:

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

DIM, ENTRIES = 32, np.logspace(0, -12, 7)


def error(probes, entry, seed):
    rng = np.random.default_rng(seed)
    v = rng.choice([-1.0, 1.0], DIM)
    v[0] *= entry
    target = us.SingleHead(rng.standard_normal((DIM, DIM)), v)
    found = us.learn(target, us.learners.ExactHead(DIM, probes=probes)).model
    return np.linalg.norm(found.W - target.W) / np.linalg.norm(target.W)


figure = Figure(figsize=(7, 4), layout="constrained")
axis = figure.subplots()
worst = {}
for probes, colour in {"paper": "#c8553d", "balanced": "#1b6ca8"}.items():
    worst[probes] = [max(error(probes, entry, s) for s in range(3)) for entry in ENTRIES]
    axis.loglog(ENTRIES, worst[probes], "o-", color=colour, label=f'probes="{probes}"')
axis.set(xlabel="smallest entry of v, others are 1", ylabel="relative error of W, worst of 3")
axis.legend()
axis.grid(alpha=0.3)
figure.savefig("small_entries.png", dpi=100)
print(f"balanced probes do not see v's shape: {max(worst['balanced']) < 1e-13}")
