"""A Hugging Face directory as a model: config.json, safetensors in one file or in shards, tokenizer.json.

It shows itself in GGUF's words (`hugging.translate`), so that models read it as they read GGUF. What differs is put
right as tensors are read: Gemma's norms are stored less 1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from pagoda import quant
from pagoda.backends.ops import Bytes, StoredTensor
from pagoda.catalog.gguf import TensorInfo
from pagoda.catalog.hf_blocks import blocks
from pagoda.catalog.hf_generation import translate_sampling
from pagoda.catalog.hf_quantized import UNREAD, Plan, plan
from pagoda.catalog.hf_scheme import read_scheme
from pagoda.catalog.hf_tokenizer import translate_tokenizer
from pagoda.catalog.hugging import Translation, translate
from pagoda.catalog.safetensors import Entry, read_table
from pagoda.catalog.shards import Shards, guarded
from pagoda.errors import ModelFileError, UnsupportedModel

_RAW = quant.by_name("f32")
FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
"""dtype -> weight format."""
MAX_JSON = 256 * 2**20
MAX_SHARDS = 4096
_DERIVED = (".rotary_emb.inv_freq", ".attn.masked_bias")
"""Ends of names of what checkpoints sometimes hold and nobody reads."""


class HuggingDirectory:
    """An open directory; `ModelFile`'s doors. Any number of threads may read; close it when no thread does."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read config.json, tokenizer.json and all headers.

        Raises:
            ModelFileError: a file is absent, damaged, truncated or lying.
            UnsupportedModel: a kind of model, tokenizer or number that Pagoda does not know.
        """
        self.path = Path(path)
        self._shards = Shards()
        guarded(self._shards, self._open)

    def _open(self) -> None:
        config = self._json("config.json")
        self._scheme = read_scheme(config.get("quantization_config"), self.name)
        found = translate(config, self.name)
        self.architecture = found.architecture
        self._entries = self._table_of_all()
        self._plans: dict[str, Plan] = {}
        infos = self._quantised(found) | self._infos(config, found)
        self._factors = {name: np.array(values, np.float32) for name, values in found.factors.items()}
        made = {name: TensorInfo(name, f.shape, quant.by_name("f32"), 0, f.nbytes) for name, f in self._factors.items()}
        self._stored = infos
        self._plus_one = found.plus_one
        shown = {name: self._shown(info) for name, info in infos.items()}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(shown | made)
        self.metadata: Mapping[str, object] = MappingProxyType(found.metadata | self._tokenizer(config))

    # --- files ---------------------------------------------------------------------------------------------------

    def _json(self, name: str, *, needed: bool = True) -> dict[str, Any]:
        raw = self._text(name, needed=needed)
        if raw is None:
            return {}
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{self.path / name}: is no JSON: {error!s:.80}") from error
        if not isinstance(value, dict):
            raise ModelFileError(f"{self.path / name}: must be an object, found {value!r:.60}")
        return value

    def _text(self, name: str, *, needed: bool = False) -> str | None:
        path = self.path / name
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_JSON + 1)
        except FileNotFoundError:
            if needed:
                raise ModelFileError(f"{self.path}: has no {name}; a Hugging Face model's directory has one") from None
            return None
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
        if len(raw) > MAX_JSON:
            raise ModelFileError(f"{path}: has over {MAX_JSON} bytes")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{path}: is not UTF-8: {error.reason}") from error

    def _tables(self) -> list[dict[str, Entry]]:
        """Of each shard; the index is held against what the shards hold."""
        index = self._json("model.safetensors.index.json", needed=False)
        if not index:
            if not (self.path / "model.safetensors").exists():
                raise ModelFileError(
                    f"{self.path}: has neither model.safetensors nor model.safetensors.index.json; "
                    "weights in other files (.bin, .pth) cannot be read"
                )
            return [self._table("model.safetensors")]
        places = index.get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(each, str) for each in places.values()):
            raise ModelFileError(f"{self.path}: model.safetensors.index.json has no weight_map of names to files")
        files = sorted(set(places.values()))
        if len(files) > MAX_SHARDS or any(Path(file).name != file or file in ("", ".", "..") for file in files):
            raise ModelFileError(
                f"{self.path}: the index names files outside the directory, or too many: {files!r:.80}"
            )
        tables = [self._table(file) for file in files]
        for name, file in places.items():
            if name not in tables[files.index(file)]:
                raise ModelFileError(f"{self.path / file}: has no tensor {name!r:.200}, which the index says it has")
        return tables

    def _table(self, file: str) -> dict[str, Entry]:
        descriptor, size = self._shards.open(self.path / file, "a safetensors file")
        return read_table(descriptor, size, str(self.path / file))

    # --- tensors -------------------------------------------------------------------------------------------------

    def _table_of_all(self) -> dict[str, tuple[int, Entry]]:
        """(shard, entry) of every tensor, by the checkpoint's names."""
        entries: dict[str, tuple[int, Entry]] = {}
        for shard, table in enumerate(self._tables()):
            for name, entry in table.items():
                if name in entries:
                    raise ModelFileError(f"{self._shards.paths[shard]}: tensor {name!r} is in another shard too")
                entries[name] = shard, entry
        return entries

    def _bytes(self, name: str) -> Bytes:
        """Of a tensor, by the checkpoint's name."""
        shard, entry = self._entries[name]
        return self._shards.tensor(TensorInfo(name, entry.shape, _RAW, entry.offset, entry.size, shard)).raw

    def _quantised(self, found: Translation) -> dict[str, TensorInfo]:
        """Matrices that several tensors make up, which leave `_entries`' list for others."""
        if self._scheme is None:
            return {}
        entries = {name: entry for name, (_, entry) in self._entries.items()}
        infos = {}
        for name, ours in found.names.items():
            if not name.endswith(".weight"):
                continue
            module = name.removesuffix(".weight")
            made = plan(module, self._scheme, entries, self.name, lambda entry: self._bytes(entry.name))
            if made is not None:
                self._plans[ours] = made
                size = made.shape[0] * made.shape[1] // made.form.block * made.form.block_bytes
                infos[ours] = TensorInfo(ours, made.shape, made.form, 0, size, order=made.order)
        return infos

    def _infos(self, config: Mapping[str, Any], found: Translation) -> dict[str, TensorInfo]:
        """Other tensors as they are stored, by GGUF's names; those that it has no name for keep their own."""
        infos: dict[str, TensorInfo] = {}
        used = {entry.name for made in self._plans.values() for entry in made.parts.values()}
        for shard, entry in self._entries.values():
            if entry.name.endswith(_DERIVED) or (entry.name == "lm_head.weight" and config.get("tie_word_embeddings")):
                continue
            if entry.name in used or (self._scheme and entry.name.rpartition(".")[2] in UNREAD):
                continue
            if self._adds_nothing(entry, found):
                continue
            name = found.names.get(entry.name, entry.name)
            if name in infos:
                raise ModelFileError(f"{self._shards.paths[shard]}: tensor {entry.name!r} is in another shard too")
            if entry.dtype not in FORMATS:
                raise UnsupportedModel(
                    f"{self._shards.paths[shard]}: tensor {entry.name!r} is in {entry.dtype}; "
                    f"{', '.join(FORMATS)} can be read"
                )
            if 0 in entry.shape or not 1 <= len(entry.shape) <= 4:
                raise ModelFileError(f"{self._shards.paths[shard]}: tensor {entry.name!r} has shape {entry.shape}")
            form = quant.by_name(FORMATS[entry.dtype])
            infos[name] = TensorInfo(name, entry.shape, form, entry.offset, entry.size, shard)
        if config.get("tie_word_embeddings") is False and "output.weight" not in {*infos, *self._plans}:
            raise ModelFileError(f"{self.path}: tensor 'lm_head.weight' is missing, and config.json ties none to it")
        return infos

    def _adds_nothing(self, entry: Entry, found: Translation) -> bool:
        """Whether it is a bias of zeros, which GPTQ's writers gave matrices that have none."""
        module, _, end = entry.name.rpartition(".")
        if end != "bias" or found.names.get(f"{module}.weight") not in self._plans or entry.dtype not in FORMATS:
            return False
        wanted = found.architecture == "qwen2" and module.endswith(("q_proj", "k_proj", "v_proj"))
        return not wanted and entry.size > 0 and not self._bytes(entry.name).any()

    def _less_one(self, info: TensorInfo) -> bool:
        return bool(self._plus_one) and len(info.shape) == 1 and info.name.endswith(self._plus_one)

    def _shown(self, info: TensorInfo) -> TensorInfo:
        """As it will be once read."""
        if not self._less_one(info):
            return info
        return TensorInfo(info.name, info.shape, quant.by_name("f32"), info.offset, 4 * info.shape[0], info.shard)

    def _read(self, tensor: StoredTensor) -> StoredTensor:
        info = self._stored[tensor.name]
        if not self._less_one(info):
            return tensor
        raw = (tensor.floats() + np.float32(1)).astype(np.float32).view(np.uint8)
        return StoredTensor(tensor.name, tensor.shape, quant.by_name("f32"), raw)

    def batches(self, names: Iterable[str]) -> Iterator[list[StoredTensor]]:
        """Read several, a few at a time.

        Raises:
            ModelFileError: there is no such tensor, or a file has shrunk since it was opened.
            MemoryLimit: they do not fit into memory.
        """
        wanted, form = list(names), quant.by_name("f32")
        if absent := [name for name in wanted if name not in self.tensors]:
            raise ModelFileError(f"{self.path}: has no tensor {absent[0]!r} among its {len(self.tensors)}")
        made = [name for name in wanted if name in self._factors]
        if made:
            yield [StoredTensor(n, self._factors[n].shape, form, self._factors[n].view(np.uint8)) for n in made]
        plain = (self._stored[name] for name in wanted if name not in self._factors and name not in self._plans)
        for batch in self._shards.batches(plain):
            yield [self._read(tensor) for tensor in batch]
        for name in wanted:
            if name in self._plans:
                yield [self._put_together(name)]

    def _put_together(self, name: str) -> StoredTensor:
        made = self._plans[name]
        raw = blocks(made, lambda part: self._bytes(made.parts[part].name))
        return StoredTensor(name, made.shape, made.form, raw, made.order)

    def tensor(self, name: str) -> StoredTensor:
        """Read one; errors as `batches`."""
        return next(self.batches([name]))[0]

    # --- the rest ------------------------------------------------------------------------------------------------

    def _tokenizer(self, config: Mapping[str, Any]) -> dict[str, object]:
        embedding = self._stored.get("token_embd.weight")
        if embedding is None:
            raise ModelFileError(f"{self.path}: tensor 'model.embed_tokens.weight' is missing")
        generation = self._json("generation_config.json", needed=False)
        return translate_sampling(generation) | translate_tokenizer(
            self._json("tokenizer.json"),
            self._json("tokenizer_config.json", needed=False),
            {**config, **generation},
            self._text("chat_template.jinja"),
            embedding.shape[0],
            self.name,
        )

    @property
    def name(self) -> str:
        """The directory's path, for messages."""
        return str(self.path)

    def digest(self) -> str:
        """SHA-256 of all shards' digests and of config.json.

        Raises:
            ModelFileError: a file cannot be read, or changed meanwhile.
        """
        return self._shards.digest((self._text("config.json", needed=True) or "").encode())

    def close(self) -> None:
        """Let the files go; tensors read before stay good."""
        self._shards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
