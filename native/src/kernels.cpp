// The table of kernels for one instruction set. CMake compiles this file once for each, with its flags and namespace.
#include "kernels.h"

#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "linear_f32.h"

namespace pagoda::PAGODA_NS {

#define PAGODA_STRING2(x) #x
#define PAGODA_STRING(x) PAGODA_STRING2(x)

const Kernels kernels = {
    PAGODA_STRING(PAGODA_NS),
    quantize,
    linear_int,
    linear_f32,
    norm,
    act,
    [](const float* x, const float* y, int n, float* z) { add(x, y, n, z); },
    add_to,
    scale,
    [](const float* x, float cap, int n, float* y) { soft_cap(x, cap, n, y); },
    route,
    weigh,
    rope,
    store_kv,
    query,
    turn_back,
    attend,
    merge,
    finish,
    argmax,
    max_of,
    sum_exp,
};

}  // namespace pagoda::PAGODA_NS
