# %% [markdown]
# # What is certified, and what is true
#
# Every recovery says by how much W may be off, from the answers alone. Here are random heads of 2
# to 30 dimensions, behind answers of four precisions: no dot may lie above the diagonal. A
# certificate holds for the worst errors there can be; true ones cancel, so that it is wider than
# needed.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

formats = {
    "float64": lambda head: head,
    "float32": lambda head: lambda X: head(X).astype(np.float32),
    "8 decimals": lambda head: us.oracles.rounded(head, decimals=8),
    "5 decimals": lambda head: us.oracles.rounded(head, decimals=5),
}
figure = Figure(figsize=(6, 5), layout="constrained")
axis = figure.subplots()
for name, seen_through in formats.items():
    points = []
    for seed in range(15):
        rng = np.random.default_rng(seed)
        dim = 2 + 2 * seed
        head = us.SingleHead(rng.standard_normal((dim, dim)), rng.standard_normal(dim))
        recovery = us.learn(seen_through(head), us.learners.ExactHead(dim))
        off = np.linalg.norm(recovery.model.W - head.W) / np.linalg.norm(head.W)
        points.append((recovery.certificate.W_error / np.linalg.norm(head.W), off))
    axis.loglog(*np.transpose(points), "o", alpha=0.6, label=f"answers in {name}")
axis.loglog([1e-16, 1e2], [1e-16, 1e2], color="0.5", linestyle="--")
axis.set(xlabel="certified error of W, relative", ylabel="true error of W, relative")
axis.legend()
figure.savefig("certificates.png", dpi=100)
below = all(y <= x for line in axis.lines[:4] for x, y in line.get_xydata())
print(f"no error above its certificate: {below}")
