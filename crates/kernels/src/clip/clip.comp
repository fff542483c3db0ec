#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Clipped linear layers: clamps rows to ranges, between one product and the next.
//   y = clamp(x)                                                              with a range per column
//   y = clamp(gelu(clamp(gate)) · clamp(up))                                  if GATED, with three ranges
// Several workgroups share a long row; every thread loads all its data before it computes, since memory bandwidth
// is the limit. Where y is x, a thread overwrites only what it has loaded itself.
#include "common.glsl"
#include "f16.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
layout(constant_id = 1) const uint VEC4S_PER_THREAD = 1;
// As Activations (vectors.rs): f32 or f16.
layout(constant_id = 2) const uint OUTPUT = 0;
layout(constant_id = 3) const bool GATED = false;

const uint EPILOGUE = 1;
#include "gated.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    // Rows of n values, or of n values of gate and n of up.
    Floats4 x;
    // Low and high of each column, unless GATED.
    Floats4 ranges;
    // f32 or f16.
    Output4 y;
    Active active_rows;
    uint n;
    uint x_stride;
    uint y_stride;
    // Start of a row within its stride.
    uint y_first;
    float gate_low;
    float gate_high;
    float up_low;
    float up_high;
    float low;
    float high;
} push;

const bool F16 = OUTPUT == 3;

// As torch.clamp: NaN stays NaN, and where low exceeds high the result is high, which clamp() leaves undefined.
vec4 clip(vec4 x, vec4 low, vec4 high) {
    return mix(min(max(x, low), high), x, isnan(x));
}

vec4 clip(vec4 x, float low, float high) {
    return clip(x, vec4(low), vec4(high));
}

void main() {
    // Rows are along x: along y and z there may be no more than 65,535 workgroups.
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows) {
        return;
    }
    uint vec4s = push.n / 4;
    uint first = gl_WorkGroupID.y * THREADS * VEC4S_PER_THREAD + gl_LocalInvocationIndex;
    uint from = row * (push.x_stride / 4);

    vec4 value[VEC4S_PER_THREAD];
    // The low and the high ends of the ranges, or the up values.
    vec4 low[VEC4S_PER_THREAD];
    vec4 high[VEC4S_PER_THREAD];
    vec4 up[VEC4S_PER_THREAD];
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        // Past the end, the last vec4 is loaded again and not used: this needs no branch.
        uint i = min(first + j * THREADS, vec4s - 1);
        value[j] = push.x.data[from + i];
        if (GATED) {
            up[j] = push.x.data[from + vec4s + i];
        } else {
            vec4 a = push.ranges.data[2 * i];
            vec4 b = push.ranges.data[2 * i + 1];
            low[j] = vec4(a.xz, b.xz);
            high[j] = vec4(a.yw, b.yw);
        }
    }
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        uint i = first + j * THREADS;
        if (i < vec4s) {
            vec4 clipped;
            if (GATED) {
                vec4 gates = clip(value[j], push.gate_low, push.gate_high);
                vec4 ups = clip(up[j], push.up_low, push.up_high);
                [[unroll]] for (uint k = 0; k < 4; k++) {
                    clipped[k] = gated(gates[k], ups[k]);
                }
                clipped = clip(clipped, push.low, push.high);
            } else {
                clipped = clip(value[j], low[j], high[j]);
            }
            uint at = row * (push.y_stride / 4) + push.y_first / 4 + i;
            if (F16) {
                Words2(push.y).data[at] = f16_activations(clipped);
            } else {
                push.y.data[at] = clipped;
            }
        }
    }
}
