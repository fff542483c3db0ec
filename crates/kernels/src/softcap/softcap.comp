#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// x = cap · tanh(x / cap) in place, for the active rows.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Logits { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };

layout(push_constant, scalar) uniform Push {
    Logits logits;
    Active active_rows;
    uint n;
    float cap;
} push;

// Where |x| is small the quotient below would lose its last bits; where it is large, e²ˣ would overflow.
float tanh_of(float x) {
    float squared = x * x;
    float small = x * (1.0 - squared * (0.33333333 - squared * (0.13333333 - squared * 0.05396825)));
    float large = 1.0 - 2.0 / (exp(2.0 * clamp(x, -40.0, 40.0)) + 1.0);
    // NaN stays NaN: it is not below the limit, and clamp may drop it.
    return isnan(x) ? x : abs(x) < 0.25 ? small : large;
}

void main() {
    if (gl_WorkGroupID.y >= push.active_rows.rows) {
        return;
    }
    uint first = gl_WorkGroupID.y * push.n;
    uint stride = gl_NumWorkGroups.x * THREADS;
    for (uint i = gl_GlobalInvocationID.x; i < push.n; i += stride) {
        push.logits.data[first + i] = push.cap * tanh_of(push.logits.data[first + i] / push.cap);
    }
}
