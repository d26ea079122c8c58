"""`us.audit`: no wrong class is ever certain, and what it costs is what it says."""

import json
import re
from collections import Counter, defaultdict

import numpy as np
import pytest

import unsoftmax as us
from tests.attention_layers import layer as attention_layer
from tests.attention_layers import normalised, prenorm
from tests.commands import run
from tests.feed_forward import layer as feed_forward
from tests.heads import several
from tests.oracles.http_server import serving
from tests.questions.population import (
    OF_A_CLASS,
    Secret,
    behind,
    head,
    heads,
    in_float32,
    labelled,
    linear,
    population,
    relu,
    rounded,
    single,
    strangers,
)
from tests.questions.services import joint, transformer
from tests.truth import Counted, driven
from unsoftmax.campaign.runner import opened_campaign
from unsoftmax.cli.minilm import minilm_head, minilm_heads
from unsoftmax.measure.precision import Precision
from unsoftmax.probes import Singles
from unsoftmax.protocol import Certificate, Evidence, Found
from unsoftmax.questions import Audit
from unsoftmax.questions.answer_traits import Traits, on_an_ellipsoid
from unsoftmax.questions.identification import Identifier, _tried_out
from unsoftmax.questions.target_classes import typical_cost
from unsoftmax.theory import counts

QUICK = us.Retries(tries=1)


OUTCOMES = (
    "certain and right",
    "certain and wrong",
    "likely and right",
    "likely and wrong",
    "undecided",
)


def figures(rate):
    return {name.replace(" ", "_"): rate[name] for name in OUTCOMES}


def outcome(result, right):
    if result.certainty == "undecided":
        return "undecided"
    return f"{result.certainty} and {'right' if result.target_class == right else 'wrong'}"


def audited(secret, seed, recover=True):
    oracle = Counted(secret.target)
    with np.errstate(all="ignore"):
        result = us.audit(oracle, secret.dim, recover=recover, retries=QUICK, seed=seed)
    assert result.queries == oracle.queries
    assert result.tokens == oracle.tokens
    return result


@pytest.mark.few
@pytest.mark.parametrize("recover", [False, True])
def test_a_wrong_class_is_never_certain(recover, trials, evidence):
    rates: dict[str, Counter[str]] = defaultdict(Counter)
    queries: dict[str, list[int]] = defaultdict(list)
    heads, everything = Counter[bool](), Counter[str]()
    few = range(recover, len(OF_A_CLASS), 3)
    for seed in trials(few, range(450)):
        secret = population(seed)
        result = audited(secret, seed, recover)
        said = outcome(result, secret.right)
        assert said != "certain and wrong", (seed, secret.kind, result)
        rates[secret.right][said] += 1
        everything[said] += 1
        queries[secret.right].append(result.queries)
        if secret.heads is not None and result.target_class == "several heads":
            heads[result.facts["heads"] == secret.heads] += 1
    assert everything["likely and wrong"] <= 0.02 * everything.total()
    assert everything["undecided"] <= max(1, 0.1 * everything.total())
    assert not heads[False]
    how = "recovered as well" if recover else "identified"
    for right, rate in {**rates, "all of a class": everything}.items():
        asked = queries.get(right) or [n for some in queries.values() for n in some]
        median = int(np.median(asked))
        told = f"audit, {how}: {right}"
        evidence(told, targets=rate.total(), **figures(rate), median_queries=median)


@pytest.mark.parametrize("recover", [False, True])
def test_what_is_of_no_class_is_never_of_one_for_certain(recover, trials, evidence):
    rates = Counter[str]()
    for seed in trials(range(recover, 30, 5), range(120)):
        secret = strangers(seed)
        result = audited(secret, seed, recover)
        rates[outcome(result, "none of these")] += 1
        assert rates["certain and wrong"] == 0, (seed, secret.kind, result)
    assert rates["likely and wrong"] <= max(1, 0.1 * rates.total())
    how = "recovered as well" if recover else "identified"
    evidence(f"audit, {how}: of no class", targets=rates.total(), **figures(rates))


def test_heads_before_a_network_are_counted(trials, evidence):
    runs, queries = trials(1, 30), []
    for seed in range(runs):
        residual = not seed % 2
        model = joint(np.random.default_rng([seed, 41]), 5, 8, residual=residual)
        oracle = Counted(model)
        result = us.audit(oracle, 5, recover=True, seed=seed)
        assert (result.target_class, result.certainty) == (
            "network behind several heads",
            "certain",
        ), seed
        assert result.facts["heads"] == 3
        assert ("residual" in result.facts) == residual
        queries.append(oracle.queries)
        assert result.recovery is not None
        assert us.equivalent(result.recovery.model, model, rtol=1e-6)
    told = "audit, three heads of dimension 5 before 8 neurons"
    evidence(told, runs=runs, recovered=runs, median_queries=int(np.median(queries)))


def test_heads_before_a_network_are_not_looked_for_where_answers_are_float32():
    model = joint(np.random.default_rng([0, 41]), 5, 8)
    result = us.audit(lambda X: model(X).astype(np.float32), 5, recover=True)
    assert result.target_class in ("network behind several heads", "undecided")
    assert result.certainty != "certain"
    assert result.recovery is None
    assert any("needs float64 answers" in reason for reason in result.reasons)


def test_a_trained_head_is_told_by_a_thousandth_of_its_parameters(evidence):
    oracle = Counted(minilm_head(0, 0))
    result = us.audit(oracle, 384)
    assert (result.target_class, result.certainty) == ("single head", "likely")
    assert result.facts["rank"] == 32
    evidence("audit, one head of MiniLM", queries=oracle.queries, rank=result.facts["rank"])


def test_twelve_trained_heads_are_counted(evidence):
    oracle = Counted(minilm_heads(0))
    result = us.audit(oracle, 384)
    assert (result.target_class, result.facts["heads"]) == ("several heads", 12)
    evidence("audit, 12 heads of MiniLM", queries=oracle.queries, heads=12)


def test_a_whole_that_is_something_else_is_not_what_a_few_dimensions_showed():
    head, d = several(1, 24, 0), 24

    def target(X):
        # no token of a few random dimensions points so nearly along one axis
        along = np.abs(X[..., 0]) > 0.9 * np.linalg.norm(X, axis=2)
        return head(X) + np.where(along.any(axis=1), 1.0, 0.0)

    assert us.audit(target, d).target_class == "single head"
    result = us.audit(target, d, recover=True)
    assert (result.target_class, result.certainty) == ("undecided", "undecided")
    assert result.reasons[0].startswith("The whole target was not recovered")
    assert result.recovery is None


def test_a_whole_that_is_not_answered_is_as_likely_as_before():
    oracle = several(2, 6, 0)

    def refusing(X):
        # the learner of the whole begins with the tokens e_k
        if X.shape[1] == 1 and np.any(np.count_nonzero(X[:, 0], axis=1) == 1):
            raise ValueError("not this one")
        return oracle(X)

    result = us.audit(refusing, 6, recover=True, retries=QUICK)
    assert (result.target_class, result.certainty) == ("several heads", "likely")
    assert result.recovery is None


@pytest.mark.parametrize(
    ("error", "refusal"), [(1e-9, us.ModelMismatch), (0.5, us.NotIdentifiable)]
)
def test_ordinary_sequences_must_be_foreseen(error, refusal):
    """A head for two, within its certificate where its learner looked, as coarse answers had it."""
    true, wrong = several(2, 4, 0), several(1, 4, 1).heads[0]
    evidence = Evidence(32, 0.0, 0.0, 1e-9, True)
    found = Found(wrong, Certificate({"W": error, "w": error}, ()), evidence)

    def learned():
        yield [Singles(np.eye(4), phase="v", purpose="data")]
        return found

    traits = Traits(1, 0, "float32", Precision())
    rng = np.random.default_rng(0)
    with pytest.raises(refusal, match="ordinary sequences"):
        driven(_tried_out(learned(), traits, rng), true)
    assert driven(_tried_out(learned(), traits, rng), wrong)[0] is found


# -- how it is run


def test_one_ledger_serves_identification_and_recovery(tmp_path):
    book = tmp_path / "ledger.sqlite"
    secret = several(3, 8, 0)
    oracle = Counted(secret)
    first = us.audit(oracle, 8, ledger=book)
    assert first.recovery is None
    assert first.cost is not None
    identified = oracle.queries
    result = us.audit(oracle, 8, ledger=book, recover=True)
    assert result.recovery is not None
    assert us.equivalent(result.recovery.model, secret, rtol=1e-8)
    assert result.queries == oracle.queries == result.recovery.queries
    once = us.audit(Counted(secret), 8, recover=True)
    # what a run that goes on recognises its target by
    assert oracle.queries - once.queries <= 32
    assert identified + 0.5 * first.cost.queries < oracle.queries
    with pytest.raises(us.LedgerMismatch):
        us.audit(oracle, 8, ledger=book, seed=1)


def test_costs_are_what_recovery_takes(trials):
    for seed in range(trials(2, 60)):
        rng = np.random.default_rng([seed, 48])
        d, H = int(rng.choice([12, 16])), int(rng.integers(1, 5))
        target = several(H, d, seed) if seed % 2 else transformer(rng, d)
        result = us.audit(target, d, price=2.0, token_price=0.5, seed=seed)
        assert result.cost is not None
        assert result.cost.money == pytest.approx(
            (2 * result.cost.queries + 0.5 * result.cost.tokens) / 1000
        )
        oracle = Counted(target)
        both = us.audit(oracle, d, recover=True, seed=seed)
        assert both.certainty == "certain"
        recovered = oracle.queries - result.queries
        assert 0.5 * result.cost.queries < recovered < 2 * result.cost.queries
        assert recovered < result.cost.at_most


def test_a_budget_is_kept_to(tmp_path):
    secret = several(3, 12, 0)
    with pytest.raises(us.BudgetExceeded):
        us.audit(secret, 12, budget=100)
    oracle = Counted(secret)
    for budget in (500, us.Budget(tokens=5000)):
        result = us.audit(oracle, 12, recover=True, budget=budget)
        assert result.recovery is None
        assert result.afforded is False
        said = result.notes[-1]
        assert result.cost is not None
        assert "would exceed the budget" in said
        names = ("tokens", "queries") if isinstance(budget, us.Budget) else ("queries", "tokens")
        assert names[0] in said
        assert names[1] not in said
        assert f"{result.cost.tokens if names[0] == 'tokens' else result.cost.queries:,} " in said
        assert result.certainty == "likely"
    assert us.audit(secret, 12, recover=True, budget=2000).afforded
    both = us.audit(secret, 12, recover=True, budget=us.Budget(100_000, 10_000))
    assert both.recovery is not None


def capped(rng, d):
    return Secret("capped", "single head", us.oracles.norm_capped(head(rng, d), 50.0), d)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "family", [linear, single, rounded, labelled, heads, in_float32, relu, behind, capped]
)
@pytest.mark.parametrize("holdout", [0, 32])
def test_tokens_are_those_of_the_learners_questions(family, holdout):
    secret = family(np.random.default_rng([1, 16]), 16)
    identifier = Identifier(16)
    with opened_campaign(secret.target, identifier, retries=QUICK) as campaign:
        identity = campaign.run(identifier.steps(0))
    oracle = Counted(secret.target)
    assert identity.learner is not None
    us.learn(oracle, identity.learner, holdout=holdout)
    _, tokens = typical_cost(identity.learner, identity.facts, identity.traits, holdout)
    assert tokens / 1.5 < oracle.tokens < 1.5 * tokens, (tokens, oracle.tokens)


def test_a_target_of_another_dimension_says_so():
    with pytest.raises(us.DimensionRefused, match="dim=8"):
        us.audit(several(2, 8, 0), 4)


def test_vectors_are_looked_at_by_one_coordinate():
    one, two = several(1, 6, 0), several(3, 6, 1)

    def both(X):
        return np.stack([np.zeros(len(X)), one(X), 10 * two(X)], axis=1)

    result = us.audit(both, 6, recover=True)
    assert (result.target_class, result.answers["coordinate"]) == ("several heads", 2)
    assert "number 2" in result.notes[0]
    assert us.audit(us.oracles.coordinate(both, 1), 6).target_class == "single head"


def test_the_learner_of_all_numbers_at_once_is_named():
    layer = attention_layer(2, 3, 6, residual=True)
    notes = us.audit(layer, 6).notes
    assert "AttentionLayerLearner(dim=6)" in notes[2]
    assert f"about {counts.attention_layer_queries(6, 2, 3):,} queries" in notes[2]
    notes = us.audit(feed_forward(4, 3, 4, 0), 4).notes
    assert "FeedForwardLearner(dim=4)" in notes[1]
    result = us.audit(normalised(2, 3, 6), 6)
    assert result.target_class == "normalised vectors"
    assert "AttentionLayerLearner" in result.recoverable
    result = us.audit(prenorm(2, 3, 6), 6)
    assert result.target_class == "normalised tokens"
    assert 'norm="pre"' in result.recoverable


def test_the_command_goes_on_with_the_learner_of_all_numbers(tmp_path):
    feed_forward(4, 3, 4, 0).save(tmp_path / "layer.safetensors")
    done = run(tmp_path, "audit", "layer.safetensors", "--out", "out")
    assert done.returncode == 0, done.stderr
    [line] = [one for one in done.stdout.splitlines() if one.startswith("Next: ")]
    words = line.removeprefix("Next: unsoftmax ").split()
    assert words == [
        *("learn", "layer.safetensors", "--model", "feed-forward", "--dim", "4"),
        *("--out", "out/whole"),
    ]
    assert run(tmp_path, *words).returncode == 0
    again = Audit.load(tmp_path / "out").whole
    assert again is not None
    assert again.model == "feed-forward"


def test_a_residual_connection_is_taken_off():
    model = several(2, 6, 0)
    shares = np.linspace(0.5, 1.5, 6)

    def layer(X):
        return X[:, -1] + np.outer(model(X), shares)

    result = us.audit(layer, 6, recover=True)
    assert (result.target_class, result.certainty) == ("several heads", "certain")
    assert result.answers["residual"]
    assert "residual connection" in result.notes[1]
    assert result.recovery is not None
    added = shares[result.answers["coordinate"]]
    assert us.equivalent(result.recovery.model, us.MultiHead(model.W, added * model.v), rtol=1e-6)


def test_what_refuses_long_tokens_or_many_is_still_named():
    model = several(2, 8, 0)

    def short(X):
        if X.shape[1] > 20:
            raise ValueError("too many tokens")
        return model(X)

    assert us.audit(short, 8, retries=QUICK).facts["heads"] == 2


@pytest.mark.parametrize(("heads", "radius"), [(1, 50.0), (3, 100.0), (2, 2000.0)])
def test_a_cap_on_the_tokens_is_found_and_kept_to(heads, radius):
    model = several(heads, 6, 0)
    capped = us.oracles.norm_capped(model, radius)
    result = us.audit(capped, 6, recover=True, retries=QUICK)
    assert result.answers["longest_token"] <= radius
    assert result.target_class == ("several heads" if heads > 1 else "single head")
    assert result.certainty == "certain"
    assert result.recovery is not None
    assert us.equivalent(result.recovery.model, model, rtol=1e-6)


def test_answers_that_are_nothing_but_noise_decide_nothing():
    result = us.audit(us.oracles.noisy(lambda X: np.zeros(len(X)), 1.0, 0), 4)
    assert (result.target_class, result.answers["kind"]) == ("undecided", "noisy")


def test_a_target_that_counts_its_calls_is_no_noisy_head():
    head, calls = several(1, 4, 0), [0]

    def counting(X):
        calls[0] += 1
        return head(X) + 1e-3 * calls[0]

    result = us.audit(counting, 4)
    assert (result.target_class, result.certainty) == ("none of these", "likely")
    assert "keeps state" in result.reasons[0]


def test_a_network_beyond_the_sketch_is_undecided():
    rng = np.random.default_rng(0)
    wide = us.ReluNetwork(
        rng.standard_normal((4, 2000)), rng.standard_normal(2000), rng.standard_normal(2000)
    )
    result = us.audit(wide, 4, retries=QUICK)
    assert result.target_class == "undecided"
    assert any("not found within" in reason for reason in result.reasons)


@pytest.mark.parametrize("recover", [False, True])
def test_the_file_is_read_back(recover, tmp_path):
    result = us.audit(several(2, 6, 0), 6, recover=recover)
    result.save(tmp_path / "out")
    again = Audit.load(tmp_path / "out")
    assert again.to_json() == result.to_json()
    if recover:
        assert result.recovery is not None
        assert again.recovery is not None
        assert us.equivalent(again.recovery.model, result.recovery.model, rtol=0)


@pytest.mark.usefixtures("undrawn")
def test_the_page_says_what_was_found(tmp_path):
    pytest.importorskip("matplotlib")
    from unsoftmax.report.page import page

    result = us.audit(several(2, 6, 0), 6, recover=True, price=4.0)
    result.save(tmp_path)
    text = page(tmp_path)
    for said in (
        "Audited: several heads",
        "The target: several heads. That is certain:",
        f"{result.queries:,} queries with {result.tokens:,} tokens were paid",
        "Recovering all of it with MultiHeadLearner",
        "What its answers are",
        "Recovered: MultiHead(H=2, d=6)",
    ):
        assert said in text, said
    us.audit(lambda X: np.tanh(X.mean(axis=1)).sum(axis=1), 6).save(tmp_path / "none")
    assert "none of the known classes" in page(tmp_path / "none")
    us.audit(us.oracles.noisy(lambda X: np.zeros(len(X)), 1.0, 0), 4).save(tmp_path / "open")
    assert "is undecided" in page(tmp_path / "open")


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"audit\.json"):
        Audit.load(tmp_path)
    result = us.audit(several(2, 6, 0), 6)
    result.save(tmp_path)
    path = tmp_path / "audit.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for change in ({"format_version": 99}, {"class": "a cat"}, {"facts": 3}, {"cost": {"a": 1}}):
        path.write_text(json.dumps({**content, **change}), encoding="utf-8")
        with pytest.raises(ValueError, match="cannot be read"):
            Audit.load(tmp_path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be read"):
        Audit.load(tmp_path)


@pytest.mark.parametrize("price", [-1.0, np.inf, np.nan, "2", True])
def test_prices_are_numbers(price):
    with pytest.raises((TypeError, ValueError)):
        us.audit(several(1, 3, 0), 3, price=price)


def test_the_plan_says_what_it_is():
    plan = Identifier(8).plan()
    assert plan.queries is None
    assert plan.at_most >= 10_000
    with pytest.raises(ValueError, match="dim"):
        Identifier(0)


def test_an_ellipsoid_is_told_from_a_sphere_with_a_dent():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 5))
    sphere = x / np.linalg.norm(x, axis=1)[:, None]
    gain, shift = np.array([1.0, 3.0, 0.1, 2.0, 5.0]), rng.standard_normal(5)
    assert on_an_ellipsoid(gain * sphere + shift, 1e-4)
    assert not on_an_ellipsoid(gain * np.tanh(x) + shift, 1e-4)
    assert not on_an_ellipsoid(gain * sphere * (1 + 0.3 * sphere[:, :1] ** 3) + shift, 1e-4)


def test_an_endpoint_is_audited_over_http():
    pytest.importorskip("httpx", reason="the extra http")
    model = several(2, 3, 0)

    def infer(handler, body):
        [asked] = json.loads(body)["inputs"]
        X = np.reshape(asked["data"], asked["shape"])
        answer = {"name": "y", "datatype": "FP64", "shape": [len(X)], "data": list(model(X))}
        handler.send(body=json.dumps({"outputs": [answer]}).encode())

    with serving(infer) as (url, _):
        result = us.audit(us.oracles.from_url(url), 3, recover=True)
    assert (result.target_class, result.facts["heads"]) == ("several heads", 2)
    assert result.certainty == "certain"


# -- the command line


def test_a_model_file_knows_its_dimension(tmp_path):
    several(2, 4, 0).save(str(tmp_path / "model.safetensors"))
    done = run(tmp_path, "audit", "model.safetensors", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "several heads" in done.stdout


TARGET = """
import numpy as np
import unsoftmax as us

rng = np.random.default_rng(3)
heads = us.MultiHead(rng.standard_normal((2, 6, 6)) / 2, rng.standard_normal((2, 6)))


def strange(X):
    return np.tanh(X.mean(axis=1)).sum(axis=1)


def dead(X):
    raise OSError("no route to host")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "target.py").write_text(TARGET, encoding="utf-8")
    return tmp_path


def test_the_command_writes_what_it_found(folder):
    words = ("audit", "target:heads", "--dim", "6", "--out", "out", "--price", "3")
    done = run(folder, *words)
    assert done.returncode == 0, done.stderr
    for text in ("several heads", "likely", "at these prices", "Written: out/audit.json"):
        assert text in done.stdout
    assert "biases no" in done.stdout
    following = f"Next: unsoftmax audit {' '.join(words[1:])} --recover"
    assert following in done.stdout
    assert Audit.load(folder / "out").money > 0
    done = run(folder, *words, "--recover", "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert (content["certainty"], content["facts"]["heads"]) == ("certain", 2)
    assert content["recovered"]
    assert us.load(folder / "out" / "model.safetensors").H == 2
    done = run(folder, *words, "--recover")
    assert "Next:" not in done.stdout


def test_the_command_names_the_budget_that_is_too_small(folder):
    words = ("audit", "target:heads", "--dim", "6", "--out", "out", "--recover")
    done = run(folder, *words, "--budget", "5000", "--token-budget", "4000")
    assert done.returncode == 4, done.stderr
    said = " ".join(done.stdout.split())
    assert "left of the budget of 4,000 tokens" in said
    assert "5,000" not in said
    wanted = re.search(r"Next: the same command with --token-budget (\d+)", said)
    assert wanted is not None
    done = run(folder, *words, "--budget", "5000", "--token-budget", wanted[1])
    assert done.returncode == 0, done.stderr


def test_a_ledger_of_other_questions_is_told_in_a_sentence(folder):
    assert run(folder, "audit", "target:heads", "--dim", "6", "--out", "out").returncode == 0
    words = ("learn", "target:heads", "--model", "multi-head", "--dim", "6", "--max-heads", "3")
    done = run(folder, *words, "--out", "out")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    for text in (
        "out/ledger.sqlite holds an audit's questions",
        "whether it recovers or not",
        "Another --out",
    ):
        assert text in said
    assert "learner.learner" not in said
    assert run(folder, *words, "--out", "learned").returncode == 0
    done = run(folder, "audit", "target:heads", "--dim", "6", "--out", "learned")
    assert done.returncode == 2
    assert "holds the questions of MultiHeadLearner, not an audit's" in " ".join(
        done.stderr.split()
    )


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("target:strange", "--dim", "4"), 3),
        (("target:heads", "--dim", "6", "--budget", "20"), 4),
        (("target:heads", "--dim", "6", "--budget", "450", "--recover"), 4),
        (("target:dead", "--dim", "6"), 5),
        (("target:strange",), 2),
    ],
)
def test_how_the_command_ends(words, status, folder):
    done = run(folder, "audit", *words, "--out", "out")
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


def test_a_network_of_the_last_of_several_tokens_is_certain():
    rng = np.random.default_rng(4)
    A, w_o, b = rng.standard_normal((2, 3)), rng.standard_normal(3), rng.standard_normal(3)
    network = us.ReluNetwork(A, w_o, b)
    result = us.audit(lambda X: network(X[:, -1]), 2, recover=True)
    assert (result.target_class, result.certainty) == ("ReLU network", "certain")
    assert result.recovery is not None
    assert us.equivalent(result.recovery.model, network, rtol=1e-6)


def test_what_the_first_answers_contradict_is_not_certain():
    """One of two heads, chosen by the length of the last token: learners met one alone."""
    for seed in (2, 5, 9):
        rng = np.random.default_rng(seed)
        v = rng.standard_normal(4)
        short, long = (us.SingleHead(rng.standard_normal((4, 4)) / 2, v) for _ in range(2))

        def chosen(X, short=short, long=long):
            beyond = np.linalg.norm(X[:, -1], axis=1) > 3
            return np.where(beyond, short(X), long(X))

        result = us.audit(chosen, 4, recover=True)
        assert result.certainty != "certain"


def test_a_small_head_behind_float32_is_not_certainly_absent():
    rng = np.random.default_rng(0)
    large, small = (
        us.SingleHead(rng.standard_normal((4, 4)) / 2, rng.standard_normal(4)) for _ in range(2)
    )

    def both(X):
        return (large(X) + 1e-3 * small(X)).astype(np.float32)

    result = us.audit(both, 4, recover=True)
    assert result.certainty != "certain"


def test_a_constant_behind_rounded_answers_is_no_contradiction():
    rng = np.random.default_rng(1)
    model = us.SingleHead(rng.standard_normal((4, 4)) / 2, rng.standard_normal(4), c=0.7)
    result = us.audit(us.oracles.rounded(model, 3), 4, recover=True)
    assert (result.target_class, result.facts["biases"]) == ("single head", 1)
    assert result.recovery is not None


@pytest.mark.parametrize("size", [1e-320, 1e-150, 1e150])
def test_answers_that_float64_has_no_room_for_are_undecided_in_a_sentence(size):
    model = several(1, 4, 0).heads[0]
    result = us.audit(lambda X: size * model(X), 4)
    assert result.target_class == "undecided"
    assert "overflow or underflow in float64 computations" in result.reasons[0]
