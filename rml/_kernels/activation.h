/* Activations of the gated feed-forward block (see matmul_glu_py). */
#ifndef RML_ACTIVATION_H
#define RML_ACTIVATION_H

#include "vec.h"

enum { RML_SILU = 0, RML_GELU_TANH = 1 };

RML_INLINE f32x16 sigmoid16(f32x16 x) { return splat16(1.0f) / (splat16(1.0f) + exp16(-x)); }

RML_INLINE f32x16 activate16(f32x16 x, int activation) {
    if (activation == RML_SILU) return x * sigmoid16(x);
    const f32x16 cubed = splat16(0.044715f) * x * x * x;
    const f32x16 z = splat16(0.79788456f) * (x + cubed);
    return x * sigmoid16(z + z);
}

#endif
