"""Make gemma3_logits.npz: what Gemma 3 270M (the built-in model's Q4_K_M GGUF) says about two texts, in full precision.

    pip install torch transformers gguf
    python tests/golden/make_gemma3.py gemma3-270m.gguf

As make_smollm2.py: the `gguf` package dequantises to float32, transformers' Gemma3ForCausalLM computes in float32 with
eager attention, and its own reading of the file's vocabulary makes the ids. Arrays, for N positions over both texts:

| array | shape | what |
|---|---|---|
| texts | [S] | the texts |
| offsets, ids | [S + 1], [N] | sequence s is `ids[offsets[s]:offsets[s + 1]]`; row n is the answer after `ids[n]` |
| top_ids, top_logp | [N, 64] | the likeliest tokens, in descending order |
| spot_ids, spot_logp | [N, 32] | drawn uniformly from the whole vocabulary |
| model_sha256, versions | [] | of the GGUF file; of the packages |
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

TEXTS = (
    "The lighthouse keeper counted 1,024 steps every morning; by his own reckoning that was 373,760 a year. "
    "\"Why not use the lift?\" asked the visitor.\n\tHe smiled -- and pointed at the sea.",
    "Der Zug nach München fährt um 7:45 Uhr. 東京は今日も雨です。 def f(x):\n    return x ** 2  # naïve café ☕",
)  # fmt: skip
TOP, SPOT = 64, 32
PLACES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def place(name: str) -> str:
    """The transformers name of a GGUF tensor."""
    outer = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in outer:
        return outer[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{PLACES[part]}.weight"


def build(reader: gguf.GGUFReader) -> Gemma3ForCausalLM:
    """The model in float32. The file's norms are 1 + w."""
    state = {}
    for tensor in reader.tensors:
        value = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        state[place(tensor.name)] = torch.from_numpy(value - 1 if "norm" in tensor.name else value)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config = Gemma3TextConfig(
        vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256, sliding_window=512, rms_norm_eps=1e-6,
        max_position_embeddings=32768, tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    net = Gemma3ForCausalLM(config).to(torch.float32).eval()
    net.load_state_dict(state, strict=True)
    return net


def main(path: Path) -> None:
    """Write the golden file."""
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    sequences = [tokenizer(text)["input_ids"] for text in TEXTS]
    net, rng, rows = build(gguf.GGUFReader(path)), np.random.default_rng(11), []
    with torch.inference_mode():
        for ids in sequences:
            rows.append(torch.log_softmax(net(torch.tensor([ids])).logits[0].double(), -1).numpy())
    logp = np.concatenate(rows)
    top = np.argsort(-logp, axis=1, kind="stable")[:, :TOP]
    spot = rng.integers(0, logp.shape[1], (len(logp), SPOT))
    np.savez_compressed(
        Path(__file__).with_name("gemma3_logits.npz"),
        texts=np.array(TEXTS),
        ids=np.concatenate(sequences).astype(np.int32),
        offsets=np.cumsum([0, *map(len, sequences)]).astype(np.int32),
        top_ids=top.astype(np.int32),
        top_logp=np.take_along_axis(logp, top, 1).astype(np.float32),
        spot_ids=spot.astype(np.int32),
        spot_logp=np.take_along_axis(logp, spot, 1).astype(np.float32),
        model_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        versions=" ".join(f"{name}=={version(name)}" for name in ("torch", "transformers", "gguf", "numpy")),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
