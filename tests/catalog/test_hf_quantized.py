"""Quantised directories: each matrix is what its format says, bit for bit, the model is what a dense one of
the same numbers is, and each lie is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from families.test_families import log_softmax, logits_of_source
from families.tiny_families import Floats, ids
from pagoda import LLM, SamplingParams
from pagoda.backends.cpu import CpuBackend
from pagoda.catalog import HuggingDirectory, open_model
from pagoda.catalog.hf_quantized import plan
from pagoda.catalog.hf_scheme import read_scheme
from pagoda.catalog.hugging import translate
from pagoda.catalog.safetensors import Entry
from pagoda.errors import ModelFileError, UnsupportedModel
from pagoda.llm import engine_config
from pagoda.models import read_config
from pagoda.runner.sizing import size
from quantised_files import CONFIG, KINDS, Checkpoint, Raw, raw

NAMES = translate(CONFIG, "config.json").names


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


def numbers(source: HuggingDirectory, name: str) -> Floats:
    """A tensor's, in the inputs' order."""
    tensor = source.tensor(name)
    values = tensor.floats()
    if tensor.order is None:
        return values
    ordered = np.empty_like(values)
    ordered[:, tensor.order] = values
    return ordered


@pytest.mark.parametrize("name", KINDS)
def test_matrices_bit_for_bit(tmp_path: Path, name: str) -> None:
    made = KINDS[name].checkpoint()
    with HuggingDirectory(made.write(tmp_path / "quantised")) as source:
        assert set(source.tensors) == {NAMES[each] for each in made.dense}
        for theirs, values in made.dense.items():
            ours = numbers(source, NAMES[theirs])
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(ours.view(np.uint32), values.view(np.uint32), err_msg=theirs)


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_the_dense_model(tmp_path: Path, name: str) -> None:
    """With f32 activations each product is the same chain of the same numbers, but that act-order adds in another."""
    made = KINDS[name].checkpoint()
    with HuggingDirectory(made.write_dense(tmp_path / "dense")) as source:
        want = logits_of_source(source, ids())
    with HuggingDirectory(made.write(tmp_path / "quantised")) as source:
        got = logits_of_source(source, ids())
        reference = logits_of_source(source, ids(), "reference")
    if KINDS[name].act_order:
        assert np.abs(log_softmax(got) - log_softmax(want)).max() < 1e-4
    else:
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    assert np.abs(log_softmax(got) - log_softmax(reference)).max() < 1e-4
    assert np.ptp(want, axis=1).min() > 1, "logits that are all alike prove nothing"


# --- formats of ours


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("gptq-sym", "q4_0"), ("packed-sym-f16", "q4_0"), ("gptq-act-order-sym", "q4_0"), ("gptq-8-sym", "q8_0"),
        ("int8-f16", "q8_0"), ("awq-128", "q4_z128"), ("awq--1", "q4_z128"), ("awq-64", "q4_z32"),
        ("gptq-bf16", "q4_z128"), ("packed-sym", "q4_z128"), ("gptq-8-asym", "q8_z32"), ("int8", "q8_z128"),
        ("fp8-block", "f8_e4m3"), ("fp8-e5m2", "f8_e5m2"),
    ],
)  # fmt: skip
def test_what_becomes_of_it(tmp_path: Path, name: str, form: str) -> None:
    """An existing format where it holds the same numbers."""
    with HuggingDirectory(KINDS[name].checkpoint().write(tmp_path / name)) as source:
        found = {
            info.format.name for key, info in source.tensors.items() if key.startswith("blk") and "norm" not in key
        }
        assert found == {form}
        for info in source.tensors.values():
            assert info.size == source.tensor(info.name).raw.nbytes


@pytest.mark.parametrize("name", ["awq-128", "gptq-act-order", "packed-asym", "int8", "fp8-block"])
def test_sizing_is_what_is_packed(tmp_path: Path, name: str) -> None:
    path = KINDS[name].checkpoint().write(tmp_path / name)
    with HuggingDirectory(path) as source:
        sizing = size(source, engine_config(str(path)), 2**30)
        backend = CpuBackend(threads=1)
        packed = [backend.weight(source.tensor(each)) for each in source.tensors]
        assert sizing.weight_bytes == sum(
            w.packed.bytes if w.packed is not None else 2 * 4 * w.shape[0] for w in packed
        )
        # The embedding is read by the row.
        matrices = sum(w.packed.bytes for w in packed if w.packed is not None and not w.name.startswith("token"))
        assert matrices <= sizing.token_weights <= matrices + 4 * CONFIG["hidden_size"] * 2


def test_permuted_rows_take_memory(tmp_path: Path) -> None:
    found = []
    for name in ("gptq-sym", "gptq-act-order-sym"):
        path = KINDS[name].checkpoint().write(tmp_path / name)
        with HuggingDirectory(path) as source:
            found.append(size(source, engine_config(str(path)), 2**30).step)
    assert found[1] > found[0]


@pytest.mark.parametrize("name", ["awq-128", "gptq-act-order", "int8", "fp8-block"])
def test_it_runs_whole(tmp_path: Path, name: str) -> None:
    """Through the engine, with integer activations."""
    path = KINDS[name].checkpoint().write(tmp_path / name)
    with LLM(str(path), threads=2) as llm:
        done = llm.generate(["hello there", "hell"], SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
        assert [each.usage.completion_tokens for each in done] == [6, 6]


# --- what is not quantised


def test_ignore_lists(tmp_path: Path) -> None:
    """Modules by name, within a layer, and by pattern."""
    for name, key, ignored in (
        ("packed-sym", "ignore", ["lm_head", "re:.*self_attn\\.(q|k)_proj$", "model.layers.1.mlp.down_proj"]),
        ("awq-128", "modules_to_not_convert", ["q_proj", "self_attn.k_proj", "model.layers.1.mlp.down_proj"]),
        ("fp8-block", "modules_to_not_convert", ["lm_head", "q_proj", "k_proj", "model.layers.1.mlp.down_proj"]),
    ):
        made = KINDS[name].checkpoint(
            lambda module: module.endswith(("q_proj", "k_proj")) or module == "model.layers.1.mlp.down_proj"
        )
        made.config["quantization_config"][key] = ignored
        with HuggingDirectory(made.write(tmp_path / name)) as source:
            dense = {key for key, info in source.tensors.items() if info.format.name == "f32" and len(info.shape) == 2}
            layers = {f"blk.{i}.attn_{n}.weight" for i in range(2) for n in "qk"}
            assert dense == layers | {"blk.1.ffn_down.weight", "token_embd.weight", "output.weight"}
            got = logits_of_source(source, ids())
        with HuggingDirectory(made.write_dense(tmp_path / f"{name}-dense")) as source:
            np.testing.assert_array_equal(got, logits_of_source(source, ids()))


def test_groups_of_modules_with_settings_of_their_own(tmp_path: Path) -> None:
    """compressed-tensors: 8 bits for some, 4 for the rest."""
    four, eight = KINDS["packed-sym"], KINDS["packed-8"]
    made = four.checkpoint()
    finer = eight.checkpoint()
    for name in [name for name in made.tensors if ".down_proj." in name]:
        del made.tensors[name]
    made.tensors |= {name: part for name, part in finer.tensors.items() if ".down_proj." in name}
    made.dense |= {name: part for name, part in finer.dense.items() if ".down_proj." in name}
    own = eight.config()["config_groups"]["group_0"] | {"targets": ["re:.*down_proj$"]}
    made.config["quantization_config"]["config_groups"] = {
        "group_0": own,
        "group_1": four.config()["config_groups"]["group_0"],
    }
    with HuggingDirectory(made.write(tmp_path / "mixed")) as source:
        assert source.tensors["blk.0.ffn_down.weight"].format.name == "q8_z128"
        assert source.tensors["blk.0.ffn_up.weight"].format.name == "q4_z128"
        for theirs, values in made.dense.items():
            np.testing.assert_array_equal(numbers(source, NAMES[theirs]), values)


def test_what_says_how_to_quantise_activations_is_passed_over(tmp_path: Path) -> None:
    made = KINDS["fp8-tensor"].checkpoint()
    for end in ("input_scale", "k_scale"):
        made.tensors[f"model.layers.0.self_attn.q_proj.{end}"] = raw(np.ones(1), "F32")
    with HuggingDirectory(made.write(tmp_path / "static")) as source:
        read_config(source)


def test_a_quantised_vocabulary_projection(tmp_path: Path) -> None:
    made = KINDS["gptq-sym"].checkpoint()
    rng = np.random.default_rng(0)
    parts, made.dense["lm_head.weight"] = KINDS["gptq-sym"].matrix(rng, *made.dense["lm_head.weight"].shape)
    del made.tensors["lm_head.weight"]
    made.tensors |= {f"lm_head.{end}": part for end, part in parts.items()}
    with HuggingDirectory(made.write(tmp_path / "head")) as source:
        assert source.tensors["output.weight"].format.name == "q4_0"
        np.testing.assert_array_equal(numbers(source, "output.weight"), made.dense["lm_head.weight"])


def test_columns_that_experts_want_in_an_order_of_their_own() -> None:
    entries = {
        f"model.layers.0.mlp.experts.0.up_proj.{end}": Entry(
            "g_idx" if end == "g_idx" else end, part.dtype, part.shape, 0, len(part.data)
        )
        for end, part in KINDS["gptq-act-order"].matrix(np.random.default_rng(0), 16, 256)[0].items()
    }
    order = np.random.default_rng(0).permutation(np.arange(256, dtype=np.int32) // 128)
    scheme = read_scheme(KINDS["gptq-act-order"].config(), "here")
    assert scheme is not None
    with pytest.raises(UnsupportedModel, match=r"here: 'model\.layers.*up_proj': experts in act-order"):
        plan("model.layers.0.mlp.experts.0.up_proj", scheme, entries, "here", lambda _: order.view(np.uint8))


# --- lies


Q = "model.layers.0.self_attn.q_proj"


def lie(name: str, changes: dict[str, Raw | None], settings: dict[str, Any] | None = None) -> Checkpoint:
    """A checkpoint with some of one module's tensors replaced, or none in their stead; and other settings."""
    made = KINDS[name].checkpoint()
    for end, part in changes.items():
        made.tensors.pop(f"{Q}.{end}", None)
        if part is not None:
            made.tensors[f"{Q}.{end}"] = part
    for key, value in (settings or {}).items():
        *way, last = key.split(".")
        at = made.config["quantization_config"]
        for step in way:
            at = at[step]
        at[last] = value
    return made


def ints(*shape: int, value: int = 0) -> Raw:
    return raw(np.full(shape, value), "I32")


WEIGHTS = "config_groups.group_0.weights"
LIES: list[tuple[str, dict[str, Raw | None], dict[str, Any], str]] = [
    # settings
    ("awq-128", {}, {"quant_method": "aqlm"}, r"quant_method 'aqlm' cannot be read; these can: awq \(4 bits"),
    ("awq-128", {}, {"quant_method": None}, "quant_method None cannot be read; these can: awq"),
    ("awq-128", {}, {"bits": 3}, "bits 3 cannot be read, of 4 they can; these can be read: awq"),
    ("gptq-sym", {}, {"bits": 3}, "bits 3 cannot be read, of 4 or 8 they can"),
    ("gptq-sym", {}, {"bits": "4"}, "bits of quantization_config must be a number, found '4'"),
    ("packed-sym", {}, {f"{WEIGHTS}.num_bits": 3}, "num_bits 3 cannot be read, of 4 or 8 they can"),
    ("int8", {}, {f"{WEIGHTS}.num_bits": 4}, "num_bits 4 cannot be read, of 8 they can"),
    ("awq-128", {}, {"version": "gemv"}, "version 'gemv' cannot be read, with gemm or GEMM they can"),
    ("awq-128", {}, {"zero_point": False}, "AWQ weights without zero points"),
    ("gptq-sym", {}, {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' cannot be read, with gptq or"),
    ("gptq-sym", {}, {"dynamic": {"-:.*": {}}}, "settings of their own for some modules"),
    ("gptq-sym", {}, {"sym": 1}, "sym of quantization_config must be true or false, found 1"),
    ("gptq-sym", {}, {"group_size": 0}, "group_size of quantization_config must be a size or -1, found 0"),
    ("gptq-sym", {}, {"group_size": 48}, "groups of 48 weights cannot be read, of a multiple of 32 they can"),
    ("packed-sym", {}, {"format": "marlin-24"}, "format 'marlin-24' cannot be read, with pack-quantized or"),
    ("packed-sym", {}, {f"{WEIGHTS}.strategy": "tensor_group"}, "strategy 'tensor_group' cannot be read"),
    ("packed-sym", {}, {f"{WEIGHTS}.type": "float"}, "float weights stored as pack-quantized"),
    ("packed-sym", {}, {"config_groups": 1}, "config_groups of quantization_config must be an object, found 1"),
    ("packed-sym", {}, {"ignore": ["re:(a+)+$"]}, r"the pattern 're:\(a\+\)\+\$' would take too long"),
    ("packed-sym", {}, {"ignore": ["re:("]}, r"'re:\(' is no regular expression"),
    ("packed-sym", {}, {"ignore": "lm_head"}, "ignore must be a list of modules' names, found 'lm_head'"),
    ("packed-sym", {}, {"ignore": ["re:.*q_proj"]}, f"'{Q}' is quantised, and quantization_config says that it is not"),
    ("packed-sym", {}, {"config_groups.group_0.targets": ["Conv"]}, "says that it is not"),
    ("packed-sym", {}, {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse weights"),
    ("awq-128", {}, {"modules_to_not_convert": ["q_proj"]}, "says that it is not"),
    ("fp8-block", {}, {"weight_block_size": [128]}, "blocks of weights must be of two sizes"),
    ("fp8-block", {}, {"weight_block_size": [128, 48]}, "blocks of 48 columns cannot be read"),
    # tensors that are missing, of other types or shapes
    ("awq-128", {"qzeros": None}, {}, f"tensor '{Q}.qzeros' is missing"),
    ("gptq-asym", {"qzeros": None}, {}, f"tensor '{Q}.qzeros' is missing"),
    ("gptq-asym", {"scales": None}, {}, f"tensor '{Q}.scales' is missing"),
    ("packed-asym", {"weight_zero_point": None}, {}, f"tensor '{Q}.weight_zero_point' is missing"),
    ("int8", {"weight_scale": None}, {}, f"tensor '{Q}.weight_scale' is missing"),
    ("fp8-block", {"weight_scale_inv": None}, {}, f"tensor '{Q}.weight_scale_inv' is missing"),
    ("awq-128", {"qweight": ints(128, 15)}, {}, r"qweight must have shape \(128, 16\), found \(128, 15\)"),
    ("awq-128", {"qzeros": ints(2, 16)}, {}, r"qzeros must have shape \(1, 16\), found \(2, 16\)"),
    ("awq-128", {"scales": raw(np.ones((1, 120)), "F16")}, {}, r"qweight must have shape \(128, 15\), found"),
    ("awq-128", {"scales": raw(np.ones((1, 123)), "F16")}, {}, "123 rows are no whole words of 8"),
    ("awq-128", {"scales": raw(np.ones(128), "F16")}, {}, r"scales has shape \(128,\); it must have 2 dimensions"),
    ("awq-128", {"scales": ints(1, 128)}, {}, "scales is in I32; it must be in F16 or BF16 or F32"),
    ("gptq-sym", {"qweight": raw(np.ones((16, 128)), "F32")}, {}, "qweight is in F32; it must be in I32"),
    ("gptq-sym", {"qweight": ints(17, 128)}, {}, "quantised rows of 136 inputs cannot be read"),
    ("awq-128", {}, {"group_size": 64}, "has groups of 64, and there are scales for 1 groups of 128 inputs"),
    ("gptq-sym", {}, {"group_size": 32}, "has groups of 32, and there are scales for 1 groups of 128 inputs"),
    ("packed-sym", {}, {f"{WEIGHTS}.group_size": 64}, "has groups of 64, and there are scales for 1 groups"),
    ("packed-sym", {"weight_scale": raw(np.ones((127, 1)), "BF16")}, {}, r"weight_scale has shape \(127, 1\); it must"),
    ("packed-sym", {"weight_shape": raw(np.array([128, 100]), "I64")}, {}, r"weight_shape says \[128, 100\], and"),
    ("packed-asym", {"weight_zero_point": ints(17, 4)}, {}, r"weight_zero_point must have shape \(16, 4\)"),
    ("int8", {"weight": raw(np.ones((128, 128)), "F8_E4M3")}, {}, "weight is in F8_E4M3; it must be in I8"),
    ("fp8-block", {"weight": raw(np.ones((128, 128)), "I8")}, {}, "weight is in I8; it must be in F8_E4M3 or F8_E5M2"),
    ("fp8-block", {"weight_scale_inv": raw(np.ones((2, 2)), "F32")}, {}, r"weight_scale_inv has shape \(2, 2\)"),
    ("fp8-tensor", {"weight": raw(np.ones((128, 100)), "F8_E4M3")}, {}, "quantised rows of 100 inputs cannot be read"),
    # numbers
    ("gptq-sym", {"qzeros": ints(1, 16, value=0x66666666)}, {}, "its zero points are not all 8, and .* symmetric"),
    ("gptq-asym", {"g_idx": ints(128, value=1)}, {}, "g_idx names groups 1 to 1; there are 0 to 0"),
    ("gptq-asym", {"g_idx": ints(128, value=-1)}, {}, "g_idx names groups -1 to -1; there are 0 to 0"),
    ("gptq-v2", {"g_idx": raw(np.arange(128) // 65, "I32")}, {}, "g_idx has groups of 63 to 65 inputs"),
    ("gptq-asym", {"g_idx": ints(64)}, {}, r"g_idx must have shape \(128,\), found \(64,\)"),
    ("gptq-asym", {"scales": raw(np.full((1, 128), np.inf), "F16")}, {}, "scales holds scales that are NaN, inf"),
    ("fp8-block", {"weight_scale_inv": raw(np.full((1, 1), 1e31), "F32")}, {}, "scales that are NaN"),
    ("fp8-block", {"weight": raw(np.full((128, 128), 0x7F), "F8_E4M3")}, {}, "weight holds NaN or infinite numbers"),
    ("fp8-e5m2", {"weight": raw(np.full((128, 128), 0xFC), "F8_E5M2")}, {}, "weight holds NaN or infinite numbers"),
]  # fmt: skip


@pytest.mark.parametrize("case", LIES, ids=lambda case: f"{case[0]}-{case[3]:.40}")
def test_lies(tmp_path: Path, case: tuple[str, dict[str, Raw | None], dict[str, Any], str]) -> None:
    name, changes, settings, message = case
    path = lie(name, changes, settings).write(tmp_path / "lie")
    with pytest.raises((ModelFileError, UnsupportedModel), match=message) as raised, HuggingDirectory(path) as source:
        source.tensor("blk.0.attn_q.weight")
    assert str(path) in str(raised.value)


def test_quantised_without_a_word_in_config_json(tmp_path: Path) -> None:
    made = KINDS["fp8-tensor"].checkpoint()
    del made.config["quantization_config"]
    with pytest.raises(UnsupportedModel, match="is in F8_E4M3; F32, F16, BF16 can be read"):
        HuggingDirectory(made.write(tmp_path / "silent"))


def test_biases_of_zeros_that_a_writer_added(tmp_path: Path) -> None:
    """Of a family without biases; one that is not zero is refused."""
    made = KINDS["gptq-sym"].checkpoint()
    for name in [name.removesuffix(".qweight") for name in made.tensors if name.endswith(".qweight")]:
        made.tensors[f"{name}.bias"] = raw(np.zeros(made.dense[f"{name}.weight"].shape[0]), "F16")
    with HuggingDirectory(made.write(tmp_path / "zeros")) as source:
        read_config(source)
        assert not any(name.endswith("bias") for name in source.tensors)
    made.tensors[f"{Q}.bias"] = raw(np.full(128, 6e-8), "F16")
    with (
        HuggingDirectory(made.write(tmp_path / "numbers")) as source,
        pytest.raises(UnsupportedModel, match=r"no use for 'blk\.0\.attn_q\.bias'"),
    ):
        read_config(source)


def test_quantize_is_for_dense_matrices(tmp_path: Path) -> None:
    path = KINDS["fp8-block"].checkpoint().write(tmp_path / "model")
    with open_model(path, quantize="q8_0") as source:
        assert source.tensors["blk.0.attn_q.weight"].format.name == "f8_e4m3"
        assert source.tensors["token_embd.weight"].format.name == "q8_0"
        assert {t.format.name for batch in source.batches(source.tensors) for t in batch} == {"f8_e4m3", "q8_0", "f32"}
