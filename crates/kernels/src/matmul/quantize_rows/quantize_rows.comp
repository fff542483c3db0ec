#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Converts f32 activations to int16 or f16. A thread takes four values, so that as many threads as possible
// load at once; the largest magnitude of the 16 values that share an int16 scale is found by shuffles. At T0
// a thread takes all 16.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
// As Activations (vectors.rs): int16 or f16.
layout(constant_id = 1) const uint OUTPUT = 2;
// Vectors of four values per thread.
layout(constant_id = 2) const uint PER_THREAD = 1;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint first; uint end; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Scales { float data[]; };

layout(push_constant, scalar) uniform Push {
    Floats4 x;
    // f16, or the bytes of int16.
    Words y;
    Scales y_scales;
    // Rows first..end are active.
    Active active_rows;
    uint k;
    // Values from one column to the next, padding included.
    uint stride;
    // Words of the plane of high bytes, after which the low bytes start.
    uint plane_words;
} push;

#include "int16.glsl"
#include "f16.glsl"

const bool F16 = OUTPUT == 3;

// Every thread of a subgroup must call this.
void write_int16(uint row, uint first, bool padding, vec4 values[PER_THREAD]) {
    uint fours = push.stride / 4;
    uint largest = 0;
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        // The padding gets a scale of zero.
        largest = max(largest, padding ? 0 : largest_magnitude(values[j]));
    }
#if TIER >= 1
    largest = max(largest, subgroupShuffleXor(largest, 1));
    largest = max(largest, subgroupShuffleXor(largest, 2));
#endif
    if (first < fours && first % 4 == 0) {
        push.y_scales.data[row * (push.stride / 16) + int16_scale_at(first / 4)] = int16_scale(largest);
    }
    if (padding) {
        return;
    }
    float factor = int16_factor(largest);
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        ivec4 q = int16_of(values[j], factor);
        uint word = row * fours + first + j;
        push.y.data[word] = high_bytes(q);
        push.y.data[push.plane_words + word] = low_bytes(q);
    }
}

void main() {
    uint row = gl_WorkGroupID.y;
    uint first = (gl_WorkGroupID.x * THREADS + thread_index()) * PER_THREAD;
    uint fours = push.stride / 4;
    uint first_row = push.active_rows.first;
    uint end_row = push.active_rows.end;
    vec4 values[PER_THREAD];
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        values[j] = push.x.data[row * fours + min(first + j, fours - 1)];
    }
    // Only after the loads: otherwise they would wait until it is known which rows are active.
    if (row < first_row || row >= end_row) {
        return;
    }
    bool padding = first * 4 >= push.k;
    if (!F16) {
        write_int16(row, first, padding, values);
    } else if (!padding) {
        [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
            Words2(push.y).data[row * fours + first + j] = f16_activations(values[j]);
        }
    }
}
