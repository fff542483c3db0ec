#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// From the rows of the QKV product to queries and to the KV cache, for heads without norms and RoPE: bias, scale of
// the queries; keys and values go into their pages. A thread takes one item, 8 neighbouring values of a head; items
// are numbered across rows, so that all workgroups are full: memory bandwidth is the limit.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint HEAD_DIM = 72;
layout(constant_id = 2) const uint HEADS = 16;
layout(constant_id = 3) const uint KV_HEADS = 16;
// Positions per page.
layout(constant_id = 4) const uint PAGE_SIZE = 64;
// 16 or 32.
layout(constant_id = 5) const uint KV_BITS = 16;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint first; uint end; };

layout(push_constant, scalar) uniform Push {
    Floats4 qkv;
    Floats4 bias;
    Output4 q;
    Words4 k;
    Words4 v;
    Numbers positions;
    Numbers slots;
    Numbers table;
    // Active rows first..end.
    Active active_rows;
    uint rows;
    uint qkv_stride;
    uint table_stride;
    float scale;
} push;

#include "half.glsl"
#include "kv.glsl"

const uint HEAD_ITEMS = HEAD_DIM / 8;
const uint ROW_ITEMS = (HEADS + 2 * KV_HEADS) * HEAD_ITEMS;

void store(bool key, uint at, uvec4 words) {
    if (key) {
        push.k.data[at] = words;
    } else {
        push.v.data[at] = words;
    }
}

void main() {
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint number = group * THREADS + gl_LocalInvocationIndex;
    uint row = number / ROW_ITEMS;
    if (row < push.active_rows.first || row >= min(push.active_rows.end, push.rows)) {
        return;
    }
    uint item = number % ROW_ITEMS;
    uint from = row * (push.qkv_stride / 4) + 2 * item;
    vec4 first = push.qkv.data[from] + push.bias.data[2 * item];
    vec4 second = push.qkv.data[from + 1] + push.bias.data[2 * item + 1];

    uint head = item / HEAD_ITEMS;
    if (head < HEADS) {
        uint to = 2 * (row * HEADS * HEAD_ITEMS + item);
        push.q.data[to] = first * push.scale;
        push.q.data[to + 1] = second * push.scale;
        return;
    }
    bool is_key = head < HEADS + KV_HEADS;
    uint kv_head = is_key ? head - HEADS : head - HEADS - KV_HEADS;
    uint position = push.positions.data[row];
    uint page = push.table.data[push.slots.data[row] * push.table_stride + position / PAGE_SIZE];
    uint line = (page * KV_HEADS + kv_head) * PAGE_SIZE + position % PAGE_SIZE;
    uint at = line * HEAD_ITEMS + item % HEAD_ITEMS;
    if (F16) {
        store(is_key, at, uvec4(half_words(first), half_words(second)));
    } else {
        store(is_key, 2 * at, floatBitsToUint(first));
        store(is_key, 2 * at + 1, floatBitsToUint(second));
    }
}
