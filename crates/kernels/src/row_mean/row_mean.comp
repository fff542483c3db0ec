#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// y[i] = the mean of the rows ranges[i].first to ranges[i].end of x: pooling of texts. A range of one row is that row.
//
// A thread takes four neighbouring columns of one range, and keeps four sums, so that loads do not wait for additions.
#include "common.glsl"
#include "f16.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
// As Activations (vectors.rs): f32 or f16.
layout(constant_id = 1) const uint OUTPUT = 0;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint count; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Ranges { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats4 x;
    // First row and end row of each range.
    Ranges ranges;
    Active active_ranges;
    // f32 or f16.
    Output4 y;
    uint n;
    uint x_stride;
    uint y_stride;
} push;

const bool F16 = OUTPUT == 3;
const uint SUMS = 4;

void main() {
    uint range = gl_WorkGroupID.x;
    uint i = gl_WorkGroupID.y * THREADS + gl_LocalInvocationIndex;
    if (range >= push.active_ranges.count || i >= push.n / 4) {
        return;
    }
    uvec2 rows = push.ranges.data[range];
    uint stride = push.x_stride / 4;
    vec4 sums[SUMS];
    [[unroll]] for (uint j = 0; j < SUMS; j++) {
        sums[j] = vec4(0.0);
    }
    uint row = rows.x;
    for (; row + SUMS <= rows.y; row += SUMS) {
        [[unroll]] for (uint j = 0; j < SUMS; j++) {
            sums[j] += push.x.data[(row + j) * stride + i];
        }
    }
    for (; row < rows.y; row++) {
        sums[0] += push.x.data[row * stride + i];
    }
    vec4 mean = ((sums[0] + sums[1]) + (sums[2] + sums[3])) / float(rows.y - rows.x);
    uint at = range * (push.y_stride / 4) + i;
    if (F16) {
        Words2(push.y).data[at] = f16_activations(mean);
    } else {
        push.y.data[at] = mean;
    }
}
