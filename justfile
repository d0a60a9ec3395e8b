# What a developer types. `just` alone lists it. `.ci/run` is the gate; `check` and `test` are its quick parts.

python := env("PYTHON", "python3")
set positional-arguments

export PATH := justfile_directory() / ".venv/bin:" + env("PATH")

_list:
    @just --list --unsorted

# A virtual environment in .venv with Pagoda in it, its source in place, and everything to test and check it
setup:
    {{ python }} -m venv .venv
    pip install --editable '.[test,dev]' cmake ninja

# Format, lint, types and import rules, as the gate checks them
check:
    ruff format --check .
    ruff check .
    mypy
    PYTHONPATH=src lint-imports

# The tests, or those named: just test tests/text -k stop
test *arguments:
    python -m pytest "$@"

# The native tests under address, undefined and thread sanitizers
native-test:
    native/tests/run build

# The kernels of AVX-VNNI and NEON, emulated; needs Debian's libsimde-dev, g++-aarch64-linux-gnu and qemu-user
emulated-test:
    native/tests/run --emulate build

# Prefill and decode speed of the default model, or of the one named; the last line is JSON
bench *arguments:
    pagoda bench offline --json "$@"

# Format, and fix what lint can fix
fmt:
    ruff format .
    ruff check --fix .
