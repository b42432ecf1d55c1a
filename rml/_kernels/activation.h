/* Activations of the gated feed-forward block (see matmul_glu_py). */
#ifndef RML_ACTIVATION_H
#define RML_ACTIVATION_H

#include "lanes.h"

enum { RML_SILU = 0, RML_GELU_TANH = 1 };

RML_INLINE lanes sigmoid_lanes(lanes x) {
    return splat_lanes(1.0f) / (splat_lanes(1.0f) + exp_normal_lanes(-x));
}

RML_INLINE lanes activate_lanes(lanes x, int activation) {
    if (activation == RML_SILU) return x * sigmoid_lanes(x);
    const lanes cubed = splat_lanes(0.044715f) * x * x * x;
    const lanes z = splat_lanes(0.79788456f) * (x + cubed);
    return x * sigmoid_lanes(z + z);
}

#endif
