# %% [markdown]
# # Does an endpoint serve these weights?
#
# One block, served in float32 and with answers in float16, and the same with one matrix moved by a
# share of its norm. `us.verify` asks 20 questions: nudged copies, of which a wrong weight misses
# all in the same way and rounding each in another. So right services stay below 1 whatever their
# arithmetic is, and what is moved by more than its `power` says is above 2: *different*.

# %%
import numpy as np
from matplotlib.figure import Figure

import unsoftmax as us

d, wide, rng = 16, 32, np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape) / np.sqrt(shape[-1])


norm = us.LayerNorm(np.ones(d), None, eps=1e-6, before=True, centred=False)
out, values, keys, queries = (normal(2, *shape) for shape in [(d, 8), (8, d), (8, d), (8, d)])
turning = us.Rotary.of(10_000, 8)
heads = us.RotaryLayer(out, values, keys, queries, np.zeros(d), turning, residual=True, norm=norm)
A, B, G = normal(wide, d), normal(d, wide), normal(wide, d)


def block(B):
    gated = us.FeedForward(A, np.zeros(wide), B, np.zeros(d), True, norm, "silu", (G, None))
    return us.Stack([heads, gated], causal=True)


claimed, direction = block(B), normal(d, wide)
direction *= np.linalg.norm(B) / np.linalg.norm(direction)
SHARES = 10.0 ** np.arange(-8, -0.5, 0.5)
figure = Figure(figsize=(7, 4), layout="constrained")
axis, seen = figure.subplots(), []
for name, kind in (("float32", np.float32), ("float16", np.float16)):
    found = []
    for share in (0, *SHARES):
        model = block(B + share * direction)
        served = lambda X: model(X.astype(np.float32)).astype(kind)  # noqa: B023, E731
        found.append(us.verify(served, claimed, locate=False))
    power, misses = found[0].power["B of part 1"], [one.largest_miss for one in found]
    [line] = axis.loglog(SHARES, misses[1:], "o-", label=f"answers in {name}")
    axis.axvline(power, color=line.get_color(), linestyle=":")
    axis.axhline(misses[0], color=line.get_color(), linestyle="--", linewidth=0.8)
    beyond = [one.verdict for one, share in zip(found[1:], SHARES, strict=True) if share > power]
    seen += [found[0].verdict == "same", set(beyond) == {"different"}]
axis.axhspan(1, 2, color="grey", alpha=0.2, label="undecided")
axis.set(xlabel="by how much one matrix is moved; dotted: power", ylabel="largest miss")
axis.legend()
figure.savefig("verify.png", dpi=100)
print(f"right services are the same, changes beyond the power are different: {all(seen)}")
