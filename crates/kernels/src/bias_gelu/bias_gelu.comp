#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// y = gelu(x + bias), by tanh or exact: the activation of an MLP without a gate. Several workgroups share a long
// row; every thread loads all its data before it computes, since memory bandwidth is the limit.
#include "common.glsl"
#include "f16.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
layout(constant_id = 1) const uint VEC4S_PER_THREAD = 1;
// As Activations (vectors.rs): f32 or f16.
layout(constant_id = 2) const uint OUTPUT = 0;
// As Gelu (bias_gelu/mod.rs).
layout(constant_id = 3) const bool ERF = false;

// GEGLU with an up of 1 is GELU.
const uint EPILOGUE = 1;
#include "gated.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats4 x;
    Floats4 bias;
    // f32 or f16.
    Output4 y;
    Active active_rows;
    uint n;
    uint y_stride;
} push;

const bool F16 = OUTPUT == 3;

// x Φ(x), with erfc by formula 7.1.26 of Abramowitz and Stegun: absolute error 1.5e-7. Beyond ±13 the exponential is
// below the range of f32; the clamp keeps 0 · infinity away.
float exact_gelu(float x) {
    float z = min(abs(x), 13.0) * 0.70710678118;
    float t = 1.0 / (1.0 + 0.3275911 * z);
    float series =
        t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    float half_erfc = 0.5 * series * exp(-z * z);
    return x * (x < 0.0 ? half_erfc : 1.0 - half_erfc);
}

void main() {
    // Rows are along x: along y and z there may be no more than 65,535 workgroups.
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows) {
        return;
    }
    uint vec4s = push.n / 4;
    uint first = gl_WorkGroupID.y * THREADS * VEC4S_PER_THREAD + gl_LocalInvocationIndex;

    vec4 value[VEC4S_PER_THREAD];
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        // Past the end, the last vec4 is loaded again and not used: this needs no branch.
        uint i = min(first + j * THREADS, vec4s - 1);
        value[j] = push.x.data[row * vec4s + i] + push.bias.data[i];
    }
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        uint i = first + j * THREADS;
        if (i < vec4s) {
            vec4 gelu;
            [[unroll]] for (uint k = 0; k < 4; k++) {
                gelu[k] = ERF ? exact_gelu(value[j][k]) : gated(value[j][k], 1.0);
            }
            uint at = row * (push.y_stride / 4) + i;
            if (F16) {
                Words2(push.y).data[at] = f16_activations(gelu);
            } else {
                push.y.data[at] = gelu;
            }
        }
    }
}
