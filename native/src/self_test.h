// Whether one instruction set's kernels give the bits of the scalar build on this very machine: a compiler, an emulator or a
// processor that does not is found before it answers anybody. Takes some milliseconds.
#pragma once

#include <string>

#include "kernels.h"

namespace pagoda {

// The first kernel that differs, and in what; empty if none does.
std::string self_test(const Kernels& kernels);

}  // namespace pagoda
