#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// All attention work of a decode step in one dispatch, from the rows of the QKV product to the input of the
// output projection. Each row belongs to a different sequence. Bias, QK norm, RoPE and scale; the write of
// the new key and value into their page; softmax(q · kᵀ) · v over the pages of the cache; the combination of
// the KV splits; and, where the next product needs it, the result as int16 or f16.
//
// A workgroup takes a row, HEADS query heads that share a KV head, and one split of the positions before the
// row's own. Positions are processed in blocks of CLUSTERS · KEYS. A cluster of LANES threads takes KEYS keys
// of each block: its threads hold eights (8 neighbouring values) of every query and output, load the same
// eights of keys and values, and sum their shares of the scores. The last non-empty split includes the row's
// own position: its key and value are used as stored, but not read back. At the end the clusters' outputs are
// combined, in order.
//
// The splits are combined by the last workgroup to finish, in split order, whichever workgroup that is. No
// workgroup waits for another.
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
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer Partials { vec4 data[]; };

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
    // A counter per row and query head, 0 between dispatches; then the partial outputs:
    // [row][workgroup][split][PARTIAL].
    Scratch scratch;
    uint qkv_stride;
    uint table_stride;
} push;

#include "range.glsl"
#include "half.glsl"
#include "kv.glsl"
#include "int16.glsl"
#include "f16.glsl"

const bool TO_INT16 = OUTPUT == 2;
const bool TO_F16 = OUTPUT == 3;

const uint CLUSTER_SUMS = KEYS * HEADS;
#include "cluster.glsl"

const uint CLUSTERS = THREADS / LANES;
const uint BLOCK = CLUSTERS * KEYS;
const uint EIGHTS = HEAD_DIM / 8;
// Eights per thread. Where they do not divide evenly, the last thread repeats the last eight with weight
// zero.
const uint OWN = (EIGHTS + LANES - 1) / LANES;
// Quads (4 values) per thread and head.
const uint FOURS = 2 * OWN;
const uint QUADS = HEAD_DIM / 4;
// Lower than any score, but finite, so that differences of two of them are not NaN.
const float LOWEST = -3.0e38;
const float LOG2_E = 1.4426950408889634;
// Values per output column, padding included.
const uint STRIDE = (QUERY_HEADS * HEAD_DIM + 127) / 128 * 128;
// Quads per partial output: the outputs of all heads, then the maximum score and the sum of weights of each.
const uint PARTIAL = HEADS * (QUADS + 1);
// Loads keys and values before they are needed. A CPU driver has no latency to hide: there it only costs
// registers.
const bool AHEAD = THREADS >= 32;
// Partial outputs in flight while they are combined.
const uint BATCH = AHEAD ? 16 : 2;

// Heads to norm and rotate: the workgroup's queries, the key and the value.
#define KEY HEADS
#define VALUE (HEADS + 1)
// First the heads, later the outputs.
shared vec4 values[(HEADS + 2) * QUADS];
shared vec4 joined[CLUSTERS > 1 ? CLUSTERS * OWN * LANES * 2 : 1];
shared vec2 joined_sums[CLUSTERS > 1 ? CLUSTERS * HEADS : 1];
// Maximum score and sum of weights per head, and per split.
shared vec2 sums[HEADS];
shared vec2 split_sums[SPLITS > 1 ? HEADS * SPLITS : 1];
shared bool last_to_arrive;
// Scales of the new key and value.
shared uint own_scales[INT8 ? 2 * INT8_SCALE_WORDS : 1];

// Workgroup barrier for shared memory.
void meet() {
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

// Loads per eight of the cache: of 16 bytes, or for int8 one of 8 bytes and one of the word with its scale.
const uint LOADS = KV_BITS == 32 ? 2 : 1;
// Loads per thread and block.
const uint LOADED = KEYS * OWN * LOADS;

// Index of the eight that is number i of a thread's eights, over all keys.
uint eight_of(uint i, uint lane) {
    return min(i % OWN * LANES + lane, EIGHTS - 1);
}

// Load i of a thread.
uvec4 loaded(Words4 cache, uint lines[KEYS], uint i, uint lane) {
    uint line = lines[i / LOADS / OWN];
    uint eight = eight_of(i / LOADS, lane);
    if (INT8) {
        // Two groups, whose scales share a word, are eight eights.
        uvec2 values = Words2(cache).data[int8_at(line) / 2 + eight];
        return uvec4(values, Words(cache).data[int8_scales_at(line) + eight / INT8_GROUP], 0);
    }
    return cache.data[(line * EIGHTS + eight) * LOADS + i % LOADS];
}

// Quad i of a thread, from the load that contains it.
vec4 four(uvec4 words, uint i, uint lane) {
    if (INT8) {
        return int8_values(words[i % 2], int8_scale_of(words.z, 2 * eight_of(i / 2, lane)));
    }
    if (F16) {
        uvec2 own = i % 2 == 0 ? words.xy : words.zw;
        return vec4(unpackHalf2x16(own.x), unpackHalf2x16(own.y));
    }
    return uintBitsToFloat(words);
}

// The two quads of an item: eight values that are rotated together.
uvec2 places(uint item) {
    return INTERLEAVED ? uvec2(2 * item, 2 * item + 1) : uvec2(item, item + QUADS / 2);
}

// Item i of a thread's OWN items; past the last it repeats the last.
uint item_of(uint i, uint lane) {
    return min(i * LANES + lane, EIGHTS - 1);
}

// Index of a head in a row of the QKV product.
uint head_in_row(uint head, uint kv_head) {
    return head < HEADS ? gl_WorkGroupID.x * HEADS + head : QUERY_HEADS + (head - HEADS) * KV_HEADS + kv_head;
}

// A thread's items of a head, and the weights of its norm.
void load_head(uint head, uint kv_head, uint lane, out vec4 x[FOURS], out vec4 weights[FOURS]) {
    uint start = head_in_row(head, kv_head) * QUADS;
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        uvec2 at = places(item_of(i, lane));
        [[unroll]] for (uint h = 0; h < 2; h++) {
            uint from = gl_WorkGroupID.y * (push.qkv_stride / 4) + start + at[h];
            x[2 * i + h] = push.qkv.data[from];
            [[unroll]] for (uint sum = 1; sum < PARTIALS; sum++) {
                x[2 * i + h] += push.qkv.data[from + sum * (QUERY_HEADS + 2 * KV_HEADS) * QUADS];
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

// Entries of the two tables for an item's four frequencies.
void load_turns(uint position, uint lane, out vec4 coarse[FOURS], out vec4 fine[FOURS]) {
    [[unroll]] for (uint i = 0; i < FOURS; i++) {
        uint at = item_of(i / 2, lane) * 2 + i % 2;
        coarse[i] = push.coarse.data[position / 256 * QUADS + at];
        fine[i] = push.fine.data[position % 256 * QUADS + at];
    }
}

// Cosines and sines: the angles of the two tables add, so their complex numbers multiply.
void turn(vec4 coarse[FOURS], vec4 fine[FOURS], out vec4 cosines[OWN], out vec4 sines[OWN]) {
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        vec4 a_cos = vec4(coarse[2 * i].xz, coarse[2 * i + 1].xz);
        vec4 a_sin = vec4(coarse[2 * i].yw, coarse[2 * i + 1].yw);
        vec4 b_cos = vec4(fine[2 * i].xz, fine[2 * i + 1].xz);
        vec4 b_sin = vec4(fine[2 * i].yw, fine[2 * i + 1].yw);
        cosines[i] = a_cos * b_cos - a_sin * b_sin;
        sines[i] = a_cos * b_sin + a_sin * b_cos;
    }
}

// Writes a quad into the cache and returns it as stored.
vec4 stored(Words4 cache, bool writes, uint quad, vec4 x) {
    if (F16) {
        uvec2 words = half_words(x);
        if (writes) {
            Words2(cache).data[quad] = words;
        }
        return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
    }
    if (writes) {
        cache.data[quad] = floatBitsToUint(x);
    }
    return x;
}

// Writes the new key and value, which are in `values`, into the cache as int8, and replaces `values` by what
// was stored.
void store_int8(bool writes, uint line, uint thread) {
    for (uint i = thread; i < 2 * INT8_SCALE_WORDS; i += THREADS) {
        uint first = (KEY + i / INT8_SCALE_WORDS) * QUADS;
        uint scales = 0;
        [[unroll]] for (uint upper = 0; upper < 2; upper++) {
            uint quad = (i % INT8_SCALE_WORDS * 2 + upper) * INT8_GROUP;
            if (quad < QUADS) {
                uint reach = 0;
                [[unroll]] for (uint j = 0; j < INT8_GROUP; j++) {
                    reach = max(reach, largest_magnitude(values[first + quad + j]));
                }
                scales |= int8_scale(reach) << upper * 16;
            }
        }
        own_scales[i] = scales;
        if (writes) {
            Words4 cache = push.k;
            if (i >= INT8_SCALE_WORDS) {
                cache = push.v;
            }
            Words(cache).data[int8_scales_at(line) + i % INT8_SCALE_WORDS] = scales;
        }
    }
    meet();
    for (uint i = thread; i < 2 * QUADS; i += THREADS) {
        uint quad = i % QUADS;
        uint scales = own_scales[i / QUADS * INT8_SCALE_WORDS + quad / (2 * INT8_GROUP)];
        uint scale = int8_scale_of(scales, quad);
        uint word = int8_word(values[KEY * QUADS + i], scale);
        values[KEY * QUADS + i] = int8_values(word, scale);
        if (writes) {
            Words4 cache = push.k;
            if (i >= QUADS) {
                cache = push.v;
            }
            Words(cache).data[int8_at(line) + quad] = word;
        }
    }
    meet();
}

// Writes the outputs, which are in `values`.
void write_output(uint thread) {
    uint row = gl_WorkGroupID.y;
    uint first = gl_WorkGroupID.x * HEADS * QUADS;
    for (uint quad = thread; quad < HEADS * QUADS; quad += THREADS) {
        uint at = row * (STRIDE / 4) + first + quad;
        if (TO_INT16) {
            // Half groups of 16 values: four quads share a scale.
            uint largest = 0;
            [[unroll]] for (uint j = 0; j < 4; j++) {
                largest = max(largest, largest_magnitude(values[quad / 4 * 4 + j]));
            }
            ivec4 q = int16_of(values[quad], int16_factor(largest));
            Bytes(push.o).data[at] = high_bytes(q);
            Bytes(push.o).data[gl_NumWorkGroups.y * (STRIDE / 4) + at] = low_bytes(q);
            if (quad % 4 == 0) {
                push.o_scales.data[row * (STRIDE / 16) + int16_scale_at((first + quad) / 4)] = int16_scale(largest);
            }
        } else if (TO_F16) {
            Words2(push.o).data[at] = f16_activations(values[quad]);
        } else {
            push.o.data[at] = values[quad];
        }
    }
    if (TO_INT16 && gl_WorkGroupID.x == 0) {
        // The scales of the padding.
        for (uint i = QUERY_HEADS * HEAD_DIM / 16 + thread; i < STRIDE / 16; i += THREADS) {
            push.o_scales.data[row * (STRIDE / 16) + int16_scale_at(i)] = 0.0;
        }
    }
}

// Start of the partial outputs of this row and these heads, in quads.
uint partials_at() {
    uint counters = (gl_NumWorkGroups.y * QUERY_HEADS + 3) / 4;
    return counters + (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * SPLITS * PARTIAL;
}

// Publishes this workgroup's partial output, `values` and `sums`; returns whether all others have done so.
bool arrive(uint thread, uint used) {
    Partials partials = Partials(push.scratch);
    uint at = partials_at() + gl_WorkGroupID.z * PARTIAL;
    for (uint i = thread; i < PARTIAL; i += THREADS) {
        partials.data[at + i] = i < HEADS * QUADS ? values[i] : vec4(sums[i - HEADS * QUADS], 0.0, 0.0);
    }
    // Every thread's writes are visible before the counter is incremented: each makes its own available, and
    // all reach the barrier before one thread increments. The last workgroup reads only after it has
    // incremented.
    memoryBarrierBuffer();
    meet();
    if (thread == 0) {
        uint counter = gl_WorkGroupID.y * QUERY_HEADS + gl_WorkGroupID.x;
        memoryBarrierBuffer();
        last_to_arrive = atomicAdd(push.scratch.counters[counter], 1) == used - 1;
        if (last_to_arrive) {
            // No other workgroup reads it in this dispatch.
            atomicExchange(push.scratch.counters[counter], 0);
        }
        memoryBarrierBuffer();
    }
    meet();
    memoryBarrierBuffer();
    return last_to_arrive;
}

// Combines the partial outputs of all non-empty splits, in order, into `values`.
void join_splits(uint thread, uint used) {
    Partials partials = Partials(push.scratch);
    uint first = partials_at();
    for (uint i = thread; i < HEADS * used; i += THREADS) {
        split_sums[i] = partials.data[first + i % used * PARTIAL + HEADS * QUADS + i / used].xy;
    }
    meet();
    for (uint i = thread; i < HEADS * QUADS; i += THREADS) {
        uint head = i / QUADS;
        float above = LOWEST;
        for (uint split = 0; split < used; split++) {
            above = max(above, split_sums[head * used + split].x);
        }
        float sum = 0.0;
        vec4 value = vec4(0.0);
        for (uint batch = 0; batch < used; batch += BATCH) {
            vec4 found[BATCH];
            [[unroll]] for (uint j = 0; j < BATCH; j++) {
                found[j] = partials.data[first + min(batch + j, used - 1) * PARTIAL + i];
            }
            [[unroll]] for (uint j = 0; j < BATCH; j++) {
                vec2 part = split_sums[head * used + min(batch + j, used - 1)];
                float shrink = batch + j < used ? exp2(part.x - above) : 0.0;
                sum += shrink * part.y;
                value += shrink * found[j];
            }
        }
        values[i] = value / sum;
    }
    meet();
}

// The keys of a block that a cluster takes, and their lines in the cache. Nothing outside the range is read:
// it may hold anything, even NaN.
uint key_of(uint block, uint k, uint cluster) {
    return block * BLOCK + k * CLUSTERS + cluster;
}

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
    vec4 x[FOURS];
    vec4 weights[FOURS];
    if (AHEAD) {
        load_head(min(cluster, VALUE), kv_head, lane, x, weights);
    }
    if (row >= rows) {
        return;
    }

    // Positions before the row's own; the last split also has that one.
    uint first = first_position(position, WINDOW);
    uint first_block = first / BLOCK;
    uint blocks = position > first ? (position - 1) / BLOCK - first_block + 1 : 0;
    uint each = blocks_of_split(blocks, SPLITS, MIN_BLOCKS);
    // With a short range the later splits are empty.
    uint used = max((blocks + each - 1) / each, 1);
    if (split >= used) {
        return;
    }
    bool has_own = split == used - 1;
    uint block = first_block + split * each;
    uint end = first_block + min((split + 1) * each, blocks);
    uint last = max(position, 1) - 1;

    // Depends on the position alone, and is in flight while pages are looked up.
    vec4 coarse[FOURS];
    vec4 fine[FOURS];
    load_turns(position, lane, coarse, fine);
    // Location of the new key and value.
    uint own_line = 0;
    if (has_own) {
        own_line = (push.table.data[pages + position / PAGE_SIZE] * KV_HEADS + kv_head) * PAGE_SIZE + position % PAGE_SIZE;
    }
    uvec4 next_keys[LOADED];
    uvec4 next_values[LOADED];
    uint lines[KEYS];
    if (AHEAD && block < end) {
        find_lines(block, cluster, kv_head, pages, first, last, lines);
        [[unroll]] for (uint i = 0; i < LOADED; i++) {
            next_keys[i] = loaded(push.k, lines, i, lane);
        }
        [[unroll]] for (uint i = 0; i < LOADED; i++) {
            next_values[i] = loaded(push.v, lines, i, lane);
        }
    }

    vec4 cosines[OWN];
    vec4 sines[OWN];
    turn(coarse, fine, cosines, sines);
    // One of the workgroups that share a KV head writes the new key and value.
    bool writes = gl_WorkGroupID.x % (QUERY_HEADS / KV_HEADS / HEADS) == 0;
    uint heads = has_own ? HEADS + 2 : HEADS;
    for (uint at = 0; at < heads; at += CLUSTERS) {
        uint head = at + cluster;
        if (!AHEAD || at > 0) {
            load_head(min(head, VALUE), kv_head, lane, x, weights);
        }
        float norm = 1.0;
        if (QK_NORM) {
            float squares = 0.0;
            [[unroll]] for (uint i = 0; i < FOURS; i++) {
                squares += i / 2 * LANES + lane < EIGHTS ? dot(x[i], x[i]) : 0.0;
            }
            norm = inversesqrt(cluster_sum(squares) / float(HEAD_DIM) + EPSILON);
        }
        [[unroll]] for (uint i = 0; i < OWN; i++) {
            uvec2 quads = places(i * LANES + lane);
            if (head < heads && i * LANES + lane < EIGHTS) {
                vec4 low = x[2 * i];
                vec4 high = x[2 * i + 1];
                if (head != VALUE) {
                    low *= norm * weights[2 * i];
                    high *= norm * weights[2 * i + 1];
                    vec4 a = INTERLEAVED ? vec4(low.xz, high.xz) : low;
                    vec4 b = INTERLEAVED ? vec4(low.yw, high.yw) : high;
                    vec4 turned_a = a * cosines[i] - b * sines[i];
                    vec4 turned_b = b * cosines[i] + a * sines[i];
                    low = INTERLEAVED ? vec4(turned_a.x, turned_b.x, turned_a.y, turned_b.y) : turned_a;
                    high = INTERLEAVED ? vec4(turned_a.z, turned_b.z, turned_a.w, turned_b.w) : turned_b;
                }
                if (head < HEADS) {
                    low *= SCALE;
                    high *= SCALE;
                } else if (!INT8) {
                    Words4 cache = push.k;
                    if (head == VALUE) {
                        cache = push.v;
                    }
                    low = stored(cache, writes, own_line * QUADS + quads.x, low);
                    high = stored(cache, writes, own_line * QUADS + quads.y, high);
                }
                values[head * QUADS + quads.x] = low;
                values[head * QUADS + quads.y] = high;
            }
        }
    }
    meet();
    if (INT8 && has_own) {
        store_int8(writes, own_line, thread);
    }

    vec4 q[HEADS * FOURS];
    vec4 o[HEADS * FOURS];
    float largest[HEADS];
    float sum[HEADS];
    [[unroll]] for (uint head = 0; head < HEADS; head++) {
        largest[head] = LOWEST;
        sum[head] = 0.0;
        [[unroll]] for (uint i = 0; i < FOURS; i++) {
            uint eight = i / 2 * LANES + lane;
            float counts = eight < EIGHTS ? LOG2_E : 0.0;
            q[head * FOURS + i] = values[head * QUADS + min(eight, EIGHTS - 1) * 2 + i % 2] * counts;
            o[head * FOURS + i] = vec4(0.0);
        }
    }
    if (has_own) {
        // The first cluster starts with the row's own position: its weight is 1, and its score the maximum so
        // far.
        [[unroll]] for (uint head = 0; head < HEADS; head++) {
            float score = 0.0;
            [[unroll]] for (uint i = 0; i < FOURS; i++) {
                uint quad = min(i / 2 * LANES + lane, EIGHTS - 1) * 2 + i % 2;
                score += dot(q[head * FOURS + i], values[KEY * QUADS + quad]);
            }
            score = cluster_sum(score);
            if (cluster == 0) {
                largest[head] = score;
                sum[head] = 1.0;
                [[unroll]] for (uint i = 0; i < FOURS; i++) {
                    uint quad = min(i / 2 * LANES + lane, EIGHTS - 1) * 2 + i % 2;
                    o[head * FOURS + i] = values[VALUE * QUADS + quad];
                }
            }
        }
    }

    for (; block < end; block++) {
        uvec4 key_words[LOADED];
        uvec4 value_words[LOADED];
        if (!AHEAD) {
            find_lines(block, cluster, kv_head, pages, first, last, lines);
        }
        [[unroll]] for (uint i = 0; i < LOADED; i++) {
            key_words[i] = AHEAD ? next_keys[i] : loaded(push.k, lines, i, lane);
            value_words[i] = AHEAD ? next_values[i] : loaded(push.v, lines, i, lane);
        }
        float scores[CLUSTER_SUMS];
        [[unroll]] for (uint i = 0; i < CLUSTER_SUMS; i++) {
            scores[i] = 0.0;
        }
        [[unroll]] for (uint i = 0; i < KEYS * FOURS; i++) {
            vec4 key = four(key_words[i * LOADS / 2], i, lane);
            [[unroll]] for (uint head = 0; head < HEADS; head++) {
                vec4 query = q[head * FOURS + i % FOURS];
                uint at = i / FOURS * HEADS + head;
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    scores[at] = fma(query[j], key[j], scores[at]);
                }
            }
        }
        bool more = AHEAD && block + 1 < end;
        if (more) {
            find_lines(block + 1, cluster, kv_head, pages, first, last, lines);
            [[unroll]] for (uint i = 0; i < LOADED; i++) {
                next_keys[i] = loaded(push.k, lines, i, lane);
            }
        }
        cluster_sums(scores);

        [[unroll]] for (uint head = 0; head < HEADS; head++) {
            float above = largest[head];
            [[unroll]] for (uint k = 0; k < KEYS; k++) {
                uint key = key_of(block, k, cluster);
                above = max(above, key >= first && key <= last ? scores[k * HEADS + head] : LOWEST);
            }
            float shrink = exp2(largest[head] - above);
            largest[head] = above;
            sum[head] *= shrink;
            [[unroll]] for (uint k = 0; k < KEYS; k++) {
                uint key = key_of(block, k, cluster);
                float weight = key >= first && key <= last ? exp2(scores[k * HEADS + head] - above) : 0.0;
                scores[k * HEADS + head] = weight;
                sum[head] += weight;
            }
            [[unroll]] for (uint i = 0; i < FOURS; i++) {
                o[head * FOURS + i] *= shrink;
            }
        }

        [[unroll]] for (uint i = 0; i < KEYS * FOURS; i++) {
            vec4 value = four(value_words[i * LOADS / 2], i, lane);
            [[unroll]] for (uint head = 0; head < HEADS; head++) {
                uint at = head * FOURS + i % FOURS;
                o[at] = fma(vec4(scores[i / FOURS * HEADS + head]), value, o[at]);
            }
        }
        if (more) {
            [[unroll]] for (uint i = 0; i < LOADED; i++) {
                next_values[i] = loaded(push.v, lines, i, lane);
            }
        }
    }

    // An unsplit row has its final sums: divide here.
    bool whole = SPLITS == 1 || used == 1;
    if (CLUSTERS > 1) {
        [[unroll]] for (uint head = 0; head < HEADS; head++) {
            float above = largest[head];
            float all = sum[head];
#if TIER >= 1
            // First among the clusters of a subgroup.
            for (uint far = LANES; far < gl_SubgroupSize; far *= 2) {
                above = max(above, subgroupShuffleXor(above, far));
            }
            all *= exp2(largest[head] - above);
            for (uint far = LANES; far < gl_SubgroupSize; far *= 2) {
                all += subgroupShuffleXor(all, far);
            }
            if (gl_SubgroupInvocationID == 0) {
                joined_sums[gl_SubgroupID * HEADS + head] = vec2(above, all);
            }
#else
            if (lane == 0) {
                joined_sums[cluster * HEADS + head] = vec2(above, all);
            }
#endif
        }
    }
    // From here on `values` are outputs: all threads have read the previous content.
    meet();
#if TIER >= 1
    uint partials = gl_NumSubgroups;
#else
    uint partials = CLUSTERS;
#endif
    [[unroll]] for (uint head = 0; head < HEADS; head++) {
        if (CLUSTERS > 1) {
            float above = LOWEST;
            for (uint part = 0; part < partials; part++) {
                above = max(above, joined_sums[part * HEADS + head].x);
            }
            float all = 0.0;
            for (uint part = 0; part < partials; part++) {
                vec2 found = joined_sums[part * HEADS + head];
                all += exp2(found.x - above) * found.y;
            }
            float shrink = exp2(largest[head] - above);
            largest[head] = above;
            sum[head] = all;
            [[unroll]] for (uint i = 0; i < FOURS; i++) {
                uint quad = (i / 2 * LANES + lane) * 2 + i % 2;
                vec4 own = o[head * FOURS + i] * shrink;
#if TIER >= 1
                for (uint far = LANES; far < gl_SubgroupSize; far *= 2) {
                    own += subgroupShuffleXor(own, far);
                }
                if (gl_SubgroupInvocationID < LANES) {
                    joined[gl_SubgroupID * OWN * LANES * 2 + quad] = own;
                }
#else
                joined[cluster * OWN * LANES * 2 + quad] = own;
#endif
            }
            meet();
            for (uint d = thread; d < HEAD_DIM; d += THREADS) {
                float value = 0.0;
                for (uint part = 0; part < partials; part++) {
                    value += joined[part * OWN * LANES * 2 + d / 4][d % 4];
                }
                values[head * QUADS + d / 4][d % 4] = whole ? value / all : value;
            }
            // The next head must not overwrite values that another thread is still summing.
            meet();
        } else {
            [[unroll]] for (uint i = 0; i < FOURS; i++) {
                uint quad = (i / 2 * LANES + lane) * 2 + i % 2;
                if (quad < QUADS) {
                    values[head * QUADS + quad] = whole ? o[head * FOURS + i] / sum[head] : o[head * FOURS + i];
                }
            }
        }
        if (thread == 0) {
            sums[head] = vec2(largest[head], sum[head]);
        }
    }
    meet();
    if (SPLITS > 1 && used > 1) {
        if (!arrive(thread, used)) {
            return;
        }
        join_splits(thread, used);
    }
    write_output(thread);
}
