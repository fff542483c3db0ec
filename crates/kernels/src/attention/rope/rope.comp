#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// From the rows of the QKV product to queries and to the KV cache: bias, norms, RoPE, scale; keys and
// values go into their pages.
//
// A cluster of LANES threads takes one head of one row. A thread holds items of four values: two neighbours
// and their partners in the rotation, so that one thread owns a word of two f16 values. For int8 its items
// come in neighbouring pairs, so that one thread also owns a word of four values; the threads of a head find
// the largest magnitude of each group in shared memory.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
layout(constant_id = 1) const uint LANES = 32;
layout(constant_id = 2) const uint HEAD_DIM = 256;
layout(constant_id = 3) const uint HEADS = 4;
layout(constant_id = 4) const uint KV_HEADS = 1;
// Positions per page.
layout(constant_id = 5) const uint PAGE_SIZE = 64;
layout(constant_id = 6) const uint KV_BITS = 16;
layout(constant_id = 7) const bool QK_NORM = false;
layout(constant_id = 8) const bool QKV_BIAS = false;
// As Rotation (rope/shape.rs).
layout(constant_id = 9) const uint ROTATION = 0;
// Split-K partial sums of the QKV product.
layout(constant_id = 10) const uint PARTIALS = 1;
// As KeysAndValues (rope/shape.rs).
layout(constant_id = 11) const uint KEYS_AND_VALUES = 0;
// Norms value heads, without a weight.
layout(constant_id = 12) const bool VALUE_NORM = false;
layout(constant_id = 13) const float TEMPERATURE_BETA = 0.0;
layout(constant_id = 14) const uint TEMPERATURE_ORIGINAL = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Floats2 { vec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Output { vec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint first; uint end; };

layout(push_constant, scalar) uniform Push {
    Floats2 qkv;
    Floats2 bias;
    Floats2 q_weight;
    Floats2 k_weight;
    // Cosine and sine of 256 · a positions, and of b positions: [a][HEAD_DIM / 2]. For a grid `fine` has those of
    // each row, [row][HEAD_DIM / 2], and `coarse` is unused.
    Floats2 coarse;
    Floats2 fine;
    Output q;
    Words k;
    Words v;
    Numbers positions;
    Numbers slots;
    Numbers table;
    // Active rows first..end.
    Active active_rows;
    uint qkv_stride;
    uint table_stride;
    float epsilon;
    float scale;
} push;

const uint CLUSTER_SUMS = 1;
#include "cluster.glsl"
#include "half.glsl"
#include "kv.glsl"
#include "temperature.glsl"

const uint HALF = HEAD_DIM / 2;
const uint ITEMS = INT8 ? (HEAD_DIM / 8 + LANES - 1) / LANES * 2 : (HEAD_DIM / 4 + LANES - 1) / LANES;
// Pairs of items per thread, and the items with the last pair complete.
const uint ITEM_PAIRS = (ITEMS + 1) / 2;
const uint PADDED_ITEMS = 2 * ITEM_PAIRS;
const bool INTERLEAVED = ROTATION == 1;
const bool GRID = ROTATION == 2;
const bool VALUES_FROM_KEYS = KEYS_AND_VALUES == 1;
const bool SHARED = KEYS_AND_VALUES == 2;
// Heads to compute, and heads per row of the QKV product.
const uint ALL_HEADS = HEADS + (SHARED ? 0 : 2 * KV_HEADS);
const uint ROW_HEADS = ALL_HEADS - (VALUES_FROM_KEYS ? KV_HEADS : 0);

// The largest magnitude of each group of each head.
const uint GROUPS = HEAD_DIM / 32;
shared uint group_largest[INT8 ? THREADS / LANES * GROUPS : 1];

// Index within its head of item i of a thread.
uint item_of(uint i, uint lane) {
    return INT8 ? (i / 2 * LANES + lane) * 2 + i % 2 : lane + i * LANES;
}

// Indices of the two pairs of values of an item.
uvec2 pairs_of_item(uint item) {
    if (GRID) {
        // The items of x, then those of y; partners are a quarter of the head apart. Neighbours share a quarter,
        // since HEAD_DIM is a multiple of 8.
        uint quarter = HEAD_DIM / 8;
        uint first = item < quarter ? item : item + quarter;
        return uvec2(first, first + quarter);
    }
    return INTERLEAVED ? uvec2(2 * item, 2 * item + 1) : uvec2(item, item + HALF / 2);
}

// Cosine and sine for a frequency: the angles of the two tables add, so their complex numbers multiply.
vec2 rotation(uint row, uint position, uint i) {
    if (GRID) {
        return push.fine.data[row * HALF + i];
    }
    vec2 a = push.coarse.data[position / 256 * HALF + i];
    vec2 b = push.fine.data[position % 256 * HALF + i];
    return vec2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

vec2 rotated(float x, float y, vec2 angle) {
    return vec2(x * angle.x - y * angle.y, y * angle.x + x * angle.y);
}

void store(bool key, uint pair, vec2 value) {
    if (F16) {
        uint word = half_bits(value.x) | half_bits(value.y) << 16;
        if (key) {
            push.k.data[pair] = word;
        } else {
            push.v.data[pair] = word;
        }
    } else {
        uvec2 words = floatBitsToUint(value);
        if (key) {
            push.k.data[2 * pair] = words.x;
            push.k.data[2 * pair + 1] = words.y;
        } else {
            push.v.data[2 * pair] = words.x;
            push.v.data[2 * pair + 1] = words.y;
        }
    }
}

void store_word(bool key, uint at, uint word) {
    if (key) {
        push.k.data[at] = word;
    } else {
        push.v.data[at] = word;
    }
}

// Writes a head into the cache as int8. Every thread of the workgroup must call it, whether its cluster
// writes or not.
void store_int8(bool key, bool writes, uint line, uint thread, vec4 values[PADDED_ITEMS]) {
    uint lane = thread % LANES;
    uint groups = thread / LANES * GROUPS;
    for (uint group = lane; group < GROUPS; group += LANES) {
        group_largest[groups + group] = 0;
    }
    barrier();
    // Rearranges pairs of items into words of four neighbouring values.
    uvec2 words[ITEM_PAIRS];
    [[unroll]] for (uint i = 0; i < PADDED_ITEMS; i += 2) {
        uint item = item_of(i, lane);
        words[i / 2] = INTERLEAVED ? uvec2(item, item + 1) : uvec2(item / 2, item / 2 + HALF / 4);
        if (!INTERLEAVED) {
            vec4 first = values[i];
            values[i].zw = values[i + 1].xy;
            values[i + 1].xy = first.zw;
        }
        if (writes && item < HEAD_DIM / 4) {
            atomicMax(group_largest[groups + words[i / 2].x / INT8_GROUP], largest_magnitude(values[i]));
            atomicMax(group_largest[groups + words[i / 2].y / INT8_GROUP], largest_magnitude(values[i + 1]));
        }
    }
    barrier();
    if (!writes) {
        return;
    }
    [[unroll]] for (uint i = 0; i < PADDED_ITEMS; i++) {
        if (item_of(i, lane) < HEAD_DIM / 4) {
            uint word = words[i / 2][i % 2];
            uint scale = int8_scale(group_largest[groups + word / INT8_GROUP]);
            store_word(key, int8_at(line) + word, int8_word(values[i], scale));
        }
    }
    for (uint i = lane; i < INT8_SCALE_WORDS; i += LANES) {
        uint scales = int8_scale(group_largest[groups + 2 * i]);
        if (2 * i + 1 < GROUPS) {
            scales |= int8_scale(group_largest[groups + 2 * i + 1]) << 16;
        }
        store_word(key, int8_scales_at(line) + i, scales);
    }
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row < push.active_rows.first || row >= push.active_rows.end) {
        return;
    }
    uint thread = thread_index();
    uint lane = thread % LANES;
    uint cluster_head = gl_WorkGroupID.x * (THREADS / LANES) + thread / LANES;
    // Clusters past the last head repeat it and write nothing: at T0 all threads must reach the barriers.
    uint head = min(cluster_head, ALL_HEADS - 1);
    bool is_query = head < HEADS;
    bool is_key = !is_query && head < HEADS + KV_HEADS;

    // Values may come from the projection of the keys.
    uint head_in_row = VALUES_FROM_KEYS && head >= ROW_HEADS ? head - KV_HEADS : head;
    vec4 values[PADDED_ITEMS];
    float squares[CLUSTER_SUMS];
    squares[0] = 0.0;
    [[unroll]] for (uint i = 0; i < ITEMS; i++) {
        uint item = item_of(i, lane);
        values[i] = vec4(0.0);
        if (item < HEAD_DIM / 4) {
            uvec2 at = pairs_of_item(item);
            uint start = head_in_row * HALF;
            uint from = row * (push.qkv_stride / 2) + start;
            values[i] = vec4(push.qkv.data[from + at.x], push.qkv.data[from + at.y]);
            [[unroll]] for (uint sum = 1; sum < PARTIALS; sum++) {
                uint plane = from + sum * ROW_HEADS * HALF;
                values[i] += vec4(push.qkv.data[plane + at.x], push.qkv.data[plane + at.y]);
            }
            if (QKV_BIAS) {
                values[i] += vec4(push.bias.data[start + at.x], push.bias.data[start + at.y]);
            }
            squares[0] += dot(values[i], values[i]);
        }
    }
    float norm = 1.0;
    if (QK_NORM) {
        cluster_sums(squares);
        norm = inversesqrt(squares[0] / float(HEAD_DIM) + push.epsilon);
    }
    // For int8 all threads must reach one more barrier.
    bool writes = cluster_head < ALL_HEADS;
    if (!INT8 && !writes) {
        return;
    }

    uint position = push.positions.data[row];
    float query_scale = push.scale * query_temperature(position);
    uint page = 0;
    if (!is_query) {
        page = push.table.data[push.slots.data[row] * push.table_stride + position / PAGE_SIZE];
    }
    uint kv_head = is_key ? head - HEADS : head - HEADS - KV_HEADS;
    uint line = (page * KV_HEADS + kv_head) * PAGE_SIZE + position % PAGE_SIZE;
    [[unroll]] for (uint i = 0; i < ITEMS; i++) {
        uint item = item_of(i, lane);
        if (item < HEAD_DIM / 4) {
            uvec2 at = pairs_of_item(item);
            vec4 x = values[i];
            if (is_query || is_key) {
                if (QK_NORM) {
                    vec4 weight = is_query ? vec4(push.q_weight.data[at.x], push.q_weight.data[at.y])
                                           : vec4(push.k_weight.data[at.x], push.k_weight.data[at.y]);
                    x *= norm * weight;
                }
                vec2 first = rotation(row, position, 2 * item);
                vec2 second = rotation(row, position, 2 * item + 1);
                if (INTERLEAVED) {
                    x = vec4(rotated(x.x, x.y, first), rotated(x.z, x.w, second));
                } else {
                    x = vec4(rotated(x.x, x.z, first), rotated(x.y, x.w, second)).xzyw;
                }
            } else if (VALUE_NORM) {
                x *= norm;
            }
            if (is_query) {
                uint to = (row * HEADS + head) * HALF;
                if (writes) {
                    push.q.data[to + at.x] = x.xy * query_scale;
                    push.q.data[to + at.y] = x.zw * query_scale;
                }
            } else if (!INT8) {
                store(is_key, line * HALF + at.x, x.xy);
                store(is_key, line * HALF + at.y, x.zw);
            }
            values[i] = x;
        }
    }
    if (INT8) {
        store_int8(is_key, writes && !is_query, line, thread, values);
    }
}
