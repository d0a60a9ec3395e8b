"""Make smollm2_logits.npz: what SmolLM2-135M-Instruct (the Q4_1 GGUF) says about five short texts, in full precision.

    pip install -e '.[golden,test]'            # or any place with torch, transformers, gguf, tokenizers
    python tests/golden/make_smollm2.py smollm2.gguf

Nothing here is Pagoda's: the `gguf` package dequantises the tensors to float32 and transformers' LlamaForCausalLM
computes in float32 with eager attention, so an error in our reading of the file, in our kernels or in our model file
cannot hide in both. Every sequence starts at position 0 and is computed alone. N positions over all sequences, V the
vocabulary; log-probabilities are natural logarithms of the softmax of the raw logits, from float32 logits, the softmax
taken in float64, stored as float32:

| array | shape | what |
|---|---|---|
| names, texts | [S] | of the sequences |
| offsets, ids | [S + 1], [N] | sequence s is `ids[offsets[s]:offsets[s + 1]]`; row n is the answer after `ids[n]` |
| top_ids, top_logp | [N, 256] | the most probable tokens, in descending order; column 0 is the greedy token |
| gap | [N] | log-probability of the first less the second |
| rest | [N] | probability of everything outside `top_ids` |
| tail_ids, tail_logp | [N, 48] | drawn from that rest in proportion to probability, with replacement |
| spot_ids, spot_logp | [N, 48] | drawn uniformly from the whole vocabulary, anew at each position |
| full_rows, full_logp | [F], [F, V] | whole rows, F positions spread over the sequences |
| noise | [] | largest difference of the stored entries from the same model in float64: the reference's own error |
| model_sha256, versions | [] | of the GGUF file; of the packages |

What a test can compute (`golden_logits.py` does): the difference of log-probabilities at 352 tokens a position;
agreement of the greedy token; KL(reference || ours) without bias from `top` and `tail`; a lower bound of it that needs
no sampling (the rest taken as one token); the exact KL at the F whole rows.

What a test expects:
- float32 activations and float32 KV: largest difference over all stored entries < 2e-3, and the greedy token equal
  wherever `gap` exceeds 4e-3;
- int8 activations and float16 KV: mean KL < 2e-3, greedy token equal at 98 % of positions or more.

For scale, measured against this file: float16 KV alone, KL below 1e-5; symmetric 8-bit activations with one scale for
32 values 6.4e-3 and 96.5 %, simulated in float32, and llama.cpp on the same GGUF 6.4e-3 and 95.9 %; one scale for 16
values 3.2e-3 and 98.5 %, for 8 values 1.9e-3 and 98.0 %; 10-bit activations with one scale for 32 4e-4 and 99.3 %.
"""

from __future__ import annotations

import argparse
import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from golden_texts import TEXTS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

TOP, TAIL, SPOT, FULL = 256, 48, 48, 3
SEED = 20240607
CONTROL = 3  # the GGUF token type of special tokens
PLACES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
Array = npt.NDArray[Any]


def halves(weight: Array, heads: int) -> Array:
    """Rows of q or k from GGUF's order (the two coordinates of a rotation adjacent) to HF's (half a head apart)."""
    width = weight.shape[0] // heads
    order = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
    rows = (np.arange(heads)[:, None] * width + order[None, :]).ravel()
    return weight[rows]


def place(name: str) -> str:
    """The transformers name of a GGUF tensor."""
    parts = name.removesuffix(".weight").split(".")
    layer = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
    return layer + PLACES[parts[-1]] + ".weight"


def build(reader: gguf.GGUFReader, meta: dict[str, Any]) -> LlamaForCausalLM:
    """The model in float32, every weight set from the file and none left over."""
    heads, groups = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    state: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        value = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if "attn_q." in tensor.name or "attn_k." in tensor.name:
            value = halves(value, heads if "attn_q." in tensor.name else groups)
        state[place(tensor.name)] = torch.from_numpy(np.ascontiguousarray(value))
    vocab, hidden = state["model.embed_tokens.weight"].shape
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=meta["llama.context_length"],
        rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": meta["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    net = LlamaForCausalLM(config).to(torch.float32).eval()
    net.load_state_dict(state, strict=True)
    return net


def tokenizer(meta: dict[str, Any]) -> Tokenizer:
    """The file's byte-level BPE; digits stand alone, as its pre-tokenizer `smollm` says."""
    if meta["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit(f"this script knows the pre-tokenizer smollm only, not {meta['tokenizer.ggml.pre']}")
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in meta["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return made


def log_softmax(net: LlamaForCausalLM, sequences: list[list[int]]) -> Array:
    """Log-probabilities [N, V] (float64) of all positions of all sequences, each computed alone."""
    rows = []
    with torch.inference_mode():
        for ids in sequences:
            logits = net(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
            rows.append(torch.log_softmax(logits.double(), -1).numpy())
    return np.concatenate(rows)


def select(logp: Array) -> dict[str, Array]:
    """What of the log-probabilities [N, V] is stored (see the header); deterministic."""
    count, vocab = logp.shape
    rng = np.random.default_rng(SEED)
    order = np.lexsort((np.broadcast_to(np.arange(vocab), logp.shape), -logp), axis=-1)  # ties: the lower id first
    top = order[:, :TOP]
    rest = np.exp(logp)
    np.put_along_axis(rest, top, 0.0, axis=1)
    mass = rest.sum(1)
    tail = np.stack([rng.choice(vocab, TAIL, p=row / row.sum()) for row in rest])
    spot = rng.integers(0, vocab, (count, SPOT))
    full = np.linspace(count // (2 * FULL), count - 1 - count // (2 * FULL), FULL).astype(np.int32)
    out: dict[str, Array] = {"rest": mass.astype(np.float32), "full_rows": full}
    out["full_logp"] = logp[full].astype(np.float32)
    for name, ids in (("top", top), ("tail", tail), ("spot", spot)):
        out[name + "_ids"] = ids.astype(np.uint16)
        out[name + "_logp"] = np.take_along_axis(logp, ids, 1).astype(np.float32)
    first, second = np.take_along_axis(logp, top[:, :2], 1).T
    out["gap"] = (first - second).astype(np.float32)
    return out


def noise(stored: dict[str, Array], exact: Array) -> float:
    """Largest difference of the stored log-probabilities from `exact` [N, V]."""
    return max(
        float(np.abs(stored[n + "_logp"] - np.take_along_axis(exact, stored[n + "_ids"].astype(np.int64), 1)).max())
        for n in ("top", "tail", "spot")
    )


def make(model: Path) -> dict[str, Any]:
    """All arrays of the golden file."""
    reader = gguf.GGUFReader(model)
    meta = {key: field.contents() for key, field in reader.fields.items()}
    encode = tokenizer(meta)
    sequences = [encode.encode(text, add_special_tokens=False).ids for text in TEXTS.values()]
    for ids, text in zip(sequences, TEXTS.values(), strict=True):
        assert encode.decode(ids, skip_special_tokens=False) == text
    net = build(reader, meta)
    stored: dict[str, Any] = dict(select(log_softmax(net, sequences)))
    stored["noise"] = np.float32(noise(stored, log_softmax(net.double(), sequences)))
    stored["ids"] = np.concatenate(sequences).astype(np.uint16)
    stored["offsets"] = np.cumsum([0] + [len(ids) for ids in sequences]).astype(np.int32)
    stored["names"], stored["texts"] = np.array(list(TEXTS)), np.array(list(TEXTS.values()))
    stored["model_sha256"] = np.array(hashlib.sha256(model.read_bytes()).hexdigest())
    used = ("torch", "transformers", "gguf", "tokenizers", "numpy")
    stored["versions"] = np.array(" ".join(f"{name}=={version(name)}" for name in used))
    return stored


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the Q4_1 GGUF of SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("smollm2_logits.npz"))
    args = parser.parse_args()
    stored = make(args.model)
    np.savez_compressed(args.out, **stored)
    lengths = dict(zip(stored["names"].tolist(), np.diff(stored["offsets"]).tolist(), strict=True))
    print(f"{args.out}: {args.out.stat().st_size} bytes, positions {lengths}, noise {stored['noise']:.2e}")
    print(f"mean probability outside the stored top {stored['rest'].mean():.4f}, {stored['versions']}")


if __name__ == "__main__":
    main()
