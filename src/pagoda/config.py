"""Every setting: frozen, with its unit, default and reason. Resolved once; measured facts go to `plan.Capacity`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address

from pagoda.errors import InvalidConfig

KV_FORMATS = ("f32", "f16", "int8", "int4")
MAX_CHUNK = 512
"""Most tokens of a step whose number is chosen anew each time: more make no step more efficient."""
ACTIVATIONS = ("int16", "int8", "f32")
QUANTIZE = ("q8_0", "q4_k", "q4_1", "q4_0")
"""What dense weights can become as they are loaded."""


def _loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _positive(name: str, value: int | float | None) -> None:
    if value is not None and value <= 0:
        raise InvalidConfig(f"{name} must be positive, got {value}")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and in which arithmetic."""

    model: str = "smollm2"
    """A built-in name, a path to a .gguf file, or a Hugging Face id or directory."""
    activations: str = "int16"
    """What linear layers with quantised weights read: int16 or int8 in blocks of 32, or f32 (slow, for checking).

    docs/adr/0003 has what each costs in speed and in quality.
    """
    kv_format: str = "f16"
    """How keys and values are stored: f16; int8 or int4 (a half and a third of the memory); or f32 (for checking).

    docs/arithmetic.md has what each costs in quality.
    """
    max_model_len: int | None = None
    """Longest sequence in tokens; None is the model's own training length."""
    quantize: str | None = None
    """What matrices in f32, f16 or bf16 become as they are loaded: q8_0, q4_k, q4_1 or q4_0; None leaves them.

    The embedding and the vocabulary projection become q8_0, and so do rows that are no whole blocks of 256 in q4_k;
    rows that are no whole blocks of 32 stay.
    """

    def __post_init__(self) -> None:
        """Check every range."""
        if self.activations not in ACTIVATIONS:
            raise InvalidConfig(f"activations must be one of {ACTIVATIONS}, got {self.activations!r}")
        if self.kv_format not in KV_FORMATS:
            raise InvalidConfig(f"kv_format must be one of {KV_FORMATS}, got {self.kv_format!r}")
        if self.quantize is not None and self.quantize not in QUANTIZE:
            raise InvalidConfig(f"quantize must be one of {QUANTIZE} or None, got {self.quantize!r}")
        _positive("max_model_len", self.max_model_len)


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """How much of the machine to use. None of these changes a bit of any output."""

    threads: int | None = None
    """Native worker threads; None is the cores this process may use (affinity and cgroup quota)."""
    page_size: int = 16
    """Token slots of a KV page; a power of two."""
    kv_memory: int | None = None
    """Bytes for KV pages, at most 60 % of the free memory; None is as much as `max_num_seqs` full sequences can use.

    None stays within 1 GiB, or one full sequence if that is more, so that a start does not take all of a machine.
    """
    kv_dir: str | None = None
    """Directory in which pinned, hot and evicted prefixes are kept, over restarts too; None keeps them in memory only.

    It holds what users wrote, as tokens: its mode is 0700, and it belongs to one process at a time.
    """
    kv_dir_budget: int | None = None
    """Most bytes in `kv_dir`; None is 4 GiB, or half of what is free there if that is less."""

    def __post_init__(self) -> None:
        """Check every range."""
        _positive("threads", self.threads)
        _positive("kv_memory", self.kv_memory)
        _positive("kv_dir_budget", self.kv_dir_budget)
        if self.kv_dir_budget is not None and self.kv_dir is None:
            raise InvalidConfig("kv_dir_budget needs kv_dir: say where")
        if self.page_size < 1 or self.page_size & (self.page_size - 1):
            raise InvalidConfig(f"page_size must be a power of two, got {self.page_size}")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How steps are filled. None of these changes a bit of any output."""

    max_num_seqs: int = 64
    """Most sequences in one step."""
    chunk: int | None = None
    """Most tokens computed in one step. None chooses anew for each, up to 512, so that latency targets are kept."""
    steps_in_flight: int = 2
    """Plans handed to the runner before the oldest is finished; 1 plans only after each result."""
    max_queued: int = 4096
    """Most requests waiting or running; one more is refused."""
    max_queued_tokens: int = 2**22
    """Most prompt tokens of requests waiting or running; a request beyond them is refused."""
    ttft_target_ms: float | None = None
    """TTFT to keep for requests that name none, in milliseconds; what cannot keep it is refused. None has no target."""
    tpot_target_ms: float | None = None
    """TPOT to keep for requests that name none, in milliseconds.

    None keeps steps that compute prompts within twice the time of those that do not, or 50 ms; 160 ms if many wait.
    """
    stall_s: float = 30.0
    """Seconds without progress after which the engine is declared dead."""
    speculate: str = "auto"
    """Whose guesses of next tokens steps verify, where that pays.

    auto, ngram: what followed the same words before; self:K: that, and the model's first K layers; draft:MODEL: that,
    and a smaller model of the same vocabulary; off: nobody's.
    """
    prefix_cache: bool = True
    """Keep the KV of what was computed, and find it again as the beginning of later prompts."""
    warm: str | None = None
    """A file of openings, a JSON object on each line, that are computed and pinned before the first request is served.

    docs/http.md has its form.
    """

    def __post_init__(self) -> None:
        """Check every range."""
        for name in (
            "max_num_seqs", "chunk", "steps_in_flight", "max_queued", "stall_s", "max_queued_tokens", "ttft_target_ms",
            "tpot_target_ms",
        ):  # fmt: skip
            _positive(name, getattr(self, name))
        if not re.fullmatch(r"auto|ngram|off|self:[1-9]\d{0,3}|draft:.+", self.speculate):
            raise InvalidConfig(
                f"speculate must be auto, ngram, self:K (K layers), draft:MODEL or off, got {self.speculate!r}"
            )
        if self.warm is not None and not self.prefix_cache:
            raise InvalidConfig(
                f"warm names {self.warm}, and without prefix_cache nothing can be kept: drop one of them"
            )

    @property
    def rows(self) -> int:
        """Most tokens of any step."""
        return MAX_CHUNK if self.chunk is None else self.chunk


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All that an engine needs to start."""

    model: ModelConfig = field(default_factory=ModelConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        """Check what one part asks of another."""
        if self.machine.kv_dir is not None and not self.scheduler.prefix_cache:
            raise InvalidConfig("kv_dir keeps prefixes, and prefix_cache is off: leave out one of them")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The front desk."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """TCP port; 0 takes a free one."""
    served_model_name: str | None = None
    """The model's name in the API; None is the name it was loaded by."""
    max_output_tokens: int = 4096
    """Cap on the output of any one choice, whatever the request says."""
    max_body_bytes: int = 8 * 1024 * 1024
    """Longest request body read."""
    api_keys: str | None = None
    """The file of API keys (`pagoda keys new`); None needs no key."""
    insecure: bool = False
    """Serve without keys on an address that other machines reach."""
    drain_timeout: float = 10.0
    """Seconds that answers under way may go on after the first SIGINT or SIGTERM."""
    sampling_defaults: str = "model"
    """What holds where a request says nothing: `model`, as the model's file recommends; `openai`, as OpenAI's API."""
    metrics_compat: str | None = None
    """`vllm` adds vLLM's names to `/metrics`; None has Pagoda's alone."""
    tenant_pin_tokens: int = 4096
    """Most tokens that one tenant may have pinned for itself; an administrator's pins are bounded by the pages only."""

    def __post_init__(self) -> None:
        """Check every range."""
        if not 0 <= self.port <= 65535:
            raise InvalidConfig(f"port must be 0 to 65535, got {self.port}")
        _positive("max_output_tokens", self.max_output_tokens)
        _positive("max_body_bytes", self.max_body_bytes)
        if self.drain_timeout < 0:
            raise InvalidConfig(f"drain_timeout must be at least 0, got {self.drain_timeout:g}")
        if self.sampling_defaults not in ("model", "openai"):
            raise InvalidConfig(f"sampling_defaults must be model or openai, got {self.sampling_defaults!r}")
        if self.metrics_compat not in (None, "vllm"):
            raise InvalidConfig(f"metrics_compat must be vllm, got {self.metrics_compat!r}")
        if self.api_keys is None and not self.insecure and not _loopback(self.host):
            raise InvalidConfig(
                f"anyone who reaches {self.host} could use this server: give it keys (`pagoda keys new NAME`, then "
                "--api-keys FILE), or say --insecure"
            )
        _positive("tenant_pin_tokens", self.tenant_pin_tokens)
