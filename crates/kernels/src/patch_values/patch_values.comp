#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// From the bytes of patches to their values, by a table per channel. A thread takes four bytes, which are one word.
#include "common.glsl"
#include "f16.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
// As Activations (vectors.rs): f32 or f16.
layout(constant_id = 1) const uint OUTPUT = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Table { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    // Rows of k bytes.
    Words bytes;
    // 256 values for each of three channels.
    Table table;
    // f32 or f16.
    Output4 y;
    uint rows;
    uint k;
    uint y_stride;
    // Neighbouring values of the same channel.
    uint run;
} push;

const bool F16 = OUTPUT == 3;

void main() {
    // Rows are along x: along y and z there may be no more than 65,535 workgroups.
    uint row = gl_WorkGroupID.x;
    uint four = gl_WorkGroupID.y * THREADS + gl_LocalInvocationIndex;
    if (row >= push.rows || four >= push.k / 4) {
        return;
    }
    uint word = push.bytes.data[row * (push.k / 4) + four];
    vec4 values;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint channel = (four * 4 + i) / push.run % 3;
        values[i] = push.table.data[channel * 256 + (word >> i * 8 & 255)];
    }
    uint at = row * (push.y_stride / 4) + four;
    if (F16) {
        Words2(push.y).data[at] = f16_activations(values);
    } else {
        push.y.data[at] = values;
    }
}
