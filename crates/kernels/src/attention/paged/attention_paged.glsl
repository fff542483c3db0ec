// o = softmax(q · kᵀ) · v over the pages of the cache, with an online softmax: no row of scores is ever
// stored.
//
// A workgroup takes ROWS rows, HEADS query heads that share a KV head, and one KV split; a pair is a row and
// a query head. Positions are processed in blocks of CLUSTERS · KEYS. A cluster of LANES threads takes KEYS
// keys of each block: its threads hold vec8s (8 neighbouring values) of every pair's query and output, load
// the same vec8s of keys and values, and sum their shares of the scores. At the end the clusters' outputs
// are combined, in order.
//
// Decode: ROWS is 1, and each row has its own position and slot. Prefill: the rows of a workgroup belong to
// one sequence, at consecutive positions, and share every key and value that is loaded. A key outside a row's
// range does not change its sums, not even their rounding: a row's result does not depend on the other rows.
//
// A row sees the keys of its window up to its last visible position: its own, or the last of its image, whose
// rows see each other in both directions.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint LANES = 32;
layout(constant_id = 2) const uint HEAD_DIM = 256;
layout(constant_id = 3) const uint ROWS = 1;
layout(constant_id = 4) const uint HEADS = 4;
layout(constant_id = 5) const uint KEYS = 2;
// Positions per page.
layout(constant_id = 6) const uint PAGE_SIZE = 64;
layout(constant_id = 7) const uint KV_BITS = 16;
// More than one KV split: attention_combine combines their outputs.
layout(constant_id = 8) const bool SPLIT = false;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Words2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer MaxAndSum { vec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint first; uint end; };

layout(push_constant, scalar) uniform Push {
    Floats4 q;
    Words4 k;
    Words4 v;
    Numbers positions;
    // Last position that each row sees, at or after its own. Never decreases within a chunk.
    Numbers last_visible;
    Numbers slots;
    Numbers table;
    // Active rows first..end.
    Active active_rows;
    // End row of each chunk; a chunk is a run of rows of one sequence.
    Numbers chunk_ends;
    // Rows at a stride of o_stride, or split outputs indexed from the first active row: [row][query
    // head][split][HEAD_DIM].
    Output o;
    // Maximum score and sum of weights of each split output.
    MaxAndSum max_and_sum;
    uint heads;
    uint kv_heads;
    uint o_stride;
    uint table_stride;
    // Sliding window: positions up to its own that a row attends to; 0 for all.
    uint window;
    uint splits;
    uint min_blocks;
    // Maximum number of chunks.
    uint chunks;
} push;

#include "range.glsl"
#include "chunks.glsl"
#include "half.glsl"
#include "kv.glsl"

const uint PAIRS = ROWS * HEADS;
const uint CLUSTER_SUMS = KEYS * PAIRS;
#include "cluster.glsl"

const uint CLUSTERS = THREADS / LANES;
const uint BLOCK = CLUSTERS * KEYS;
const uint HEAD_VEC8S = HEAD_DIM / 8;
// Vec8s per thread. Where they do not divide evenly, the last thread repeats the last vec8 with weight zero.
const uint THREAD_VEC8S = (HEAD_VEC8S + LANES - 1) / LANES;
const uint HEAD_VEC4S = HEAD_DIM / 4;
// Lower than any score, but finite, so that differences of two of them are not NaN.
const float LOWEST = -3.0e38;
const float LOG2_E = 1.4426950408889634;

shared vec4 cluster_outputs[CLUSTERS > 1 ? CLUSTERS * THREAD_VEC8S * LANES * 2 : 1];
shared vec2 cluster_max_and_sum[CLUSTERS > 1 ? CLUSTERS * PAIRS : 1];

// 16-byte loads per vec8. For int8: 8 bytes of values, and the word with their scale.
const uint VEC8_LOADS = KV_BITS == 32 ? 2 : 1;

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
        return uvec4(values, Numbers(cache).data[int8_scales_at(line) + vec8 / INT8_GROUP], 0);
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

// Index of a split output.
uint split_index(uint row, uint head, uint split) {
    return ((row - push.active_rows.first) * push.heads + head) * push.splits + split;
}

// Writes a vec4 of a pair's output.
void write(uint row, uint head, uint split, uint vec4_index, vec4 value, float sum) {
    if (SPLIT) {
        push.o.data[split_index(row, head, split) * HEAD_VEC4S + vec4_index] = value;
    } else {
        push.o.data[row * (push.o_stride / 4) + head * HEAD_VEC4S + vec4_index] = value / sum;
    }
}

void main() {
    uint number = gl_WorkGroupID.y;
    Tile tile = Tile(push.active_rows.first, push.active_rows.end, number);
    if (ROWS > 1) {
        tile = tile_of_chunks(push.chunk_ends, push.chunks, tile.first, tile.end, 1, ROWS, number);
    }
    uint first_row = tile.first + tile.number * ROWS;
    if (first_row >= tile.end) {
        return;
    }
    uint last_row = min(first_row + ROWS, tile.end) - 1;
    uint groups_per_kv_head = push.heads / push.kv_heads / HEADS;
    uint kv_head = gl_WorkGroupID.x / groups_per_kv_head;
    uint first_head = gl_WorkGroupID.x * HEADS;
    uint split = gl_WorkGroupID.z;
    uint pages = push.slots.data[first_row] * push.table_stride;

    // Position of the first row; row r of the tile is at r more.
    uint position = push.positions.data[first_row];
    uint first = first_position(position, push.window);
    uint row_last[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        row_last[r] = push.last_visible.data[min(first_row + r, last_row)];
    }
    uint last = row_last[ROWS - 1];
    uint first_block = first / BLOCK;
    uint blocks = last / BLOCK - first_block + 1;
    uint split_blocks = blocks_per_split(blocks, push.splits, push.min_blocks);
    uint block = first_block + min(split * split_blocks, blocks);
    uint end = first_block + min((split + 1) * split_blocks, blocks);
    if (block == end) {
        return;
    }

    uint thread = thread_index();
    uint lane = thread % LANES;
    uint cluster = thread / LANES;

    vec4 q[PAIRS * THREAD_VEC8S * 2];
    vec4 o[PAIRS * THREAD_VEC8S * 2];
    float largest[PAIRS];
    float sum[PAIRS];
    [[unroll]] for (uint pair = 0; pair < PAIRS; pair++) {
        largest[pair] = LOWEST;
        sum[pair] = 0.0;
        uint row = min(first_row + pair / HEADS, last_row);
        uint from = (row * push.heads + first_head + pair % HEADS) * HEAD_VEC4S;
        [[unroll]] for (uint i = 0; i < THREAD_VEC8S; i++) {
            uint vec8 = i * LANES + lane;
            uint at = from + min(vec8, HEAD_VEC8S - 1) * 2;
            float query_scale = vec8 < HEAD_VEC8S ? LOG2_E : 0.0;
            [[unroll]] for (uint h = 0; h < 2; h++) {
                q[(pair * THREAD_VEC8S + i) * 2 + h] = push.q.data[at + h] * query_scale;
                o[(pair * THREAD_VEC8S + i) * 2 + h] = vec4(0.0);
            }
        }
    }

    for (; block < end; block++) {
        uint page = 0;
        if (BLOCK <= PAGE_SIZE) {
            page = push.table.data[pages + block * BLOCK / PAGE_SIZE];
        }
        uint keys[KEYS];
        uint lines[KEYS];
        [[unroll]] for (uint k = 0; k < KEYS; k++) {
            keys[k] = block * BLOCK + k * CLUSTERS + cluster;
            // Nothing outside the range is read: it may hold anything, even NaN.
            uint key = clamp(keys[k], first, last);
            if (BLOCK > PAGE_SIZE) {
                page = push.table.data[pages + key / PAGE_SIZE];
            }
            lines[k] = (page * push.kv_heads + kv_head) * PAGE_SIZE + key % PAGE_SIZE;
        }

        // All loads come first: values are in flight while the scores are computed.
        uvec4 key_words[KEYS * THREAD_VEC8S * VEC8_LOADS];
        uvec4 value_words[KEYS * THREAD_VEC8S * VEC8_LOADS];
        [[unroll]] for (uint i = 0; i < KEYS * THREAD_VEC8S * VEC8_LOADS; i++) {
            key_words[i] = load_words(push.k, lines, i, lane);
            value_words[i] = load_words(push.v, lines, i, lane);
        }

        float scores[CLUSTER_SUMS];
        [[unroll]] for (uint i = 0; i < CLUSTER_SUMS; i++) {
            scores[i] = 0.0;
        }
        [[unroll]] for (uint i = 0; i < KEYS * THREAD_VEC8S * 2; i++) {
            vec4 key = vec4_of(key_words[i * VEC8_LOADS / 2], i, lane);
            [[unroll]] for (uint pair = 0; pair < PAIRS; pair++) {
                vec4 query = q[pair * THREAD_VEC8S * 2 + i % (THREAD_VEC8S * 2)];
                uint at = i / (THREAD_VEC8S * 2) * PAIRS + pair;
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    scores[at] = fma(query[j], key[j], scores[at]);
                }
            }
        }
        cluster_sums(scores);

        [[unroll]] for (uint pair = 0; pair < PAIRS; pair++) {
            uint own = position + pair / HEADS;
            uint low = first_position(own, push.window);
            uint high = row_last[pair / HEADS];
            float max_score = largest[pair];
            [[unroll]] for (uint k = 0; k < KEYS; k++) {
                bool in_range = keys[k] >= low && keys[k] <= high;
                max_score = max(max_score, in_range ? scores[k * PAIRS + pair] : LOWEST);
            }
            float rescale = exp2(largest[pair] - max_score);
            largest[pair] = max_score;
            sum[pair] *= rescale;
            [[unroll]] for (uint k = 0; k < KEYS; k++) {
                bool in_range = keys[k] >= low && keys[k] <= high;
                float weight = in_range ? exp2(scores[k * PAIRS + pair] - max_score) : 0.0;
                scores[k * PAIRS + pair] = weight;
                sum[pair] += weight;
            }
            [[unroll]] for (uint i = 0; i < THREAD_VEC8S * 2; i++) {
                o[pair * THREAD_VEC8S * 2 + i] *= rescale;
            }
        }

        [[unroll]] for (uint i = 0; i < KEYS * THREAD_VEC8S * 2; i++) {
            vec4 value = vec4_of(value_words[i * VEC8_LOADS / 2], i, lane);
            [[unroll]] for (uint pair = 0; pair < PAIRS; pair++) {
                uint at = pair * THREAD_VEC8S * 2 + i % (THREAD_VEC8S * 2);
                o[at] = fma(vec4(scores[i / (THREAD_VEC8S * 2) * PAIRS + pair]), value, o[at]);
            }
        }
    }

    if (CLUSTERS > 1) {
        if (lane == 0) {
            [[unroll]] for (uint pair = 0; pair < PAIRS; pair++) {
                cluster_max_and_sum[cluster * PAIRS + pair] = vec2(largest[pair], sum[pair]);
            }
        }
        barrier();
    }
    [[unroll]] for (uint pair = 0; pair < PAIRS; pair++) {
        uint row = first_row + pair / HEADS;
        uint head = first_head + pair % HEADS;
        if (CLUSTERS > 1) {
            float max_score = LOWEST;
            [[dont_unroll]] for (uint c = 0; c < CLUSTERS; c++) {
                max_score = max(max_score, cluster_max_and_sum[c * PAIRS + pair].x);
            }
            float total = 0.0;
            [[dont_unroll]] for (uint c = 0; c < CLUSTERS; c++) {
                vec2 state = cluster_max_and_sum[c * PAIRS + pair];
                total += exp2(state.x - max_score) * state.y;
            }
            float rescale = exp2(largest[pair] - max_score);
            largest[pair] = max_score;
            sum[pair] = total;
            [[unroll]] for (uint i = 0; i < THREAD_VEC8S * 2; i++) {
                uint vec4_index = (i / 2 * LANES + lane) * 2 + i % 2;
                cluster_outputs[cluster * THREAD_VEC8S * LANES * 2 + vec4_index] = o[pair * THREAD_VEC8S * 2 + i] * rescale;
            }
            barrier();
            for (uint vec4_index = thread; vec4_index < HEAD_VEC4S && row <= last_row; vec4_index += THREADS) {
                vec4 value = vec4(0.0);
                [[dont_unroll]] for (uint c = 0; c < CLUSTERS; c++) {
                    value += cluster_outputs[c * THREAD_VEC8S * LANES * 2 + vec4_index];
                }
                write(row, head, split, vec4_index, value, sum[pair]);
            }
            // The next pair must not overwrite values that another thread is still summing.
            barrier();
        } else if (row <= last_row) {
            [[unroll]] for (uint i = 0; i < THREAD_VEC8S * 2; i++) {
                uint vec4_index = (i / 2 * LANES + lane) * 2 + i % 2;
                if (vec4_index < HEAD_VEC4S) {
                    write(row, head, split, vec4_index, o[pair * THREAD_VEC8S * 2 + i], sum[pair]);
                }
            }
        }
        if (SPLIT && thread == 0 && row <= last_row) {
            push.max_and_sum.data[split_index(row, head, split)] = vec2(largest[pair], sum[pair]);
        }
    }
}
