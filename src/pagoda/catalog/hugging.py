"""From what a Hugging Face directory calls things to what GGUF files call them: hyperparameters and tensors.

Knows config.json's keys and checkpoints' tensor names, as published; models know only GGUF's. Reads no file. Values go
through as they are: whoever reads the hyperparameters checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.errors import ModelFileError, UnsupportedModel
from pagoda.models.rotary import frequencies, llama3

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "smollm3": "smollm3",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "olmoe": "olmoe",
}
"""`model_type` -> the architecture's name in GGUF files."""

MOST_OF_HEAD = 2**16

_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_qkv.weight": "self_attn.qkv_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_output.bias": "self_attn.o_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_DIFFERENT = {
    "phi3": {"ffn_up.weight": "mlp.gate_up_proj.weight"},
    "gemma": {
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "ffn_norm.weight": "pre_feedforward_layernorm.weight",
        "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    },
}


@dataclass(frozen=True, slots=True)
class Translation:
    """A directory's model in GGUF's words."""

    architecture: str
    metadata: dict[str, object]
    names: dict[str, str]
    """The checkpoint's name of a tensor -> GGUF's."""
    plus_one: tuple[str, ...]
    """Ends of names of vectors that are stored less 1."""
    factors: dict[str, list[float]]
    """Tensors that GGUF files have and checkpoints do not: rotary factors."""


def translate(config: Mapping[str, Any], path: str) -> Translation:
    """Read config.json's content.

    Raises:
        ModelFileError: a value is absurd.
        UnsupportedModel: a model of another kind.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(f"{path}: models of type {kind!r:.60} are not known; {known} are")
    architecture = ARCHITECTURES[kind]
    gemma = architecture.startswith("gemma")
    values: dict[str, object] = {key: config[name] for key, name in _KEYS.items() if config.get(name) is not None}
    factors = _rope(config, architecture, values, path)
    _window(config, architecture, values, path)
    _check_smollm3(config, path)
    if gemma:
        _caps(config, values)
    experts = _experts(config, values, path)
    layer = _LAYER | experts | _DIFFERENT.get("gemma" if gemma else architecture, {})
    layers = values.get("block_count")
    if type(layers) is not int or not 1 <= layers < 2**16:
        raise ModelFileError(f"{path}: num_hidden_layers must be a count, found {layers!r:.60}")
    names = {hf: gguf for gguf, hf in _OUTER.items()}
    names |= {f"model.layers.{i}.{hf}": f"blk.{i}.{gguf}" for i in range(layers) for gguf, hf in layer.items()}
    return Translation(
        architecture,
        {f"{architecture}.{key}": value for key, value in values.items()} | {"general.architecture": architecture},
        names,
        ("norm.weight",) if gemma else (),
        factors,
    )


_EXPERTS = {
    "mixtral": ("block_sparse_moe.gate.weight", "block_sparse_moe.experts.{}.{}.weight", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp.gate.weight", "mlp.experts.{}.{}.weight", ("gate_proj", "up_proj", "down_proj")),
    "olmoe": ("mlp.gate.weight", "mlp.experts.{}.{}.weight", ("gate_proj", "up_proj", "down_proj")),
}
"""By `model_type`: names of the router, and of an expert's matrices."""


def _experts(config: Mapping[str, Any], values: dict[str, object], path: str) -> dict[str, str]:
    """Names of a layer's experts; fills in their keys."""
    kind = config["model_type"]
    if kind not in _EXPERTS:
        return {}
    count = config.get("num_local_experts", config.get("num_experts"))
    if type(count) is not int or not 1 <= count < 2**14:
        raise ModelFileError(f"{path}: the number of experts must be a count, found {count!r:.60}")
    values["expert_count"], values["expert_used_count"] = count, config.get("num_experts_per_tok")
    if config.get("moe_intermediate_size") is not None:
        values["expert_feed_forward_length"] = config["moe_intermediate_size"]
    normed = config.get("norm_topk_prob", kind != "olmoe")
    odd = {k: config.get(k) for k in ("mlp_only_layers", "clip_qkv") if config.get(k)}
    if (
        (kind == "qwen3_moe" and not normed)
        or (kind == "olmoe" and normed)
        or odd
        or config.get("decoder_sparse_step", 1) != 1
    ):
        raise UnsupportedModel(f"{path}: {kind} with norm_topk_prob {normed} and {odd} is not known")
    router, expert, (gate, up, down) = _EXPERTS[kind]
    names = {"ffn_gate_inp.weight": router}
    for e in range(count):
        for gguf, hf in (("ffn_gate", gate), ("ffn_up", up), ("ffn_down", down)):
            names[f"{gguf}.{e}.weight"] = expert.format(e, hf)
    return names


def _number(config: Mapping[str, Any], key: str, path: str, default: float | None = None) -> float:
    found = config.get(key)
    found = default if found is None else found
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e12:
        raise ModelFileError(f"{path}: {key} must be a positive number, found {found!r:.60}")
    return found


def _object(config: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    """An object, empty if there is none."""
    found = config.get(key)
    if found is not None and not isinstance(found, dict):
        raise ModelFileError(f"{path}: {key} must be an object, found {found!r:.60}")
    return found or {}


def _head_dim(config: Mapping[str, Any], path: str) -> int:
    whole = _number(config, "hidden_size", path) // _number(config, "num_attention_heads", path)
    found = int(_number(config, "head_dim", path, max(whole, 1)))
    if not 1 <= found <= MOST_OF_HEAD:
        raise ModelFileError(f"{path}: heads of {found} elements are none; at most {MOST_OF_HEAD} are believed")
    return found


def _rope(config: Mapping[str, Any], architecture: str, values: dict[str, object], path: str) -> dict[str, list[float]]:
    """Fill in rotary keys, from `rope_parameters` (as transformers 5 writes it) or `rope_theta` and `rope_scaling`."""
    given, local = _object(config, "rope_parameters", path), None
    if "full_attention" in given:  # tables by kind of layer
        local, given = _object(given, "sliding_attention", path), _object(given, "full_attention", path)
    given = {**_object(config, "rope_scaling", path), **given}
    merged = {**config, **given}
    default = 1e6 if architecture == "gemma3" else 1e4
    base = values["rope.freq_base"] = _number(merged, "rope_theta", path, default)
    if architecture == "gemma3":
        values["rope.freq_base_swa"] = (
            _number(local, "rope_theta", path, 1e4) if local else _number(config, "rope_local_base_freq", path, 1e4)
        )
    dims = int(_number(merged, "partial_rotary_factor", path, 1.0) * _head_dim(config, path))
    values["rope.dimension_count"] = dims
    values["rope.adjacent"] = False
    kind = given.get("rope_type", given.get("type", "default"))
    original = int(
        _number(merged, "original_max_position_embeddings", path, _number(config, "max_position_embeddings", path))
    )
    if kind in ("default", None):
        return {}
    if kind in ("linear", "dynamic", "yarn"):
        values["rope.scaling.type"] = kind
        factor = values["rope.scaling.factor"] = _number(given, "factor", path)
        if kind == "dynamic":  # what it is stretched to, as a context's length means it everywhere else
            values["rope.scaling.original_context_length"] = original
            values["context_length"] = max(original, int(original * factor))
        if kind == "yarn":
            values["rope.scaling.original_context_length"] = original
            values["rope.scaling.yarn_beta_fast"] = _number(given, "beta_fast", path, 32.0)
            values["rope.scaling.yarn_beta_slow"] = _number(given, "beta_slow", path, 1.0)
            values["rope.scaling.yarn_truncate"] = given.get("truncate", True)
            if given.get("attention_factor") is not None:
                values["rope.scaling.attn_factor"] = _number(given, "attention_factor", path)
        return {}
    if kind == "llama3":
        low, high = (_number(given, f"{name}_freq_factor", path) for name in ("low", "high"))
        if low >= high:
            raise ModelFileError(f"{path}: low_freq_factor is {low}, and must be less than high_freq_factor, {high}")
        plain = frequencies(base, dims)
        turned = llama3(plain, _number(given, "factor", path), low, high, original)
        return {"rope_freqs.weight": [f / t for f, t in zip(plain, turned, strict=True)]}
    if kind in ("longrope", "su"):
        values["rope.scaling.type"] = "longrope"
        values["rope.scaling.original_context_length"] = original
        if given.get("attention_factor") is not None:
            values["rope.scaling.attn_factor"] = _number(given, "attention_factor", path)
        return {
            f"rope_factors_{name}.weight": _factors(given, f"{name}_factor", dims // 2, path)
            for name in ("short", "long")
        }
    raise UnsupportedModel(
        f"{path}: rotary frequencies scaled as {kind!r:.60} are not known; linear, dynamic, yarn, llama3 and longrope "
        "are"
    )


def _factors(given: Mapping[str, Any], key: str, count: int, path: str) -> list[float]:
    found = given.get(key)
    if not isinstance(found, list) or len(found) != count:
        raise ModelFileError(f"{path}: {key} must be {count} numbers, found {found!r:.60}")
    return [_number({key: each}, key, path) for each in found]


def _window(config: Mapping[str, Any], architecture: str, values: dict[str, object], path: str) -> None:
    """Windows: on all layers, or on those that `layer_types` or a pattern's length says."""
    window = config.get("sliding_window")
    types, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if window is None or config.get("use_sliding_window") is False:
        return
    if architecture in ("qwen2", "qwen3", "smollm3", "qwen3moe", "olmoe") or config["model_type"] == "mixtral":
        raise UnsupportedModel(f"{path}: {config['model_type']} with sliding windows is not known")
    values["attention.sliding_window"] = window
    if not architecture.startswith("gemma"):
        return
    if isinstance(types, list):
        values["attention.sliding_window_pattern"] = [each == "sliding_attention" for each in types]
    elif isinstance(layers, int) and isinstance(every := config.get("sliding_window_pattern"), int) and every > 0:
        values["attention.sliding_window_pattern"] = [(i + 1) % every > 0 for i in range(layers)]


def _caps(config: Mapping[str, Any], values: dict[str, object]) -> None:
    """Gemma's own: soft caps, and how scores are scaled."""
    for gguf, name in (
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ):
        if config.get(name) is not None:
            values[gguf] = config[name]
    scalar = config.get("query_pre_attn_scalar")
    if isinstance(scalar, int | float) and scalar > 0:
        values["attention.scale"] = float(scalar) ** -0.5


def _check_smollm3(config: Mapping[str, Any], path: str) -> None:
    """Every fourth layer without rotation is all that is known."""
    rotated = config.get("no_rope_layers")
    if isinstance(rotated, list) and rotated != [int((i + 1) % 4 > 0) for i in range(len(rotated))]:
        raise UnsupportedModel(f"{path}: no_rope_layers other than every fourth are not known: {rotated!r:.60}")
