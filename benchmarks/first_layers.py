"""Write the first layers of a GGUF model as a model of its own: a drafter of the same vocabulary, for measurements.

    PYTHONPATH=src python benchmarks/first_layers.py MODEL.gguf 10 OUT.gguf

Every tensor keeps its bytes; what is left out are the blocks from the given number on. The metadata are the model's,
but for the number of blocks. Such a drafter guesses as `self:K` does, and reads its own weights to do so.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
from pathlib import Path

from pagoda.catalog.gguf import Header, TensorInfo, read_header

ALIGNMENT = "general.alignment"


def string(text: str) -> bytes:
    """As GGUF has it."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def kept(header: Header, layers: int) -> list[TensorInfo]:
    """All tensors but those of later blocks."""
    block = re.compile(r"blk\.(\d+)\.")
    return [t for t in header.tensors.values() if not (at := block.match(t.name)) or int(at[1]) < layers]


def cut(model: bytes, header: Header, layers: int) -> bytes:
    """The file of the first layers."""
    key = f"{header.metadata['general.architecture']}.block_count"
    if not 0 < layers <= int(str(header.metadata[key])):
        raise ValueError(f"the model has {header.metadata[key]} layers, {layers} are asked for")
    first = model.index(string(next(iter(header.tensors))))  # where the metadata end
    metadata = bytearray(model[24:first])
    at = metadata.index(string(key)) + len(string(key)) + 4
    struct.pack_into("<I", metadata, at, layers)
    alignment = int(str(header.metadata.get(ALIGNMENT, 32)))
    tensors, table, offset = kept(header, layers), b"", 0
    for tensor in tensors:
        shape = tensor.shape[::-1]
        raw_type = model[model.index(string(tensor.name)) + len(string(tensor.name)) + 4 + 8 * len(shape) :][:4]
        table += string(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + raw_type
        table += struct.pack("<Q", offset)
        offset += -(-tensor.size // alignment) * alignment
    head = struct.pack("<4sIQQ", b"GGUF", header.version, len(tensors), len(header.metadata)) + metadata + table
    data = [model[t.offset : t.offset + t.size].ljust(-(-t.size // alignment) * alignment, b"\0") for t in tensors]
    return b"".join([head.ljust(-(-len(head) // alignment) * alignment, b"\0"), *data])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("layers", type=int)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    with args.model.open("rb") as file:
        header = read_header(file.fileno(), os.fstat(file.fileno()).st_size, str(args.model))
    args.out.write_bytes(cut(args.model.read_bytes(), header, args.layers))


if __name__ == "__main__":
    main()
