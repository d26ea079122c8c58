"""From a model's own weights and its float32 endpoint to "these weights", by the command line."""

from __future__ import annotations

import json
import textwrap

import numpy as np
import pytest
from tests.cli.test_cli import run

import unsoftmax as us

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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["convert", "layer.npz", "--heads", "1"], "--coordinate is missing"),
        (["convert", "layer.npz", "--heads", "3", "--coordinate", "0"], "cannot share"),
        (["convert", "absent.npz", "--heads", "1"], "no file of weights"),
        (["convert", "service.py", "--heads", "1"], "no .npz or .safetensors"),
        (["compare", "layer.npz", "layer.npz"], "unsoftmax convert layer.npz"),
    ],
)
def test_mistakes_are_sentences(folder, words, says):
    done = run(folder, *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
