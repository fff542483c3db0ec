#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// y = rmsnorm(dense) · dense_weight + rmsnorm(Σ weight(e) · experts(e)) · experts_weight, one workgroup per row. Every
// thread holds its values of both in registers.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint VALUES_PER_THREAD = 1;
// Split-K partial sums of the dense block's output, consecutive within a row.
layout(constant_id = 2) const uint DENSE_PARTIALS = 1;
// Outputs of a row's experts, or one sum of them.
layout(constant_id = 3) const uint EXPERT_PARTIALS = 1;
// The outputs are multiplied by weights of their own.
layout(constant_id = 4) const bool WEIGHTED = true;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Floats dense;
    Floats experts;
    // Per row, the weights of its experts.
    Floats expert_weights;
    Floats dense_weight;
    Floats experts_weight;
    Output y;
    Active active_rows;
    uint n;
    float epsilon;
} push;

#include "reduce.glsl"

float inverse_rms(float squares) {
    return inversesqrt(workgroup_sum(squares) / float(push.n) + push.epsilon);
}

void main() {
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows) {
        return;
    }
    float expert_weights[EXPERT_PARTIALS];
    [[unroll]] for (uint e = 0; e < EXPERT_PARTIALS; e++) {
        expert_weights[e] = WEIGHTED ? push.expert_weights.data[row * EXPERT_PARTIALS + e] : 1.0;
    }
    float dense[VALUES_PER_THREAD];
    float experts[VALUES_PER_THREAD];
    float dense_squares = 0.0;
    float experts_squares = 0.0;
    [[unroll]] for (uint j = 0; j < VALUES_PER_THREAD; j++) {
        uint i = gl_LocalInvocationIndex + j * THREADS;
        dense[j] = 0.0;
        experts[j] = 0.0;
        if (i < push.n) {
            [[unroll]] for (uint sum = 0; sum < DENSE_PARTIALS; sum++) {
                dense[j] += push.dense.data[(row * DENSE_PARTIALS + sum) * push.n + i];
            }
            [[unroll]] for (uint e = 0; e < EXPERT_PARTIALS; e++) {
                experts[j] += push.experts.data[(row * EXPERT_PARTIALS + e) * push.n + i] * expert_weights[e];
            }
        }
        dense_squares += dense[j] * dense[j];
        experts_squares += experts[j] * experts[j];
    }
    float dense_scale = inverse_rms(dense_squares);
    float experts_scale = inverse_rms(experts_squares);
    [[unroll]] for (uint j = 0; j < VALUES_PER_THREAD; j++) {
        uint i = gl_LocalInvocationIndex + j * THREADS;
        if (i < push.n) {
            push.y.data[row * push.n + i] =
                dense[j] * dense_scale * push.dense_weight.data[i] + experts[j] * experts_scale * push.experts_weight.data[i];
        }
    }
}
