"""From a model's own weights and its float32 endpoint to "these weights", by the command line."""

import json
import re
import textwrap

import numpy as np
import pytest
from tests.commands import run

import unsoftmax as us
from unsoftmax.models import from_parameters, has_parameters

SERVICE = """
    import numpy as np

    a = {name: x.astype(np.float32) for name, x in np.load("layer.npz").items()}

    def layer(X):
        X = X.astype(np.float32)
        q, k, v = (X @ a[n].T + a[f"{n}_bias"] for n in "qkv")
        scores = np.einsum("bnr,br->bn", k, q[:, -1]) / np.float32(len(a["q"]) ** 0.5)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        pooled = np.einsum("bn,bnr->br", weights / weights.sum(axis=1, keepdims=True), v)
        return pooled @ a["o"].T + a["o_bias"]
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"q": (8, 12), "k": (8, 12), "v": (8, 12), "o": (5, 8)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) / 3 for n, s in shapes.items()}
    arrays |= {f"{n}_bias": rng.standard_normal(s[0]).astype(np.float32) / 3
               for n, s in shapes.items()}  # fmt: skip
    np.savez(tmp_path / "layer.npz", **arrays)  # type: ignore[arg-type]
    (tmp_path / "service.py").write_text(textwrap.dedent(SERVICE))
    return tmp_path


def test_an_endpoint_serves_these_weights_and_not_others(folder):
    converted = run(folder, "convert", "layer.npz", "--heads", 1, "--coordinate", 3)
    assert converted.returncode == 0, converted.stderr
    assert "k_bias: no answer depends on it" in converted.stdout
    learned = run(folder, "learn", "service:layer", "--coordinate", 3, "--dim", 12, "--biases",
                  "--out", "found")  # fmt: skip
    assert learned.returncode == 0, learned.stderr
    files = "found/model.safetensors", "model.safetensors"
    same = run(folder, "compare", *files)
    assert (same.returncode, "the same within the certificate" in same.stdout) == (0, True)
    content = json.loads(run(folder, "compare", *files, "--json").stdout)
    assert (content["verdict"], content["by"]) == ("equal", "certificate")

    assert run(folder, "convert", "layer.npz", "--heads", 1, "--coordinate", 2).returncode == 0
    assert run(folder, "compare", *files).returncode == 1
    # a certificate without a hold-out does not count
    unchecked = json.loads((folder / "found" / "recovery.json").read_text())
    unchecked["evidence"]["passed"] = False
    (folder / "found" / "recovery.json").write_text(json.dumps(unchecked))
    assert run(folder, "convert", "layer.npz", "--heads", 1, "--coordinate", 3).returncode == 0
    assert run(folder, "compare", *files).returncode == 1
    # a copy without its certificate is compared as it is
    us.load(folder / files[0]).save(folder / "alone.safetensors")
    assert run(folder, "convert", "layer.npz", "--heads", 1, "--coordinate", 3).returncode == 0
    assert run(folder, "compare", "alone.safetensors", files[1]).returncode == 1


def test_a_feed_forward_layer_of_a_checkpoint_and_by_its_names(tmp_path):
    shapes = {"intermediate.dense": (6, 4), "output.dense": (4, 6), "output.LayerNorm": (4,)}
    drawn = np.random.default_rng(0)
    arrays = {
        f"encoder.layer.{k}.{name}.{end}": drawn.standard_normal(
            shape if end == "weight" else shape[0]
        )
        for k in range(2)
        for name, shape in shapes.items()
        for end in ("weight", "bias")
    }
    folder = tmp_path / "bert"
    folder.mkdir()
    config = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps(config))
    for place in (folder / "weights.npz", tmp_path / "alone.npz"):
        np.savez(place, **arrays)  # type: ignore[arg-type]
    part = "convert", "--part", "feed-forward", "--layer", "encoder.layer.1"
    done = run(tmp_path, *part, "bert", "--out", "one.safetensors")
    assert done.returncode == 0, done.stderr
    assert "FeedForward(d=4, m=6, gelu, residual, norm behind)" in done.stdout
    words = "alone.npz", "--activation", "gelu", "--norm-eps", 1e-5, "--out", "other.safetensors"
    done = run(tmp_path, *part, *words)
    assert done.returncode == 0, done.stderr
    assert run(tmp_path, "compare", "one.safetensors", "other.safetensors").returncode == 0
    for more, says in (
        (("alone.npz",), "--activation is missing, and no array says it"),
        (("bert", "--activation", "gelu"), "config.json says the rest: leave out --activation"),
        (("alone.npz", "--heads", 2), "It is a feed-forward layer: leave out --heads"),
    ):
        refused = run(tmp_path, *part, *more)
        assert refused.returncode == 2
        assert says in " ".join(refused.stderr.split())


def test_several_layers_and_json(folder):
    arrays = dict(np.load(folder / "layer.npz"))
    named = {
        f"layers.{i}.{n.partition('_')[0]}_proj.{'bias' if '_' in n else 'weight'}": x
        for i in range(2)
        for n, x in arrays.items()
    }
    np.savez(folder / "model.npz", **named)
    words = "convert", "model.npz", "--heads", 2, "--coordinate", 0, "--json"
    several = run(folder, *words)
    assert (several.returncode, "2 attention layers" in several.stderr) == (2, True)
    content = json.loads(run(folder, *words, "--layer", "layers.1").stdout)
    assert content["file"] == "model.safetensors"
    assert any("rotary positions" in line for line in content["left_out"])
    assert us.load(folder / "model.safetensors").H == 2


def test_a_whole_sub_layer_and_one_with_other_weights(folder):
    layers = {}
    for eps, name in ((1e-5, "one"), (2e-5, "other")):
        arrays = dict(np.load(folder / "layer.npz"))
        arrays |= {"o": arrays["o"][:1].repeat(12, 0), "o_bias": np.arange(12.0),
                   "norm_scale": np.ones(12), "norm_shift": np.zeros(12)}  # fmt: skip
        np.savez(folder / "whole.npz", **arrays)
        done = run(folder, "convert", "whole.npz", "--heads", 2, "--norm-eps", eps,
                   "--norm-behind", "--out", f"{name}.safetensors")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "AttentionLayer(H=2, d=12, residual, norm behind)" in done.stdout
        layers[name] = us.load(folder / f"{name}.safetensors")
        assert layers[name].norm.eps == eps
    assert run(folder, "compare", "one.safetensors", "one.safetensors").returncode == 0
    done = run(folder, "compare", "one.safetensors", "other.safetensors", "--json")
    content = json.loads(done.stdout)
    assert (done.returncode, content["verdict"]) == (1, "different")
    X = np.array([content["witness"]])
    first, second = (model(X)[0] for model in layers.values())
    most = np.argmax(np.abs(first - second))
    assert content["answers"] == [first[most], second[most]]
    refused = run(folder, "convert", "whole.npz", "--heads", 2, "--coordinate", 1, "--norm-eps", 1)
    assert (refused.returncode, "say --norm-before or" in refused.stderr) == (2, True)
    refused = run(folder, "convert", "whole.npz", "--heads", 2, "--coordinate", 1, "--norm-eps", 1,
                  "--norm-behind")  # fmt: skip
    assert (refused.returncode, "leave --coordinate out" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["convert", "layer.npz", "--heads", "1", "--norm-eps", "0"],
            "looked for norm_scale. Without --norm-eps none",
        ),
        (["convert", "layer.npz", "--heads", "1", "--norm-before"], "give --norm-eps with"),
        (["convert", "layer.npz", "--heads", "3", "--coordinate", "0"], "cannot share"),
        (["convert", "absent.npz", "--heads", "1"], "no file of weights"),
        (["convert", "service.py", "--heads", "1"], "no .npz or .safetensors"),
        (["convert", "layer.npz", "--coordinate", "0"], "--heads is missing"),
        (["compare", "layer.npz", "layer.npz"], "convert layer.npz --heads H --out"),
        (["compare", "absent.npz", "layer.npz"], "no file of weights"),
        (["verify", "service:layer", "--weights", "head.npz"], "convert head.npz --out"),
        (["convert", "head.npz", "--heads", "2"], "leave out --heads"),
        (["convert", "head.npz", "--kv-heads", "1"], "leave out --kv-heads"),
        (["convert", "strange.npz"], "looked for W and v, for A, b, B and c, for q, k, v and o"),
        (["convert", "bent.npz"], "as a SingleHead: v must have shape"),
    ],
)
def test_mistakes_are_sentences(folder, words, says):
    np.savez(folder / "head.npz", W=np.eye(3), v=np.ones(3))
    np.savez(folder / "strange.npz", W=np.eye(3), v=np.ones(3), bias=np.ones(3))
    np.savez(folder / "bent.npz", W=np.eye(3), v=np.ones((1, 1, 3)))
    done = run(folder, *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


rng = np.random.default_rng(1)
K, Q = rng.standard_normal((2, 2, 1, 3))
NETWORK = us.ReluNetwork(rng.standard_normal((3, 4)), np.ones(4), np.ones(4), 0.5)
MODELS = [
    us.SingleHead(rng.standard_normal((3, 3)), np.ones(3), np.ones(3), 2.0),
    us.SingleHead.from_factors(K[0], Q[0], np.ones(3)),
    us.MultiHead(rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3))),
    us.MultiHead.from_factors(K, Q, rng.standard_normal((2, 3))),
    NETWORK,
    us.Transformer(rng.standard_normal((3, 3)), NETWORK),
    us.Transformer.from_factors(K[0], Q[0], NETWORK),
    us.AttentionLayer([us.LayerHead(np.ones((2, 3)), np.eye(3))], np.ones(2)),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_arrays_that_are_parameters_become_the_model(model, tmp_path):
    np.savez(tmp_path / "own.npz", **model.arrays())
    found = from_parameters(us.load_weights(tmp_path / "own.npz"))
    assert type(found) is type(model)
    assert found.arrays().keys() == model.arrays().keys()
    assert all(np.array_equal(x, model.arrays()[name]) for name, x in found.arrays().items())
    assert has_parameters(model.arrays())
    assert not has_parameters([*model.arrays(), "other"])
    with pytest.raises(ValueError, match="by their names"):
        from_parameters({**model.arrays(), "other": np.ones(3)})


def test_a_file_of_w_and_v_becomes_a_model_file_without_options(tmp_path):
    W, v = rng.standard_normal((3, 3)), np.ones(3)
    np.savez(tmp_path / "head.npz", W=W.astype(np.float32), v=v)  # w and c may be left out
    for words in ((), ("--heads", 1)):
        done = run(tmp_path, "convert", "head.npz", *words, "--out", "head.safetensors")
        assert done.returncode == 0, done.stderr
    model = us.load(tmp_path / "head.safetensors")
    assert us.equivalent(model, us.SingleHead(W.astype(np.float32), v), rtol=0)
    same = run(tmp_path, "verify", "head.safetensors", "--weights", "head.safetensors")
    assert same.returncode == 0, same.stderr


@pytest.mark.parametrize(
    ("words", "says", "not_said"),
    [
        (["learn", "a.safetensors", "--dim", 4, "--out", "o"], "use --dim 3.", "dim=|line dim"),
        (["audit", "a.safetensors", "--dim", 4, "--out", "o"], "use --dim 3.", "dim=|line dim"),
        (["audit", "t:f", "--dim", 4, "--out", "o"], "name it with --dim.", "as dim"),
        (["verify", "a.safetensors", "--weights", "b.safetensors"],
         "These weights take tokens of dimension 4, the target takes 3: it does not serve them",
         "dim="),
        (["verify", "t:f", "--weights", "b.safetensors"], "it does not serve these weights", "dim"),
    ],
)  # fmt: skip
def test_another_dimension_is_said_in_the_command_s_words(tmp_path, words, says, not_said):
    for name, d in (("a", 3), ("b", 4)):
        us.SingleHead(np.eye(d), np.ones(d)).save(tmp_path / f"{name}.safetensors")
    (tmp_path / "t.py").write_text("def f(X):\n    return X.reshape(len(X), -1, 3).sum((1, 2))\n")
    done = run(tmp_path, *words, "--no-report")
    kind, status = ("NotServed", 1) if "it does not serve them" in says else ("DimensionRefused", 3)
    said = done.stderr.partition(f"{kind}: ")[2]
    assert done.returncode == status, done.stderr
    assert says in said
    assert not re.search(rf"\b({not_said})", said.replace("dimension", "").replace("--dim", ""))


def test_what_is_missing_is_named_by_its_option(tmp_path):
    shapes = {"q": (8, 12), "k": (4, 12), "v": (4, 12), "o": (12, 8)}
    layer = {f"{n}_proj.weight": rng.standard_normal(s) for n, s in shapes.items()}
    np.savez(tmp_path / "one.npz", **layer)  # type: ignore[arg-type]
    both = {f"{i}.{n}": x for i in "ab" for n, x in layer.items()}
    np.savez(tmp_path / "two.npz", **both)  # type: ignore[arg-type]
    for words, says in (
        (("one.npz", "--heads", 4), "where query heads share key heads, give --kv-heads"),
        (("two.npz", "--heads", 4), "2 attention layers are there: name one with --layer: a, b."),
    ):
        refused = run(tmp_path, "convert", *words)
        assert refused.returncode == 2
        assert says in " ".join(refused.stderr.split())
    done = run(tmp_path, "convert", "two.npz", "--heads", 4, "--layer", "b", "--kv-heads", 2)
    assert done.returncode == 0, done.stderr


def test_compare_says_that_a_layer_is_not_one_number_of_it(folder):
    for more, name in (((), "whole"), (("--coordinate", 3), "one")):
        done = run(folder, "convert", "layer.npz", "--heads", 2, "--rotary-base", 1e4, *more,
                   "--out", f"{name}.safetensors")  # fmt: skip
        assert done.returncode == 0, done.stderr
    for files, said in (
        (("whole", "one"), "vectors of 5 numbers and one number: a whole layer"),
        (("one", "whole"), "one number and vectors of 5 numbers: a whole layer"),
    ):
        done = run(folder, "compare", *(f"{name}.safetensors" for name in files))
        shown = " ".join(done.stdout.replace("│", " ").split())
        assert (done.returncode, said in shown) == (1, True), shown
        assert "convert --coordinate" in shown
        assert "inf" not in shown
