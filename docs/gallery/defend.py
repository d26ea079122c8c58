# %% [markdown]
# # What a defence costs, and what it leaves an attacker
#
# `us.defend` tries defences at several strengths. Each is a point: what it costs legitimate clients
# against the error of W that the best attack is left with. A defence is worth its price where it is
# at the top left. Rounding and noise by themselves are at the bottom, whatever they cost: an
# attacker asks longer tokens. Only together with a cap on tokens does noise leave an error. Attacks
# have 1,000 questions here; with more they get further.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

d, rng = 3, np.random.default_rng(0)
head = us.SingleHead(rng.standard_normal((d, d)) / np.sqrt(d), rng.standard_normal(d))
result = us.defend(head, dim=d, attack_queries=1000)

# %%
figure = Figure(figsize=(7, 4.2), layout="constrained")
axis = figure.subplots()
kinds = {}
for trial in result.trials:
    if trial.loss is not None:
        kinds.setdefault(trial.kind, []).append((trial.loss, trial.error))
for name, points in kinds.items():
    loss, error = np.array(points).T
    axis.plot(100 * loss, error, "o", label=name)
axis.set(yscale="log", xlabel="what clients lose, %", ylabel="error of W of the best attack")
axis.legend(fontsize=8, loc="center")
axis.grid(alpha=0.3)
figure.savefig("defend.png", dpi=100)
left = {name: max(error for _, error in points) for name, points in kinds.items()}
others = max(error for name, error in left.items() if name != "noise with a norm cap")
print(f"noise with a cap alone leaves an error: {others < 1e-6 < left['noise with a norm cap']}")
