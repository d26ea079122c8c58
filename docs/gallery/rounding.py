# %% [markdown]
# # Rounded answers, and how long tokens may be
#
# Rounding to decimals hides less the longer the tokens are that a service takes: a long offset
# beside a short query token has the same logit, and more digits of its answer count. Rounding to
# float32 is relative to the answer, so that length changes nothing. Heads of 8 dimensions,
# ‖W‖ about 4:

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

RADII = 10.0 ** np.arange(0, 7)
rng = np.random.default_rng(0)
head = us.SingleHead(rng.standard_normal((8, 8)) / 2, rng.standard_normal(8))
size = np.linalg.norm(head.v)
services = {
    "1 decimal": (us.oracles.rounded(head, decimals=1), lambda radius: 0.05),
    "3 decimals": (us.oracles.rounded(head, decimals=3), lambda radius: 0.0005),
    "float32": (lambda X: head(X).astype(np.float32), lambda radius: 2**-24 * size * radius),
}
figure = Figure(figsize=(7, 4), layout="constrained")
axis = figure.subplots()
errors = {}
for name, (service, tolerance) in services.items():
    learners = [us.learners.ApproximateHead(8, tolerance(r), radius=r) for r in RADII]
    found = [us.learn(service, learner).model.W for learner in learners]
    errors[name] = [np.linalg.norm(W - head.W) / np.linalg.norm(head.W) for W in found]
    axis.loglog(RADII, errors[name], "o-", label=f"answers in {name}")
axis.set(xlabel="longest token that may be asked", ylabel="relative error of W")
axis.legend()
axis.grid(alpha=0.3)
figure.savefig("rounding.png", dpi=100)
print(f"one decimal hides nothing from long tokens: {errors['1 decimal'][-1] < 1e-5}")
