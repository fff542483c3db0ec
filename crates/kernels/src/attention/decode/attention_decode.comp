#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// All attention work of a decode step in one dispatch, from the rows of the QKV product to the input of the
// output projection. Each row belongs to a different sequence; rows of one sequence take two dispatches, the first of
// which writes the keys and values that the rows after them read. Bias, norms, RoPE and scale; the write of
// the new key and value into their page; softmax(q · kᵀ) · v over the pages of the cache; the combination of
// the KV splits; and, where the next product needs it, the result as int16 or f16.
//
// A workgroup takes a row, HEADS query heads that share a KV head, and one split of the positions before the
// row's own. Positions are processed in blocks of CLUSTERS · KEYS. A cluster of LANES threads takes KEYS keys
// of each block: its threads hold vec8s (8 neighbouring values) of every query and output, load the same
// vec8s of keys and values, and sum their shares of the scores. The last non-empty split includes the row's
// own position: its key and value are used as stored, but not read back. At the end the clusters' outputs are
// combined, in order. A layer that shares the keys and values of an earlier one writes nothing, and finds those
// of the row's own position in the cache too.
//
// The last workgroup to finish combines the splits, always in split order. No workgroup waits for another.
//
// This kernel is bound by memory latency: independent loads come first, and the keys of the next block are in
// flight while the values of this block are accumulated.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint LANES = 8;
layout(constant_id = 2) const uint HEAD_DIM = 128;
// Query heads per workgroup.
layout(constant_id = 3) const uint HEADS = 2;
layout(constant_id = 4) const uint KEYS = 2;
// Positions per page.
layout(constant_id = 5) const uint PAGE_SIZE = 64;
layout(constant_id = 6) const uint KV_BITS = 16;
// Heads of the model.
layout(constant_id = 7) const uint QUERY_HEADS = 32;
layout(constant_id = 8) const uint KV_HEADS = 16;
// Sliding window: positions that a row attends to, its own included; 0 for all.
layout(constant_id = 9) const uint WINDOW = 0;
layout(constant_id = 10) const uint SPLITS = 1;
layout(constant_id = 11) const uint MIN_BLOCKS = 1;
layout(constant_id = 12) const bool QK_NORM = false;
layout(constant_id = 13) const bool QKV_BIAS = false;
// RoPE pairs values 2i and 2i + 1; otherwise i and i + HEAD_DIM / 2.
layout(constant_id = 14) const bool INTERLEAVED = false;
// Output format: as Activations (vectors.rs), but not int8.
layout(constant_id = 15) const uint OUTPUT = 0;
// Added to the mean square.
layout(constant_id = 16) const float EPSILON = 0.0;
// Scale of the queries.
layout(constant_id = 17) const float SCALE = 1.0;

// Split-K partial sums of the QKV product.
layout(constant_id = 18) const uint PARTIALS = 1;
// As KeysAndValues (rope/shape.rs).
layout(constant_id = 19) const uint KEYS_AND_VALUES = 0;
// Norms the value, without a weight.
layout(constant_id = 20) const bool VALUE_NORM = false;
layout(constant_id = 21) const float TEMPERATURE_BETA = 0.0;
layout(constant_id = 22) const uint TEMPERATURE_ORIGINAL = 0;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Words2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Bytes { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Scales { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Scratch { uint counters[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer SplitOutputs { vec4 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats4 qkv;
    Floats4 bias;
    Floats4 q_weight;
    Floats4 k_weight;
    // Cosine and sine of 256 · a positions, and of b positions: [a][HEAD_DIM / 2].
    Floats4 coarse;
    Floats4 fine;
    Words4 k;
    Words4 v;
    Numbers positions;
    Numbers slots;
    Numbers table;
    Active active_rows;
    // f32, f16, or the bytes of int16.
    Output o;
    Scales o_scales;
    // A counter per row and query head, 0 between dispatches; then the outputs of the splits:
    // [row][workgroup][split][SPLIT_VEC4S].
    Scratch scratch;
    // Values from row to row, a multiple of 4, plus one of the parts below. Not a constant: rows must get the same bits
    // from one dispatch and from two, and so they do from the same code.
    uint qkv_stride_and_part;
    uint table_stride;
} push;

// A dispatch does everything, or a part of it.
const uint ALL = 0;
// Writes new keys and values, and nothing else. Takes one split.
const uint WRITES_KEYS = 1;
// Writes no keys and values, which are in the cache already.
const uint ATTENDS = 2;

#include "range.glsl"
#include "half.glsl"
#include "kv.glsl"
#include "temperature.glsl"
#include "int16.glsl"
#include "f16.glsl"

const bool TO_INT16 = OUTPUT == 2;
const bool TO_F16 = OUTPUT == 3;

const uint CLUSTER_SUMS = KEYS * HEADS;
#include "cluster.glsl"

const uint CLUSTERS = THREADS / LANES;
const uint BLOCK = CLUSTERS * KEYS;
const uint HEAD_VEC8S = HEAD_DIM / 8;
// Vec8s per thread. Where they do not divide evenly, the last thread repeats the last vec8 with weight zero.
const uint THREAD_VEC8S = (HEAD_VEC8S + LANES - 1) / LANES;
// Vec4s per thread and head, and per head.
const uint THREAD_VEC4S = 2 * THREAD_VEC8S;
const uint HEAD_VEC4S = HEAD_DIM / 4;
// Lower than any score, but finite, so that differences of two of them are not NaN.
const float LOWEST = -3.0e38;
const float LOG2_E = 1.4426950408889634;
// Values per output column, padding included.
const uint STRIDE = (QUERY_HEADS * HEAD_DIM + 127) / 128 * 128;
// Vec4s per split: the outputs of all heads, then the maximum score and the sum of weights of each.
const uint SPLIT_VEC4S = HEADS * (HEAD_VEC4S + 1);
// Prefetches the keys and values of the next block: a prefetch depth of 1. A CPU driver has no latency to
// hide: there the depth is 0, since a prefetch would only cost registers.
const bool PREFETCH = THREADS >= 32;
// Loads in flight per thread while splits are combined.
const uint COMBINE_LOADS = PREFETCH ? 16 : 2;

const bool VALUES_FROM_KEYS = KEYS_AND_VALUES == 1;
const bool SHARED = KEYS_AND_VALUES == 2;
// Heads per row of the QKV product.
const uint ROW_HEADS = QUERY_HEADS + (SHARED ? 0 : VALUES_FROM_KEYS ? KV_HEADS : 2 * KV_HEADS);
// Heads to norm and rotate: the workgroup's queries, the key and the value.
#define KEY HEADS
#define VALUE (HEADS + 1)
const uint ALL_HEADS = SHARED ? HEADS : HEADS + 2;
// The heads at first, the outputs at the end.
shared vec4 values[ALL_HEADS * HEAD_VEC4S];
shared vec4 cluster_outputs[CLUSTERS > 1 ? CLUSTERS * THREAD_VEC8S * LANES * 2 : 1];
// Maximum score and sum of weights: per cluster, per head, and per split.
shared vec2 cluster_max_and_sum[CLUSTERS > 1 ? CLUSTERS * HEADS : 1];
shared vec2 max_and_sum[HEADS];
shared vec2 split_max_and_sum[SPLITS > 1 ? HEADS * SPLITS : 1];
shared bool finished_last;
// Scales of the new key and value.
shared uint new_scales[INT8 ? 2 * INT8_SCALE_WORDS : 1];

// Workgroup barrier for shared memory.
void workgroup_barrier() {
#if TIER >= 1
    // A single cluster lies within a subgroup.
    if (CLUSTERS == 1) {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        return;
    }
#endif
    barrier();
}

// 16-byte loads per vec8 of the cache. For int8: 8 bytes of values, and the word with their scale.
const uint VEC8_LOADS = KV_BITS == 32 ? 2 : 1;
// Loads per thread and block.
const uint THREAD_LOADS = KEYS * THREAD_VEC8S * VEC8_LOADS;

// Index within its head of vec8 i of a thread, counted over all keys.
uint vec8_index(uint i, uint lane) {
    return min(i % THREAD_VEC8S * LANES + lane, HEAD_VEC8S - 1);
}

// Load i of a thread.
uvec4 load_words(Words4 cache, uint lines[KEYS], uint i, uint lane) {
    uint line = lines[i / VEC8_LOADS / THREAD_VEC8S];
    uint vec8 = vec8_index(i / VEC8_LOADS, lane);
    if (INT8) {
        // A word has the scales of two groups, which are 8 vec8s.
        uvec2 values = Words2(cache).data[int8_at(line) / 2 + vec8];
        return uvec4(values, Words(cache).data[int8_scales_at(line) + vec8 / INT8_GROUP], 0);
    }
    return cache.data[(line * HEAD_VEC8S + vec8) * VEC8_LOADS + i % VEC8_LOADS];
}

// Vec4 i of a thread, from the load that contains it.
vec4 vec4_of(uvec4 words, uint i, uint lane) {
    if (INT8) {
        return int8_values(words[i % 2], int8_scale_of(words.z, 2 * vec8_index(i / 2, lane)));
    }
    if (F16) {
        uvec2 own = i % 2 == 0 ? words.xy : words.zw;
        return vec4(unpackHalf2x16(own.x), unpackHalf2x16(own.y));
    }
    return uintBitsToFloat(words);
}

// The two vec4s of an item: eight values that are rotated together.
uvec2 item_vec4s(uint item) {
    return INTERLEAVED ? uvec2(2 * item, 2 * item + 1) : uvec2(item, item + HEAD_VEC4S / 2);
}

// Item i of a thread's THREAD_VEC8S items; past the last it repeats the last.
uint item_of(uint i, uint lane) {
    return min(i * LANES + lane, HEAD_VEC8S - 1);
}

// Index of a head in a row of the QKV product.
uint head_in_row(uint head, uint kv_head) {
    if (head < HEADS) {
        return gl_WorkGroupID.x * HEADS + head;
    }
    return QUERY_HEADS + (VALUES_FROM_KEYS ? 0 : (head - HEADS) * KV_HEADS) + kv_head;
}

// A thread's items of a head, and the weights of its norm.
void load_head(uint head, uint kv_head, uint lane, out vec4 x[THREAD_VEC4S], out vec4 weights[THREAD_VEC4S]) {
    uint start = head_in_row(head, kv_head) * HEAD_VEC4S;
    [[unroll]] for (uint i = 0; i < THREAD_VEC8S; i++) {
        uvec2 at = item_vec4s(item_of(i, lane));
        [[unroll]] for (uint h = 0; h < 2; h++) {
            uint from = gl_WorkGroupID.y * (push.qkv_stride_and_part / 4) + start + at[h];
            x[2 * i + h] = push.qkv.data[from];
            [[unroll]] for (uint sum = 1; sum < PARTIALS; sum++) {
                x[2 * i + h] += push.qkv.data[from + sum * ROW_HEADS * HEAD_VEC4S];
            }
            if (QKV_BIAS) {
                x[2 * i + h] += push.bias.data[start + at[h]];
            }
            weights[2 * i + h] = vec4(1.0);
            if (QK_NORM) {
                weights[2 * i + h] = head == KEY ? push.k_weight.data[at[h]] : push.q_weight.data[at[h]];
            }
        }
    }
}

// Entries of the coarse and the fine table for an item's four frequencies.
void load_rotations(uint position, uint lane, out vec4 coarse[THREAD_VEC4S], out vec4 fine[THREAD_VEC4S]) {
    [[unroll]] for (uint i = 0; i < THREAD_VEC4S; i++) {
        uint at = item_of(i / 2, lane) * 2 + i % 2;
        coarse[i] = push.coarse.data[position / 256 * HEAD_VEC4S + at];
        fine[i] = push.fine.data[position % 256 * HEAD_VEC4S + at];
    }
}

// Cosines and sines: the angles of the two tables add, so their complex numbers multiply.
void rotations(
    vec4 coarse[THREAD_VEC4S], vec4 fine[THREAD_VEC4S], out vec4 cosines[THREAD_VEC8S], out vec4 sines[THREAD_VEC8S]) {
    [[unroll]] for (uint i = 0; i < THREAD_VEC8S; i++) {
        vec4 a_cos = vec4(coarse[2 * i].xz, coarse[2 * i + 1].xz);
        vec4 a_sin = vec4(coarse[2 * i].yw, coarse[2 * i + 1].yw);
        vec4 b_cos = vec4(fine[2 * i].xz, fine[2 * i + 1].xz);
        vec4 b_sin = vec4(fine[2 * i].yw, fine[2 * i + 1].yw);
        cosines[i] = a_cos * b_cos - a_sin * b_sin;
        sines[i] = a_cos * b_sin + a_sin * b_cos;
    }
}

// Writes a vec4 into the cache and returns it as stored.
vec4 store_rounded(Words4 cache, bool writes, uint vec4_index, vec4 x) {
    if (F16) {
        uvec2 words = half_words(x);
        if (writes) {
            Words2(cache).data[vec4_index] = words;
        }
        return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
    }
    if (writes) {
        cache.data[vec4_index] = floatBitsToUint(x);
    }
    return x;
}

// Writes the new key and value, which are in `values`, into the cache as int8, and replaces `values` by what
// was stored.
void store_int8(bool writes, uint line, uint thread) {
    for (uint i = thread; i < 2 * INT8_SCALE_WORDS; i += THREADS) {
        uint first = (KEY + i / INT8_SCALE_WORDS) * HEAD_VEC4S;
        uint scales = 0;
        [[unroll]] for (uint upper = 0; upper < 2; upper++) {
            uint vec4_index = (i % INT8_SCALE_WORDS * 2 + upper) * INT8_GROUP;
            if (vec4_index < HEAD_VEC4S) {
                uint largest = 0;
                [[unroll]] for (uint j = 0; j < INT8_GROUP; j++) {
                    largest = max(largest, largest_magnitude(values[first + vec4_index + j]));
                }
                scales |= int8_scale(largest) << upper * 16;
            }
        }
        new_scales[i] = scales;
        if (writes) {
            Words4 cache = push.k;
            if (i >= INT8_SCALE_WORDS) {
                cache = push.v;
            }
            Words(cache).data[int8_scales_at(line) + i % INT8_SCALE_WORDS] = scales;
        }
    }
    workgroup_barrier();
    for (uint i = thread; i < 2 * HEAD_VEC4S; i += THREADS) {
        uint vec4_index = i % HEAD_VEC4S;
        uint scales = new_scales[i / HEAD_VEC4S * INT8_SCALE_WORDS + vec4_index / (2 * INT8_GROUP)];
        uint scale = int8_scale_of(scales, vec4_index);
        uint word = int8_word(values[KEY * HEAD_VEC4S + i], scale);
        values[KEY * HEAD_VEC4S + i] = int8_values(word, scale);
        if (writes) {
            Words4 cache = push.k;
            if (i >= HEAD_VEC4S) {
                cache = push.v;
            }
            Words(cache).data[int8_at(line) + vec4_index] = word;
        }
    }
    workgroup_barrier();
}

// Writes the outputs, which are in `values`.
void write_output(uint thread) {
    uint row = gl_WorkGroupID.y;
    uint first = gl_WorkGroupID.x * HEADS * HEAD_VEC4S;
    for (uint vec4_index = thread; vec4_index < HEADS * HEAD_VEC4S; vec4_index += THREADS) {
        uint at = row * (STRIDE / 4) + first + vec4_index;
        if (TO_INT16) {
            // Half groups of 16 values: four vec4s share a scale.
            uint largest = 0;
            [[unroll]] for (uint j = 0; j < 4; j++) {
                largest = max(largest, largest_magnitude(values[vec4_index / 4 * 4 + j]));
            }
            ivec4 q = int16_of(values[vec4_index], int16_factor(largest));
            Bytes(push.o).data[at] = high_bytes(q);
            Bytes(push.o).data[gl_NumWorkGroups.y * (STRIDE / 4) + at] = low_bytes(q);
            if (vec4_index % 4 == 0) {
                push.o_scales.data[row * (STRIDE / 16) + int16_scale_at((first + vec4_index) / 4)] = int16_scale(largest);
            }
        } else if (TO_F16) {
            Words2(push.o).data[at] = f16_activations(values[vec4_index]);
        } else {
            push.o.data[at] = values[vec4_index];
        }
    }
    if (TO_INT16 && gl_WorkGroupID.x == 0) {
        // The scales of the padding.
        for (uint i = QUERY_HEADS * HEAD_DIM / 16 + thread; i < STRIDE / 16; i += THREADS) {
            push.o_scales.data[row * (STRIDE / 16) + int16_scale_at(i)] = 0.0;
        }
    }
}

// Start of the split outputs of this row and these heads, in vec4s.
uint split_outputs_at() {
    uint counters = (gl_NumWorkGroups.y * QUERY_HEADS + 3) / 4;
    return counters + (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * SPLITS * SPLIT_VEC4S;
}

// Publishes the output of this workgroup's split, which is in `values` and `max_and_sum`. Returns whether it
// was the last split of its row and heads to finish.
bool publish_split(uint thread, uint used_splits) {
    SplitOutputs split_outputs = SplitOutputs(push.scratch);
    uint at = split_outputs_at() + gl_WorkGroupID.z * SPLIT_VEC4S;
    for (uint i = thread; i < SPLIT_VEC4S; i += THREADS) {
        split_outputs.data[at + i] =
            i < HEADS * HEAD_VEC4S ? values[i] : vec4(max_and_sum[i - HEADS * HEAD_VEC4S], 0.0, 0.0);
    }
    // Every thread's writes are visible before the counter is incremented: each makes its own available, and
    // all reach the barrier before one thread increments. The last workgroup reads only after it has
    // incremented.
    memoryBarrierBuffer();
    workgroup_barrier();
    if (thread == 0) {
        uint counter = gl_WorkGroupID.y * QUERY_HEADS + gl_WorkGroupID.x;
        memoryBarrierBuffer();
        finished_last = atomicAdd(push.scratch.counters[counter], 1) == used_splits - 1;
        if (finished_last) {
            // No other workgroup reads it in this dispatch.
            atomicExchange(push.scratch.counters[counter], 0);
        }
        memoryBarrierBuffer();
    }
    workgroup_barrier();
    memoryBarrierBuffer();
    return finished_last;
}

// Combines the outputs of all non-empty splits, in order, into `values`.
void combine_splits(uint thread, uint used_splits) {
    SplitOutputs split_outputs = SplitOutputs(push.scratch);
    uint first = split_outputs_at();
    for (uint i = thread; i < HEADS * used_splits; i += THREADS) {
        split_max_and_sum[i] =
            split_outputs.data[first + i % used_splits * SPLIT_VEC4S + HEADS * HEAD_VEC4S + i / used_splits].xy;
    }
    workgroup_barrier();
    for (uint i = thread; i < HEADS * HEAD_VEC4S; i += THREADS) {
        uint head = i / HEAD_VEC4S;
        float max_score = LOWEST;
        for (uint split = 0; split < used_splits; split++) {
            max_score = max(max_score, split_max_and_sum[head * used_splits + split].x);
        }
        float sum = 0.0;
        vec4 value = vec4(0.0);
        for (uint first_split = 0; first_split < used_splits; first_split += COMBINE_LOADS) {
            vec4 outputs[COMBINE_LOADS];
            [[unroll]] for (uint j = 0; j < COMBINE_LOADS; j++) {
                outputs[j] = split_outputs.data[first + min(first_split + j, used_splits - 1) * SPLIT_VEC4S + i];
            }
            [[unroll]] for (uint j = 0; j < COMBINE_LOADS; j++) {
                vec2 from_split = split_max_and_sum[head * used_splits + min(first_split + j, used_splits - 1)];
                float rescale = first_split + j < used_splits ? exp2(from_split.x - max_score) : 0.0;
                sum += rescale * from_split.y;
                value += rescale * outputs[j];
            }
        }
        values[i] = value / sum;
    }
    workgroup_barrier();
}

// Position of key k of a cluster in a block.
uint key_of(uint block, uint k, uint cluster) {
    return block * BLOCK + k * CLUSTERS + cluster;
}

// Lines in the cache of a cluster's keys of a block. Nothing outside first…last is read: it may hold anything,
// even NaN.
void find_lines(uint block, uint cluster, uint kv_head, uint pages, uint first, uint last, out uint lines[KEYS]) {
    uint page = 0;
    if (BLOCK <= PAGE_SIZE) {
        page = push.table.data[pages + block * BLOCK / PAGE_SIZE];
    }
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        uint key = clamp(key_of(block, k, cluster), first, last);
        if (BLOCK > PAGE_SIZE) {
            page = push.table.data[pages + key / PAGE_SIZE];
        }
        lines[k] = (page * KV_HEADS + kv_head) * PAGE_SIZE + key % PAGE_SIZE;
    }
}

void main() {
    uint row = gl_WorkGroupID.y;
    uint split = gl_WorkGroupID.z;
    uint kv_head = gl_WorkGroupID.x / (QUERY_HEADS / KV_HEADS / HEADS);
    uint thread = thread_index();
    uint lane = thread % LANES;
    uint cluster = thread / LANES;

    // All independent loads come first, before it is known whether the row is active.
    uint rows = push.active_rows.rows;
    uint position = push.positions.data[row];
    uint pages = push.slots.data[row] * push.table_stride;
    vec4 x[THREAD_VEC4S];
    vec4 weights[THREAD_VEC4S];
    if (PREFETCH) {
        load_head(min(cluster, ALL_HEADS - 1), kv_head, lane, x, weights);
    }
    if (row >= rows) {
        return;
    }

    // Positions to read: those before the row's own, which the last split has as well; or all.
    uint first = first_position(position, WINDOW);
    uint first_block = first / BLOCK;
    uint last = SHARED ? position : max(position, 1) - 1;
    uint blocks = SHARED || position > first ? last / BLOCK - first_block + 1 : 0;
    uint split_blocks = blocks_per_split(blocks, SPLITS, MIN_BLOCKS);
    // With a short range the later splits are empty.
    uint used_splits = max((blocks + split_blocks - 1) / split_blocks, 1);
    if (split >= used_splits) {
        return;
    }
    // One of the workgroups that share a KV head writes the new key and value.
    bool is_first = gl_WorkGroupID.x % (QUERY_HEADS / KV_HEADS / HEADS) == 0;
    uint part = push.qkv_stride_and_part % 4;
    bool only_writes = part == WRITES_KEYS;
    if (only_writes && !is_first) {
        return;
    }
    bool writes = is_first && part != ATTENDS;
    bool has_own = !SHARED && (only_writes || split == used_splits - 1);
    uint block = first_block + split * split_blocks;
    uint end = only_writes ? block : first_block + min((split + 1) * split_blocks, blocks);

    // These loads need only the position, and are in flight while pages are looked up.
    vec4 coarse[THREAD_VEC4S];
    vec4 fine[THREAD_VEC4S];
    load_rotations(position, lane, coarse, fine);
    // Location of the new key and value.
    uint new_line = 0;
    if (has_own) {
        new_line = (push.table.data[pages + position / PAGE_SIZE] * KV_HEADS + kv_head) * PAGE_SIZE + position % PAGE_SIZE;
    }
    uvec4 next_keys[THREAD_LOADS];
    uvec4 next_values[THREAD_LOADS];
    uint lines[KEYS];
    if (PREFETCH && block < end) {
        find_lines(block, cluster, kv_head, pages, first, last, lines);
        [[unroll]] for (uint i = 0; i < THREAD_LOADS; i++) {
            next_keys[i] = load_words(push.k, lines, i, lane);
        }
        [[unroll]] for (uint i = 0; i < THREAD_LOADS; i++) {
            next_values[i] = load_words(push.v, lines, i, lane);
        }
    }

    vec4 cosines[THREAD_VEC8S];
    vec4 sines[THREAD_VEC8S];
    rotations(coarse, fine, cosines, sines);
    uint heads = has_own ? HEADS + 2 : HEADS;
    float head_scale = SCALE * query_temperature(position);
    for (uint at = 0; at < heads; at += CLUSTERS) {
        uint head = at + cluster;
        if (!PREFETCH || at > 0) {
            load_head(min(head, ALL_HEADS - 1), kv_head, lane, x, weights);
        }
        float norm = 1.0;
        if (QK_NORM) {
            float squares = 0.0;
            [[unroll]] for (uint i = 0; i < THREAD_VEC4S; i++) {
                squares += i / 2 * LANES + lane < HEAD_VEC8S ? dot(x[i], x[i]) : 0.0;
            }
            norm = inversesqrt(cluster_sum(squares) / float(HEAD_DIM) + EPSILON);
        }
        [[unroll]] for (uint i = 0; i < THREAD_VEC8S; i++) {
            uvec2 vec4_pair = item_vec4s(i * LANES + lane);
            if (head < heads && i * LANES + lane < HEAD_VEC8S) {
                vec4 low = x[2 * i];
                vec4 high = x[2 * i + 1];
                if (head != VALUE) {
                    low *= norm * weights[2 * i];
                    high *= norm * weights[2 * i + 1];
                    vec4 a = INTERLEAVED ? vec4(low.xz, high.xz) : low;
                    vec4 b = INTERLEAVED ? vec4(low.yw, high.yw) : high;
                    vec4 rotated_a = a * cosines[i] - b * sines[i];
                    vec4 rotated_b = b * cosines[i] + a * sines[i];
                    low = INTERLEAVED ? vec4(rotated_a.x, rotated_b.x, rotated_a.y, rotated_b.y) : rotated_a;
                    high = INTERLEAVED ? vec4(rotated_a.z, rotated_b.z, rotated_a.w, rotated_b.w) : rotated_b;
                } else if (VALUE_NORM) {
                    low *= norm;
                    high *= norm;
                }
                if (head < HEADS) {
                    low *= head_scale;
                    high *= head_scale;
                } else if (!INT8) {
                    Words4 cache = push.k;
                    if (head == VALUE) {
                        cache = push.v;
                    }
                    low = store_rounded(cache, writes, new_line * HEAD_VEC4S + vec4_pair.x, low);
                    high = store_rounded(cache, writes, new_line * HEAD_VEC4S + vec4_pair.y, high);
                }
                values[head * HEAD_VEC4S + vec4_pair.x] = low;
                values[head * HEAD_VEC4S + vec4_pair.y] = high;
            }
        }
    }
    workgroup_barrier();
    if (INT8 && has_own) {
        store_int8(writes, new_line, thread);
    }
    if (only_writes) {
        return;
    }

    vec4 q[HEADS * THREAD_VEC4S];
    vec4 o[HEADS * THREAD_VEC4S];
    float largest[HEADS];
    float sum[HEADS];
    [[unroll]] for (uint head = 0; head < HEADS; head++) {
        largest[head] = LOWEST;
        sum[head] = 0.0;
        [[unroll]] for (uint i = 0; i < THREAD_VEC4S; i++) {
            uint vec8 = i / 2 * LANES + lane;
            float query_scale = vec8 < HEAD_VEC8S ? LOG2_E : 0.0;
            q[head * THREAD_VEC4S + i] = values[head * HEAD_VEC4S + min(vec8, HEAD_VEC8S - 1) * 2 + i % 2] * query_scale;
            o[head * THREAD_VEC4S + i] = vec4(0.0);
        }
    }
    if (has_own) {
        // The first cluster starts with the row's own position: its weight is 1, and its score the maximum so
        // far.
        [[unroll]] for (uint head = 0; head < HEADS; head++) {
            float score = 0.0;
            [[unroll]] for (uint i = 0; i < THREAD_VEC4S; i++) {
                uint vec4_index = min(i / 2 * LANES + lane, HEAD_VEC8S - 1) * 2 + i % 2;
                score += dot(q[head * THREAD_VEC4S + i], values[KEY * HEAD_VEC4S + vec4_index]);
            }
            score = cluster_sum(score);
            if (cluster == 0) {
                largest[head] = score;
                sum[head] = 1.0;
                [[unroll]] for (uint i = 0; i < THREAD_VEC4S; i++) {
                    uint vec4_index = min(i / 2 * LANES + lane, HEAD_VEC8S - 1) * 2 + i % 2;
                    o[head * THREAD_VEC4S + i] = values[VALUE * HEAD_VEC4S + vec4_index];
                }
            }
        }
    }

    for (; block < end; block++) {
        uvec4 key_words[THREAD_LOADS];
        uvec4 value_words[THREAD_LOADS];
        if (!PREFETCH) {
            find_lines(block, cluster, kv_head, pages, first, last, lines);
        }
        [[unroll]] for (uint i = 0; i < THREAD_LOADS; i++) {
            key_words[i] = PREFETCH ? next_keys[i] : load_words(push.k, lines, i, lane);
            value_words[i] = PREFETCH ? next_values[i] : load_words(push.v, lines, i, lane);
        }
        float scores[CLUSTER_SUMS];
        [[unroll]] for (uint i = 0; i < CLUSTER_SUMS; i++) {
            scores[i] = 0.0;
        }
        [[unroll]] for (uint i = 0; i < KEYS * THREAD_VEC4S; i++) {
            vec4 key = vec4_of(key_words[i * VEC8_LOADS / 2], i, lane);
            [[unroll]] for (uint head = 0; head < HEADS; head++) {
                vec4 query = q[head * THREAD_VEC4S + i % THREAD_VEC4S];
                uint at = i / THREAD_VEC4S * HEADS + head;
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    scores[at] = fma(query[j], key[j], scores[at]);
                }
            }
        }
        bool has_next = PREFETCH && block + 1 < end;
        if (has_next) {
            find_lines(block + 1, cluster, kv_head, pages, first, last, lines);
            [[unroll]] for (uint i = 0; i < THREAD_LOADS; i++) {
                next_keys[i] = load_words(push.k, lines, i, lane);
            }
        }
        cluster_sums(scores);

        [[unroll]] for (uint head = 0; head < HEADS; head++) {
            float max_score = largest[head];
            [[unroll]] for (uint k = 0; k < KEYS; k++) {
                uint key = key_of(block, k, cluster);
                max_score = max(max_score, key >= first && key <= last ? scores[k * HEADS + head] : LOWEST);
            }
            float rescale = exp2(largest[head] - max_score);
            largest[head] = max_score;
            sum[head] *= rescale;
            [[unroll]] for (uint k = 0; k < KEYS; k++) {
                uint key = key_of(block, k, cluster);
                float weight = key >= first && key <= last ? exp2(scores[k * HEADS + head] - max_score) : 0.0;
                scores[k * HEADS + head] = weight;
                sum[head] += weight;
            }
            [[unroll]] for (uint i = 0; i < THREAD_VEC4S; i++) {
                o[head * THREAD_VEC4S + i] *= rescale;
            }
        }

        [[unroll]] for (uint i = 0; i < KEYS * THREAD_VEC4S; i++) {
            vec4 value = vec4_of(value_words[i * VEC8_LOADS / 2], i, lane);
            [[unroll]] for (uint head = 0; head < HEADS; head++) {
                uint at = head * THREAD_VEC4S + i % THREAD_VEC4S;
                o[at] = fma(vec4(scores[i / THREAD_VEC4S * HEADS + head]), value, o[at]);
            }
        }
        if (has_next) {
            [[unroll]] for (uint i = 0; i < THREAD_LOADS; i++) {
                next_values[i] = load_words(push.v, lines, i, lane);
            }
        }
    }

    // An unsplit row has its final sum of weights, and is divided by it here.
    bool unsplit = SPLITS == 1 || used_splits == 1;
    if (CLUSTERS > 1) {
        [[unroll]] for (uint head = 0; head < HEADS; head++) {
            float max_score = largest[head];
            float total = sum[head];
#if TIER >= 1
            // The clusters of a subgroup first.
            for (uint distance = LANES; distance < gl_SubgroupSize; distance *= 2) {
                max_score = max(max_score, subgroupShuffleXor(max_score, distance));
            }
            total *= exp2(largest[head] - max_score);
            for (uint distance = LANES; distance < gl_SubgroupSize; distance *= 2) {
                total += subgroupShuffleXor(total, distance);
            }
            if (gl_SubgroupInvocationID == 0) {
                cluster_max_and_sum[gl_SubgroupID * HEADS + head] = vec2(max_score, total);
            }
#else
            if (lane == 0) {
                cluster_max_and_sum[cluster * HEADS + head] = vec2(max_score, total);
            }
#endif
        }
    }
    // From here on `values` are outputs: all threads have read the previous content.
    workgroup_barrier();
#if TIER >= 1
    uint states = gl_NumSubgroups;
#else
    uint states = CLUSTERS;
#endif
    [[unroll]] for (uint head = 0; head < HEADS; head++) {
        if (CLUSTERS > 1) {
            float max_score = LOWEST;
            for (uint i = 0; i < states; i++) {
                max_score = max(max_score, cluster_max_and_sum[i * HEADS + head].x);
            }
            float total = 0.0;
            for (uint i = 0; i < states; i++) {
                vec2 state = cluster_max_and_sum[i * HEADS + head];
                total += exp2(state.x - max_score) * state.y;
            }
            float rescale = exp2(largest[head] - max_score);
            largest[head] = max_score;
            sum[head] = total;
            [[unroll]] for (uint i = 0; i < THREAD_VEC4S; i++) {
                uint vec4_index = (i / 2 * LANES + lane) * 2 + i % 2;
                vec4 own = o[head * THREAD_VEC4S + i] * rescale;
#if TIER >= 1
                for (uint distance = LANES; distance < gl_SubgroupSize; distance *= 2) {
                    own += subgroupShuffleXor(own, distance);
                }
                if (gl_SubgroupInvocationID < LANES) {
                    cluster_outputs[gl_SubgroupID * THREAD_VEC8S * LANES * 2 + vec4_index] = own;
                }
#else
                cluster_outputs[cluster * THREAD_VEC8S * LANES * 2 + vec4_index] = own;
#endif
            }
            workgroup_barrier();
            for (uint d = thread; d < HEAD_DIM; d += THREADS) {
                float value = 0.0;
                for (uint i = 0; i < states; i++) {
                    value += cluster_outputs[i * THREAD_VEC8S * LANES * 2 + d / 4][d % 4];
                }
                values[head * HEAD_VEC4S + d / 4][d % 4] = unsplit ? value / total : value;
            }
            // The next head must not overwrite values that another thread is still summing.
            workgroup_barrier();
        } else {
            [[unroll]] for (uint i = 0; i < THREAD_VEC4S; i++) {
                uint vec4_index = (i / 2 * LANES + lane) * 2 + i % 2;
                if (vec4_index < HEAD_VEC4S) {
                    values[head * HEAD_VEC4S + vec4_index] =
                        unsplit ? o[head * THREAD_VEC4S + i] / sum[head] : o[head * THREAD_VEC4S + i];
                }
            }
        }
        if (thread == 0) {
            max_and_sum[head] = vec2(largest[head], sum[head]);
        }
    }
    workgroup_barrier();
    if (SPLITS > 1 && used_splits > 1) {
        if (!publish_split(thread, used_splits)) {
            return;
        }
        combine_splits(thread, used_splits);
    }
    write_output(thread);
}
