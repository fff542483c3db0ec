#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Per-layer inputs from the projection of a row's embedding and from the per-layer embedding of its token, one workgroup
// per layer and row:
//
//   p = projected · rms(embedding) / √hidden
//   inputs[layer][row] = (rmsnorm(p) · weight + token[layer]) / √2
//
// The product took the normed embedding, whose values fit any format of activations: hence the factor rms(embedding).
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Floats embedding;
    Floats projected;
    Floats token;
    Floats weight;
    Output inputs;
    Active active_rows;
    uint hidden;
    uint width;
    uint layers;
    // Rows of each layer's part of the output.
    uint rows;
    float epsilon;
} push;

#include "reduce.glsl"
#include "row_rms.glsl"

void main() {
    uint layer = gl_WorkGroupID.x;
    uint row = gl_WorkGroupID.y;
    if (row >= push.active_rows.rows) {
        return;
    }
    float factor = row_rms(push.embedding, row, push.hidden, push.epsilon) * inversesqrt(float(push.hidden));
    uint from = (row * push.layers + layer) * push.width;
    float squares = 0.0;
    for (uint i = gl_LocalInvocationIndex; i < push.width; i += THREADS) {
        float p = push.projected.data[from + i] * factor;
        squares += p * p;
    }
    float inverse = factor * inversesqrt(workgroup_sum(squares) / float(push.width) + push.epsilon);
    uint to = (layer * push.rows + row) * push.width;
    for (uint i = gl_LocalInvocationIndex; i < push.width; i += THREADS) {
        float p = push.projected.data[from + i] * inverse * push.weight.data[i];
        push.inputs.data[to + i] = (p + push.token.data[from + i]) * 0.70710678118654752;
    }
}
