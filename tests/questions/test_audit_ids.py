"""`us.audit` of targets of ids: what stands behind the vocabulary is known here alone."""

from collections import Counter

import numpy as np
import pytest

import unsoftmax as us
from tests.behind_vocabularies import LayerServer, Server
from tests.commands import run
from unsoftmax.questions import Audit
from unsoftmax.questions.claim import Claim
from unsoftmax.report.page import page

# What a server does to ids: its class without a table, and with one.
HEAD, TABLE = "head behind a vocabulary", "head behind a table"
HEADS, LAYER = "several heads behind a vocabulary", "layer behind a table"
POSITIONS, OWN, NONE = "position-dependent", "tokens of its own", "none of these"
NORMALISED = "normalised vectors"
OF_HEADS = {
    "plain": (HEAD, TABLE),
    "alias": (HEAD, TABLE),
    "huge rows": (HEAD, TABLE),
    "float32 answers": (HEAD, TABLE),
    "other tokenizer": (HEAD, HEAD),
    "cut on the left": (HEAD, TABLE),
    "cut on the right": (HEAD, TABLE),
    "BOS": (OWN, OWN),
    "EOS": (OWN, OWN),
    "turned": (POSITIONS, POSITIONS),
    "positions": (POSITIONS, POSITIONS),
    "two heads": (NONE, NONE),
    "noisy": ("undecided", "undecided"),
}
OF_LAYERS = {
    "plain": (HEADS, LAYER),
    "alias": (HEADS, LAYER),
    "huge rows": (HEADS, LAYER),
    "float32 answers": (HEADS, LAYER),
    "other tokenizer": (HEADS, HEADS),
    "cut on the left": (HEADS, LAYER),
    "BOS": (OWN, OWN),
    "turned": (POSITIONS, POSITIONS),
    "positions": (POSITIONS, POSITIONS),
    "half a residual": (HEADS, NONE),
    "normed behind": (NORMALISED, NORMALISED),
    "LayerNorm behind": (NORMALISED, NORMALISED),
    "squashed": ("undecided", "undecided"),
    "the last token alone": ("undecided", "undecided"),
}
EVERY = [(Server, kind) for kind in OF_HEADS] + [(LayerServer, kind) for kind in OF_LAYERS]
RECOVERED = {HEAD, TABLE, LAYER}


def predicts(result, server, ids):
    """Whether what was recovered predicts answers within its certificate, or float32's."""
    model, y = result.recovery.model, server.truth(ids)
    if y.ndim == 2 and model.outputs is None:
        y = y[:, result.answers["coordinate"]]
    errors, size = result.recovery.certificate.errors, np.abs(y).max()
    if isinstance(model, us.TokenHead):
        most = model.moved_at_most(ids, errors)
        return np.all(np.abs(model(ids) - y) <= most + 1e-13 * size)
    x = server.table[ids]
    # one float32 head in twenty has W to 1e-2 only, and says so
    most = np.maximum(1e-4 * size, 2 * Claim(model, errors).at(x).open)
    return np.all(np.abs(model(x) - y) <= most)


@pytest.mark.parametrize(("of", "kind"), EVERY, ids=lambda x: getattr(x, "__name__", x))
def test_what_stands_behind_a_vocabulary_is_named(of, kind, trials, evidence):
    tried, said = trials(1, 20), Counter[str]()
    for seed in range(tried):
        right = (OF_HEADS if of is Server else OF_LAYERS)[kind]
        for known, name in enumerate(right):
            server = of(seed, kind)
            behind = {"table": server.table} if known else {"vocabulary": len(server.table)}
            target = us.oracles.from_ids(server)
            result = us.audit(target, **behind, recover=name in RECOVERED, seed=seed)
            assert result.queries == server.queries
            assert result.target_class == name or result.certainty == "undecided", (seed, result)
            said[result.certainty] += 1
            if name not in RECOVERED or result.recovery is None:
                continue
            assert ("context" in result.facts) == kind.startswith("cut")
            longest = result.facts.get("context", 40)
            ids = np.random.default_rng(seed).integers(len(server.table), size=(40, longest))
            assert predicts(result, server, ids)
    meant = sum(name == "undecided" for name in right) * tried
    assert said["undecided"] <= meant + 0.05 * tried
    what = "layer" if of is LayerServer else "head"
    evidence(f"audit of ids, {what}: {kind}", trials=2 * tried, undecided=said["undecided"])


def test_positions_that_are_known_are_recovered():
    server = Server(0, "positions")
    table = server.table + server._places[:6, None]
    result = us.audit(server, table=table, recover=True)
    assert (result.target_class, result.certainty) == (TABLE, "certain")
    assert result.recovery is not None
    assert np.abs(result.recovery.model.W - server.W).max() < 1e-6


def test_what_it_costs_is_said_beforehand(trials):
    for seed in range(trials(1, 20)):
        for server, most in ((Server(seed, ids=200), 1.3), (LayerServer(seed), 1.5)):
            for behind in ({"table": server.table}, {"vocabulary": len(server.table)}):
                before = us.audit(us.oracles.from_ids(server), **behind)
                if before.cost is None:
                    continue
                after = us.audit(us.oracles.from_ids(server), **behind, recover=True)
                paid = after.queries - before.queries
                assert before.cost.queries / most <= paid <= most * before.cost.queries
                assert paid <= before.cost.at_most
    no = us.audit(us.oracles.from_ids(server), **behind, recover=True, budget=before.queries)
    assert no.recovery is None
    server = Server(0, ids=200)
    little = us.audit(us.oracles.from_ids(server), vocabulary=200, recover=True, budget=900)
    assert little.afforded is False
    assert little.recovery is None


def test_limits_of_length_are_found_and_kept():
    server = Server(0)

    def refusing(ids):
        if ids.shape[1] > 37:
            raise ValueError("too long")
        return server(ids)

    result = us.audit(us.oracles.from_ids(refusing, 60), recover=True, retries=us.Retries(tries=1))
    assert result.facts["most_tokens"] == 37
    assert (result.target_class, result.certainty) == (HEAD, "certain")


def test_wrong_use_is_named():
    with pytest.raises(TypeError, match="vocabulary or table"):
        us.audit(lambda ids: ids.mean(axis=1))
    with pytest.raises(ValueError, match="does not say how many"):
        us.audit(us.oracles.from_ids(lambda ids: ids.mean(axis=1)))
    with pytest.raises(ValueError, match="table holds 4 ids"):
        us.audit(lambda ids: ids.mean(axis=1), vocabulary=5, table=np.eye(4))
    constant = us.oracles.from_ids(lambda ids: np.full(len(ids), 0.5), 30)
    assert us.audit(constant).target_class == "constant"


MODULE = """
import numpy as np
import unsoftmax as us
from tests.behind_vocabularies import LayerServer, Server
head = us.oracles.from_ids(Server(3), 60)
layer = us.oracles.from_ids(LayerServer(3))
normed = us.oracles.from_ids(LayerServer(3, "LayerNorm behind"), 132)
"""


def test_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_ids.py").write_text(MODULE)
    np.save("table.npy", Server(3).table)
    np.save("layer.npy", LayerServer(3).table)
    first = run(tmp_path, "audit", "of_ids:head", "--out", "a")
    assert first.returncode == 0, first.stderr
    assert HEAD in first.stdout
    assert "--recover" in first.stdout
    again = run(tmp_path, "audit", "of_ids:head", "--out", "a", "--recover")
    assert again.returncode == 0, again.stderr
    assert Audit.load("a").recovery is not None
    assert "the value of every id" in page(tmp_path / "a")
    whole = ("audit", "of_ids:layer", "--table", "layer.npy", "--recover", "--out", "b")
    assert run(tmp_path, *whole).returncode == 0
    assert Audit.load("b").target_class == LAYER
    learn = ("learn", "of_ids:head", "--model", "low-rank", "--table", "table.npy", "--out", "c")
    done = run(tmp_path, *learn)
    assert done.returncode == 0, done.stderr
    for model in ("low-rank", "exact", "attention-layer"):
        plan = run(tmp_path, "plan", "--model", model, "--table", "table.npy")
        assert plan.returncode == 0, plan.stderr
        assert "ids of a vocabulary of 60" in " ".join(plan.stdout.split())
    little = ("learn", "of_ids:head", "--model", "token")
    for limit, said in (
        (("--budget", "20"), "a hold-out of 32 alone needs 32 queries, and what the plan bounds"),
        (("--token-budget", "20"), "will not be enough: a hold-out of 32 has 32 queries."),
    ):
        stopped = run(tmp_path, *little, "--out", limit[0].strip("-"), *limit)
        assert stopped.returncode == 4
        assert said in " ".join(stopped.stderr.split())
    normed = run(tmp_path, "audit", "of_ids:normed", "--out", "e")
    assert "--table TABLE" in normed.stdout
    wrong = run(tmp_path, "plan", "--model", "low-rank", "--table", "of_ids.py")
    assert wrong.returncode == 2
    assert "no .npy file" in " ".join(wrong.stderr.split())
