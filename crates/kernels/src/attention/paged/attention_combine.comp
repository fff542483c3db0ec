#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Combines the KV splits of a row's attention, in order. A thread computes four values of one query head.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
layout(constant_id = 1) const uint HEAD_DIM = 256;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer MaxAndSum { vec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint first; uint end; };

layout(push_constant, scalar) uniform Push {
    Floats4 split_outputs;
    MaxAndSum max_and_sum;
    Numbers positions;
    Numbers last_visible;
    // Active rows first..end. Split outputs are indexed from the first.
    Active active_rows;
    Output o;
    uint heads;
    uint o_stride;
    uint window;
    uint splits;
    uint min_blocks;
    // Positions per block.
    uint block;
} push;

#include "range.glsl"

const uint HEAD_VEC4S = HEAD_DIM / 4;

void main() {
    uint row = push.active_rows.first + gl_WorkGroupID.y;
    uint i = gl_GlobalInvocationID.x;
    if (row >= push.active_rows.end || i >= push.heads * HEAD_VEC4S) {
        return;
    }
    uint position = push.positions.data[row];
    uint last = push.last_visible.data[row];
    uint blocks = last / push.block - first_position(position, push.window) / push.block + 1;
    uint split_blocks = blocks_per_split(blocks, push.splits, push.min_blocks);
    // With a short range the later splits are empty.
    uint used_splits = (blocks + split_blocks - 1) / split_blocks;

    uint first = (gl_WorkGroupID.y * push.heads + i / HEAD_VEC4S) * push.splits;
    float max_score = push.max_and_sum.data[first].x;
    for (uint split = 1; split < used_splits; split++) {
        max_score = max(max_score, push.max_and_sum.data[first + split].x);
    }
    float sum = 0.0;
    vec4 value = vec4(0.0);
    for (uint split = 0; split < used_splits; split++) {
        vec2 from_split = push.max_and_sum.data[first + split];
        float rescale = exp2(from_split.x - max_score);
        sum += rescale * from_split.y;
        value += rescale * push.split_outputs.data[(first + split) * HEAD_VEC4S + i % HEAD_VEC4S];
    }
    push.o.data[row * (push.o_stride / 4) + i] = value / sum;
}
