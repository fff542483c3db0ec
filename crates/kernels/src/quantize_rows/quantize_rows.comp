#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// f32 activations as int16 ones. From T1 on a thread takes four values and finds the largest of 16 by shuffles, so that as many
// threads as possible load at once; at T0 it takes all 16.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Bytes { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Scales { float data[]; };

layout(push_constant, scalar) uniform Push {
    Floats4 x;
    Bytes y;
    Scales y_scales;
    Active in_use;
    uint k;
    // Values from one column to the next, padding included.
    uint stride;
    // Words of the high bytes: where the low bytes start.
    uint plane_words;
} push;

#include "int16.glsl"

// Fours that a thread takes: as FOURS_PER_THREAD (policy.rs).
#if TIER >= 1
const uint PER_THREAD = 1;
#else
const uint PER_THREAD = 4;
#endif

void main() {
    uint row = gl_WorkGroupID.y;
    uint first = (gl_WorkGroupID.x * THREADS + thread_index()) * PER_THREAD;
    uint fours = push.stride / 4;
    uint in_use = push.in_use.rows;
    vec4 values[PER_THREAD];
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        values[j] = push.x.data[row * fours + min(first + j, fours - 1)];
    }
    // Only here, after the loads: else they would start when the number of rows has come.
    if (row >= in_use) {
        return;
    }
    // The scales of the padding become zero with its values.
    bool padding = first * 4 >= push.k;
    uint largest = 0;
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        largest = max(largest, padding ? 0 : largest_magnitude(values[j]));
    }
#if TIER >= 1
    largest = max(largest, subgroupShuffleXor(largest, 1));
    largest = max(largest, subgroupShuffleXor(largest, 2));
#endif
    if (first < fours && first % 4 == 0) {
        push.y_scales.data[row * (push.stride / 16) + int16_scale_at(first / 4)] = int16_scale(largest);
    }
    if (!padding) {
        float factor = int16_factor(largest);
        [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
            ivec4 q = int16_of(values[j], factor);
            uint word = row * fours + first + j;
            push.y.data[word] = high_bytes(q);
            push.y.data[push.plane_words + word] = low_bytes(q);
        }
    }
}
