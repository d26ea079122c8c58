# %% [markdown]
# # A logit, read through a network
#
# Behind a head stands a ReLU network g. Two tokens [λa+b; b] are answered by g at one place of the
# line through b along a: at λσ(t), where t = λa·(W b). The grey line is g; each dot is one answer
# to two tokens, at the place that the recovered W says. They lie on g, so W is right.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

rng = np.random.default_rng(8)
network = us.ReluNetwork(rng.standard_normal((6, 12)), *rng.standard_normal((2, 12)))
target = us.Transformer(W=rng.standard_normal((6, 6)) / 2, network=network)
recovery = us.learn(target, us.learners.TransformerLearner(dim=6, anchored=True))

a, b = 1.5 * rng.standard_normal((2, 6))
a *= np.sign(a @ target.W @ b)
lengths = np.linspace(-2, 2, 49)
tokens = np.stack([b + np.outer(lengths, a), np.tile(b, (49, 1))], axis=1)
gates = recovery.model.attention(tokens)[:, 0]
line = np.linspace(-0.5, 2, 400)

# %%
figure = Figure(figsize=(7, 4), layout="constrained")
axis = figure.subplots()
axis.plot(line, network(b + np.outer(line, a)), color="0.6", label="g, along the line")
axis.plot(gates * lengths, target(tokens), "o", color="#c8553d", label="answers to two tokens")
axis.set(xlabel="place on the line: λσ(t)", ylabel="answer", title=f"{recovery.queries} queries")
axis.legend()
figure.savefig("segment.png", dpi=100)
predicted = network(b + np.outer(gates * lengths, a))
print(f"every dot lies on g: {np.allclose(predicted, target(tokens), rtol=1e-9)}")
