#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// LayerNorm with residual add and bias, one workgroup per row:
//   residual += x + x_bias                                                    if ADD
//   y = (residual - mean) / sqrt(variance + epsilon) · weight + bias
//   residual = y                                                              if NORMED_RESIDUAL
//
// A row stays in the registers of its workgroup, so that memory is read once, and the variance is that of the
// differences from the mean. The mean square minus the squared mean would lose all bits of a row whose mean is
// much larger than its deviation.
#include "common.glsl"
#include "f16.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
layout(constant_id = 1) const uint VEC4S_PER_THREAD = 1;
layout(constant_id = 2) const bool ADD = false;
// As Activations (vectors.rs): f32 or f16.
layout(constant_id = 3) const uint OUTPUT = 0;
layout(constant_id = 4) const bool NORMED_RESIDUAL = false;
// Format of x: f16 activations instead of f32.
layout(constant_id = 5) const bool X_F16 = false;

#include "reduce.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Halves4 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Residual4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    // f32 or f16.
    Floats4 x;
    Floats4 x_bias;
    Residual4 residual;
    Floats4 weight;
    Floats4 bias;
    // f32 or f16.
    Output4 y;
    Active active_rows;
    uint n;
    uint x_stride;
    uint y_stride;
    float epsilon;
} push;

const bool F16 = OUTPUT == 3;

vec4 x_values(uint i) {
    return X_F16 ? f16_activation_values(Halves4(push.x).data[i]) : push.x.data[i];
}

float sum_of(vec4 value) {
    return (value.x + value.y) + (value.z + value.w);
}

void main() {
    uint thread = thread_index();
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows) {
        return;
    }
    uint vec4s = push.n / 4;
    uint first = row * vec4s;
    uint first_x = row * (push.x_stride / 4);

    vec4 value[VEC4S_PER_THREAD];
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        // Past the end, the last vec4 is loaded again and not used: this needs no branch.
        uint i = min(thread + j * THREADS, vec4s - 1);
        value[j] = push.residual.data[first + i];
        if (ADD) {
            value[j] += x_values(first_x + i) + push.x_bias.data[i];
        }
    }
    float sum = 0.0;
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        bool in_row = thread + j * THREADS < vec4s;
        sum += in_row ? sum_of(value[j]) : 0.0;
        if (ADD && !NORMED_RESIDUAL && in_row) {
            push.residual.data[first + thread + j * THREADS] = value[j];
        }
    }
    float mean = workgroup_sum(sum) / float(push.n);

    float squares = 0.0;
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        value[j] -= mean;
        squares += thread + j * THREADS < vec4s ? dot(value[j], value[j]) : 0.0;
    }
    float scale = inversesqrt(workgroup_sum(squares) / float(push.n) + push.epsilon);

    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        uint i = thread + j * THREADS;
        if (i < vec4s) {
            vec4 normed = value[j] * scale * push.weight.data[i] + push.bias.data[i];
            if (NORMED_RESIDUAL) {
                push.residual.data[first + i] = normed;
            }
            uint at = row * (push.y_stride / 4) + i;
            if (F16) {
                Words2(push.y).data[at] = f16_activations(normed);
            } else {
                push.y.data[at] = normed;
            }
        }
    }
}
