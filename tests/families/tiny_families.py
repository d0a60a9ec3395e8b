"""Tiny random models of every family, in the words of their published checkpoints: config.json and tensors.

The same numbers on every machine: NumPy's generator, by name. `as_gguf` writes them as a converter would.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_writer import File, stored
from pagoda.catalog.hugging import translate
from tiny import vocabulary

Floats = npt.NDArray[np.float32]
VOCABULARY, LENGTH = 272, 48
"""Token ids, and how many of them the golden sequence has."""

_COMMON: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 10000.0,
}  # fmt: skip
_SHORT, _LONG = [1.0, 1.05, 1.1, 1.2, 1.3, 1.4], [1.0, 1.5, 2.0, 3.0, 5.0, 8.0]
_PHI3 = {
    "model_type": "phi3", "tie_word_embeddings": True, "partial_rotary_factor": 0.75, "pad_token_id": 0,
    "original_max_position_embeddings": 32,
    "rope_scaling": {"type": "longrope", "short_factor": _SHORT, "long_factor": _LONG},
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    name: _COMMON | config
    for name, config in {
        "llama2": {"model_type": "llama"},
        "llama-linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
        "llama-dynamic": {
            "model_type": "llama", "max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 3.0},
        },
        "llama3": {
            "model_type": "llama", "rope_theta": 500000.0, "tie_word_embeddings": True,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        "mistral": {"model_type": "mistral", "sliding_window": 16, "head_dim": 32},
        "qwen2": {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": True, "use_sliding_window": False},
        "qwen2-yarn": {
            "model_type": "qwen2",
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        },
        "qwen3": {"model_type": "qwen3", "head_dim": 32, "rope_theta": 1e6, "tie_word_embeddings": True},
        "gemma2": {
            "model_type": "gemma2", "head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0, "tie_word_embeddings": True,
            "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 4,
        },
        "gemma3": {
            "model_type": "gemma3_text", "head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32,
            "sliding_window_pattern": 3, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh",
            "num_hidden_layers": 4, "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "phi3-long": _PHI3,
        "phi3-short": _PHI3 | {"original_max_position_embeddings": 56},
        "smollm3": {
            "model_type": "smollm3", "num_hidden_layers": 5, "tie_word_embeddings": True, "rope_theta": 5e6,
            "pad_token_id": 0,
        },
        "mixtral": {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2},
        "qwen3moe": {
            "model_type": "qwen3_moe", "head_dim": 32, "num_experts": 6, "num_experts_per_tok": 3,
            "moe_intermediate_size": 32, "norm_topk_prob": True, "decoder_sparse_step": 1,
        },
        "olmoe": {
            "model_type": "olmoe", "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False,
            "num_key_value_heads": 4,
        },
        "gpt-oss": {
            "model_type": "gpt_oss", "head_dim": 32, "num_local_experts": 5, "num_experts_per_tok": 2,
            "sliding_window": 16, "num_hidden_layers": 4, "rope_theta": 150000.0, "initial_context_length": 16,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                "original_max_position_embeddings": 16,
            },
        },
    }.items()
}  # fmt: skip
_ADJACENT = ("llama", "smollm3")
"""Architectures whose converters put a pair's elements side by side."""


def ids() -> list[int]:
    """The golden sequence."""
    drawn: list[int] = np.random.default_rng(7).integers(0, VOCABULARY, LENGTH).tolist()
    return drawn


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The checkpoint's tensors, by the names and shapes that the published ones have."""
    width, hidden, kind = config["hidden_size"], config["intermediate_size"], config["model_type"]
    dim = config.get("head_dim", width // config["num_attention_heads"])
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, width), "model.norm.weight": (width,),
    }  # fmt: skip
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (VOCABULARY, width)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,),
        "self_attn.o_proj.weight": (width, q), "mlp.down_proj.weight": (width, hidden),
    }  # fmt: skip
    if kind == "phi3":
        layer |= {"self_attn.qkv_proj.weight": (q + 2 * kv, width), "mlp.gate_up_proj.weight": (2 * hidden, width)}
    else:
        layer |= {f"self_attn.{n}_proj.weight": (rows, width) for n, rows in (("q", q), ("k", kv), ("v", kv))}
        layer |= {f"mlp.{n}_proj.weight": (hidden, width) for n in ("gate", "up")}
    if kind == "qwen2":
        layer |= {f"self_attn.{n}_proj.bias": (rows,) for n, rows in (("q", q), ("k", kv), ("v", kv))}
    if kind in ("qwen3", "gemma3_text"):
        layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    if kind.startswith("gemma"):
        layer |= {f"{n}_feedforward_layernorm.weight": (width,) for n in ("pre", "post")}
    layer = _with_experts(config, layer, (width, q, kv))
    for i in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return found


def _with_experts(
    config: Mapping[str, Any], layer: dict[str, tuple[int, ...]], widths: tuple[int, int, int]
) -> dict[str, tuple[int, ...]]:
    """A layer's tensors, with a mixture's instead of a feed-forward's."""
    (width, q, kv), kind, hidden = widths, config["model_type"], config["intermediate_size"]
    dim = q // config["num_attention_heads"]
    if kind in ("mixtral", "qwen3_moe", "olmoe"):
        layer = {name: shape for name, shape in layer.items() if "mlp." not in name}
        count = config.get("num_local_experts") or config["num_experts"]
        wide = config.get("moe_intermediate_size", hidden)
        router, expert, names = (
            ("block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2"))
            if kind == "mixtral"
            else ("mlp.gate", "mlp.experts", ("gate_proj", "up_proj", "down_proj"))
        )
        layer[f"{router}.weight"] = (count, width)
        for e in range(count):
            for name, shape in zip(names, ((wide, width), (wide, width), (width, wide)), strict=True):
                layer[f"{expert}.{e}.{name}.weight"] = shape
    if kind == "gpt_oss":
        count = config["num_local_experts"]
        layer = {name: shape for name, shape in layer.items() if "mlp." not in name} | {
            "self_attn.sinks": (config["num_attention_heads"],),
            **{f"self_attn.{n}_proj.bias": (rows,) for n, rows in (("q", q), ("k", kv), ("v", kv), ("o", width))},
            "mlp.router.weight": (count, width), "mlp.router.bias": (count,),
            "mlp.experts.gate_up_proj": (count, width, 2 * hidden),
            "mlp.experts.gate_up_proj_bias": (count, 2 * hidden),
            "mlp.experts.down_proj": (count, hidden, width), "mlp.experts.down_proj_bias": (count, width),
        }  # fmt: skip
    if kind == "qwen3_moe":
        layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    if kind == "olmoe":
        layer |= {"self_attn.q_norm.weight": (q,), "self_attn.k_norm.weight": (kv,)}
    return layer


def weights(config: Mapping[str, Any]) -> dict[str, Floats]:
    """The checkpoint: logits are spread out and hang on the whole context."""
    return {name: _random(name, shape, config["model_type"]) for name, shape in shapes(config).items()}


def _random(name: str, shape: tuple[int, ...], kind: str) -> Floats:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("norm.weight"):
        mean = 3.0 if name == "model.norm.weight" else 1.0
        return (mean * rng.uniform(0.7, 1.3, shape) - kind.startswith("gemma")).astype(np.float32)
    if name.endswith(("bias", "sinks")):
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)
    gain = 1.0 if name.endswith(("embed_tokens.weight", "o_proj.weight", "down_proj.weight")) else 1.5
    return (rng.standard_normal(shape) * gain * shape[-1] ** -0.5).astype(np.float32)


def as_gguf(
    config: Mapping[str, Any],
    format_of: Callable[[str], str] = lambda _: "f32",
) -> File:
    """The model as a converter to GGUF writes it."""
    if config["model_type"] == "gpt_oss":
        return _gpt_oss(config, format_of)
    translation = translate(config, "config.json")
    architecture = translation.architecture
    metadata = {key: value for key, value in translation.metadata.items() if not key.endswith(".rope.adjacent")}
    metadata = {"general.architecture": metadata.pop("general.architecture"), **metadata}
    metadata |= _tokenizer()
    dims = translation.metadata[f"{architecture}.rope.dimension_count"]
    assert isinstance(dims, int)
    tensors = []
    for gguf, values in _merged({translation.names[name]: x for name, x in weights(config).items()}).items():
        if translation.plus_one and gguf.endswith(translation.plus_one):
            values = values + np.float32(1)
        if architecture in _ADJACENT and gguf.endswith(("attn_q.weight", "attn_k.weight")):
            values = _adjacent(values, dims)
        tensors.append(stored(gguf, values, format_of(gguf) if values.ndim > 1 else "f32"))
    tensors += [stored(name, np.array(f, np.float32), "f32") for name, f in translation.factors.items()]
    return File(metadata, tensors)


def _tokenizer() -> dict[str, object]:
    tokens, kinds, merges = vocabulary(VOCABULARY)
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges, "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip


def _gpt_oss(config: Mapping[str, Any], format_of: Callable[[str], str]) -> File:
    """gpt-oss' checkpoint has each layer's experts in one tensor, transposed, gate and up in turn."""
    keys = {
        "block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "feed_forward_length": config["intermediate_size"],
        "expert_feed_forward_length": config["intermediate_size"], "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"], "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"], "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"], "attention.sliding_window": config["sliding_window"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "rope.freq_base": config["rope_theta"],
        "rope.scaling.type": "yarn", "rope.scaling.factor": config["rope_scaling"]["factor"],
        "rope.scaling.original_context_length": config["rope_scaling"]["original_max_position_embeddings"],
    }  # fmt: skip
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp",
        "self_attn.sinks": "attn_sinks.weight", "self_attn.o_proj": "attn_output",
        **{f"self_attn.{n}_proj": f"attn_{n}" for n in "qkv"},
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, x in weights(config).items():
        if not name.startswith("model.layers."):
            outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
            found[outer[name.removesuffix(".weight")] + ".weight"] = x
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        end = ".bias" if rest.endswith("_bias") else ".weight"
        whole = x if end == ".bias" or x.ndim < 3 else x.swapaxes(1, 2)
        if rest.startswith("mlp.experts.gate_up_proj"):
            found[f"blk.{layer}.ffn_gate_exps{end}"], found[f"blk.{layer}.ffn_up_exps{end}"] = (
                whole[:, ::2],
                whole[:, 1::2],
            )
        elif rest.startswith("mlp.experts.down_proj"):
            found[f"blk.{layer}.ffn_down_exps{end}"] = whole
        else:
            old = next(old for old in names if rest.startswith(old))
            found[f"blk.{layer}.{rest.replace(old, names[old], 1)}"] = x
    tensors = [
        stored(n, np.ascontiguousarray(x), format_of(n) if x.ndim > 1 and n.endswith("weight") else "f32")
        for n, x in found.items()
    ]
    metadata = {"general.architecture": "gpt-oss", **{f"gpt-oss.{key}": value for key, value in keys.items()}}
    return File(metadata | _tokenizer(), tensors)


def _merged(tensors: dict[str, Floats]) -> dict[str, Floats]:
    """Experts' matrices of a kind and layer in one tensor each, as converters write them today."""
    merged: dict[str, Any] = {}
    for name, values in tensors.items():
        if (found := re.fullmatch(r"(blk\.\d+\.ffn_\w+)\.(\d+)\.weight", name)) is None:
            merged[name] = values
        else:
            merged.setdefault(f"{found[1]}_exps.weight", []).append(values)
    return {name: np.stack(each) if isinstance(each, list) else each for name, each in merged.items()}


def _adjacent(rows: Floats, dim: int) -> Floats:
    """Rows of q or k from half a head apart to side by side."""
    return np.ascontiguousarray(rows.reshape(-1, 2, dim // 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape))
