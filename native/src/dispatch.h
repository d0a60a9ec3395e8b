// Which instruction sets were built, and which of them this machine has.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace pagoda {

std::vector<std::string> usable_isas();
// Throws std::invalid_argument for a name that is not usable here.
const Kernels& kernels_for(const std::string& isa);

}  // namespace pagoda
