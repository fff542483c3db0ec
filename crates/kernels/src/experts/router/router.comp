#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Selects experts for rows: scores = W · rmsnorm(x), softmax over all experts, and the experts with the largest weights.
//
// A workgroup computes the scores of EXPERT_TILE experts for ROWS rows; the last one to finish its rows selects their
// experts. The norm's own weight is part of W, and its factor is common to a row: a score is one sum, scaled at the end.
// Every thread has its own part of K for all experts and rows of the tile, and loads it all at once: latency counts here,
// not bandwidth.
//
// It may be x + block that is routed, where a block's output is yet to be added to the residual stream: some workgroups
// also write the stream, not in place, since others still read it, and its norm.
//
// Experts are ordered by score, those with equal ones by index, so that the order is a permutation whatever the scores: a
// NaN counts as the largest, and makes weights NaN.
#include "common.glsl"
#include "experts.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint EXPERT_TILE = 4;
layout(constant_id = 2) const uint ROWS = 1;
// Upper bound of the number of experts.
layout(constant_id = 3) const uint MAX_EXPERTS = 512;
// Divide by the sum over the selected experts instead of all.
layout(constant_id = 4) const bool RENORMALIZE = true;
// Multiply the weights of the selected experts by factors of their own.
layout(constant_id = 5) const bool SCALED = false;
// Threads that add up their sums before these go through shared memory: no more than a subgroup has, 1 at T0.
layout(constant_id = 6) const uint THREADS_PER_PARTIAL = 1;
// Split-K partial sums of the block to add, consecutive within a row; 0 where there is none. From T1 on.
layout(constant_id = 7) const uint BLOCK_PARTIALS = 0;
// Format of the norm of the sum, as Activations (vectors.rs): f32, int16 or f16.
layout(constant_id = 8) const uint OUTPUT = 0;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Scores { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counters { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Selected { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Weights { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Words { uint data[]; };

layout(push_constant, scalar) uniform Push {
    Floats4 x;
    Floats4 w;
    Active active_rows;
    Scores scores;
    // Per tile of rows, the number of workgroups that have stored their scores: zero between calls.
    Counters counters;
    Selected selected;
    Weights weights;
    uint k;
    uint rows;
    uint experts;
    uint per_token;
    float epsilon;
    // Words of the plane of high bytes of y, after which the low bytes start.
    uint plane_words;
    // Per expert.
    Floats scales;
    Floats4 block;
    // x + block.
    Output4 stream;
    Floats4 norm_weight;
    // The norm of x + block: f32, f16, or bytes of int16.
    Output4 y;
    Weights y_scales;
} push;

#include "int16.glsl"
#include "f16.glsl"

const uint QUAD = 128;
const bool INT16 = OUTPUT == 2;
const bool F16 = OUTPUT == 3;

// Sums of a workgroup: the products, then the squares.
const uint SUMS = ROWS * EXPERT_TILE + ROWS;
const uint PARTIALS = (THREADS + THREADS_PER_PARTIAL - 1) / THREADS_PER_PARTIAL;

shared float partials[SUMS * PARTIALS];
shared float sums[SUMS];
shared bool last_to_arrive;

// NaN above all, and nothing is 0.
uint key_of(float score) {
    uint bits = floatBitsToUint(score);
    return isnan(score) ? 0xffffffffu : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float score_of(uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// e^(score − largest), NaN for NaN.
float exponential(uint key, uint largest) {
    return key == 0xffffffffu ? uintBitsToFloat(0x7fc00000u) : exp(score_of(key) - score_of(largest));
}

void write_selection(uint row, uint rank, uint expert, float weight) {
    push.selected.data[row * push.per_token + rank] = expert;
    push.weights.data[row * push.per_token + rank] = SCALED ? weight * push.scales.data[expert] : weight;
}

vec4 x_at(uint row, uint i) {
    uint vec4s = push.k / 4;
    vec4 x = push.x.data[row * vec4s + i];
    if (BLOCK_PARTIALS > 0) {
        vec4 block = vec4(0.0);
        [[unroll]] for (uint partial = 0; partial < BLOCK_PARTIALS; partial++) {
            block += push.block.data[(row * BLOCK_PARTIALS + partial) * vec4s + i];
        }
        x += block;
    }
    return x;
}

float inverse_rms(uint r) {
    return inversesqrt(sums[ROWS * EXPERT_TILE + r] / float(push.k) + push.epsilon);
}

void compute_scores(uint first_row, uint thread) {
    uint vec4s = push.k / 4;
    uint first_expert = gl_WorkGroupID.x * EXPERT_TILE;
    float own[SUMS];
    [[unroll]] for (uint n = 0; n < SUMS; n++) {
        own[n] = 0.0;
    }
    for (uint i = thread; i < vec4s; i += THREADS) {
        vec4 w[EXPERT_TILE];
        vec4 x[ROWS];
        // Experts and rows past the end repeat the last; their scores are discarded.
        [[unroll]] for (uint e = 0; e < EXPERT_TILE; e++) {
            w[e] = push.w.data[min(first_expert + e, push.experts - 1) * vec4s + i];
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            x[r] = x_at(min(first_row + r, push.rows - 1), i);
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            [[unroll]] for (uint e = 0; e < EXPERT_TILE; e++) {
                own[r * EXPERT_TILE + e] += dot(w[e], x[r]);
            }
            own[ROWS * EXPERT_TILE + r] += dot(x[r], x[r]);
        }
    }
    [[unroll]] for (uint n = 0; n < SUMS; n++) {
#if TIER >= 1
        float sum = subgroupAdd(own[n]);
        if (gl_SubgroupInvocationID == 0) {
            partials[n * PARTIALS + gl_SubgroupID] = sum;
        }
#else
        partials[n * PARTIALS + thread] = own[n];
#endif
    }
    barrier();
#if TIER >= 1
    uint count = gl_NumSubgroups;
#else
    uint count = THREADS;
#endif
    for (uint n = thread; n < SUMS; n += THREADS) {
        float sum = 0.0;
        for (uint i = 0; i < count; i++) {
            sum += partials[n * PARTIALS + i];
        }
        sums[n] = sum;
    }
    barrier();
    for (uint n = thread; n < ROWS * EXPERT_TILE; n += THREADS) {
        uint r = n / EXPERT_TILE;
        uint expert = first_expert + n % EXPERT_TILE;
        if (first_row + r < push.rows && expert < push.experts) {
            push.scores.data[(first_row + r) * push.experts + expert] = sums[n] * inverse_rms(r);
        }
    }
}

#if TIER >= 1
// Keys per thread.
const uint KEYS = (MAX_EXPERTS + THREADS_PER_PARTIAL - 1) / THREADS_PER_PARTIAL;
const uint SUBGROUPS = PARTIALS;
shared uint experts_by_rank[SUBGROUPS * MAX_EXPERTS_PER_TOKEN];
shared float exponentials_by_rank[SUBGROUPS * MAX_EXPERTS_PER_TOKEN];

// A subgroup selects the experts of a row, without waiting for others.
void select(uint row) {
    uint lane = gl_SubgroupInvocationID;
    uint keys[KEYS];
    [[unroll]] for (uint j = 0; j < KEYS; j++) {
        uint expert = j * gl_SubgroupSize + lane;
        keys[j] = expert < push.experts ? key_of(push.scores.data[row * push.experts + expert]) : 0;
    }
    uint first = gl_SubgroupID * MAX_EXPERTS_PER_TOKEN;
    uint largest = 0;
    float sum = 0.0;
    for (uint rank = 0; rank < push.per_token; rank++) {
        uint own_key = 0;
        uint own_expert = NO_EXPERT;
        [[unroll]] for (uint j = 0; j < KEYS; j++) {
            if (keys[j] > own_key) {
                own_key = keys[j];
                own_expert = j * gl_SubgroupSize + lane;
            }
        }
        uint key = subgroupMax(own_key);
        uint expert = subgroupMin(own_key == key ? own_expert : NO_EXPERT);
        [[unroll]] for (uint j = 0; j < KEYS; j++) {
            if (j * gl_SubgroupSize + lane == expert) {
                keys[j] = 0;
            }
        }
        if (rank == 0) {
            largest = key;
            if (!RENORMALIZE) {
                // The selected one is no longer among the keys.
                [[unroll]] for (uint j = 0; j < KEYS; j++) {
                    sum += keys[j] == 0 ? 0.0 : exponential(keys[j], largest);
                }
                sum = subgroupAdd(sum) + exponential(key, largest);
            }
        }
        float value = exponential(key, largest);
        if (RENORMALIZE) {
            sum += value;
        }
        if (lane == 0) {
            experts_by_rank[first + rank] = expert;
            exponentials_by_rank[first + rank] = value;
        }
    }
    subgroupBarrier();
    for (uint rank = lane; rank < push.per_token; rank += gl_SubgroupSize) {
        write_selection(row, rank, experts_by_rank[first + rank], exponentials_by_rank[first + rank] / sum);
    }
    // The subgroup's next row overwrites them.
    subgroupBarrier();
}
#else
shared uint keys[MAX_EXPERTS];
shared float exponentials[MAX_EXPERTS];
shared uint by_rank[MAX_EXPERTS_PER_TOKEN];

// The workgroup selects the experts of a row. An expert's rank is the number of experts before it.
void select(uint row, uint thread) {
    for (uint e = thread; e < push.experts; e += THREADS) {
        keys[e] = key_of(push.scores.data[row * push.experts + e]);
    }
    barrier();
    for (uint e = thread; e < push.experts; e += THREADS) {
        uint key = keys[e];
        uint rank = 0;
        uint largest = 0;
        for (uint other = 0; other < push.experts; other++) {
            uint other_key = keys[other];
            rank += uint(other_key > key || other_key == key && other < e);
            largest = max(largest, other_key);
        }
        if (rank < push.per_token) {
            by_rank[rank] = e;
        }
        exponentials[e] = exponential(key, largest);
    }
    barrier();
    if (thread < push.per_token) {
        float sum = 0.0;
        if (RENORMALIZE) {
            for (uint i = 0; i < push.per_token; i++) {
                sum += exponentials[by_rank[i]];
            }
        } else {
            for (uint e = 0; e < push.experts; e++) {
                sum += exponentials[e];
            }
        }
        uint expert = by_rank[thread];
        write_selection(row, thread, expert, exponentials[expert] / sum);
    }
    // The next row overwrites them.
    barrier();
}
#endif

#if TIER >= 1
// Writes x + block and its norm for a row of the tile.
void write_row(uint row, float factor, uint thread) {
    uint vec4s = push.k / 4;
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint y_first = row * quads * (QUAD / 4);
    // Whole subgroups, because of the shuffles.
    for (uint first = 0; first < vec4s; first += THREADS) {
        uint i = first + thread;
        bool in_row = i < vec4s;
        vec4 x = x_at(row, min(i, vec4s - 1));
        vec4 normed = x * factor * push.norm_weight.data[min(i, vec4s - 1)];
        if (in_row) {
            push.stream.data[row * vec4s + i] = x;
        }
        if (INT16) {
            uint largest = largest_magnitude(normed);
            largest = max(largest, subgroupShuffleXor(largest, 1));
            largest = max(largest, subgroupShuffleXor(largest, 2));
            ivec4 q = int16_of(normed, int16_factor(largest));
            if (in_row) {
                Words bytes = Words(push.y);
                bytes.data[y_first + i] = high_bytes(q);
                bytes.data[push.plane_words + y_first + i] = low_bytes(q);
                if (i % 4 == 0) {
                    push.y_scales.data[row * quads * INT16_SCALES + int16_scale_at(i / 4)] = int16_scale(largest);
                }
            }
        } else if (F16 && in_row) {
            Words2(push.y).data[y_first + i] = f16_activations(normed);
        } else if (in_row) {
            push.y.data[y_first + i] = normed;
        }
    }
    if (INT16) {
        // The scales of the padding are zero, so that its bytes add nothing. They are fewer than the threads.
        uint i = push.k / 16 + thread;
        if (i < quads * INT16_SCALES) {
            push.y_scales.data[row * quads * INT16_SCALES + int16_scale_at(i)] = 0.0;
        }
    }
}
#endif

void select_none(uint row, uint rank) {
    push.selected.data[row * push.per_token + rank] = NO_EXPERT;
    push.weights.data[row * push.per_token + rank] = 0.0;
}

void main() {
    uint thread = thread_index();
    uint first_row = gl_WorkGroupID.y * ROWS;
    uint active_rows = min(push.active_rows.rows, push.rows);
    if (first_row < active_rows) {
        compute_scores(first_row, thread);
    }
    memoryBarrierBuffer();
    barrier();
    if (thread == 0) {
        last_to_arrive = atomicAdd(push.counters.data[gl_WorkGroupID.y], 1) == gl_NumWorkGroups.x - 1;
        if (last_to_arrive) {
            push.counters.data[gl_WorkGroupID.y] = 0;
        }
    }
    barrier();
#if TIER >= 1
    // After the arrival: whoever selects need not wait for it.
    if (BLOCK_PARTIALS > 0) {
        for (uint r = gl_WorkGroupID.x; r < ROWS; r += gl_NumWorkGroups.x) {
            if (first_row + r < active_rows) {
                write_row(first_row + r, inverse_rms(r), thread);
            }
        }
    }
#endif
    if (!last_to_arrive) {
        return;
    }
    memoryBarrierBuffer();
    uint end = min(first_row + ROWS, push.rows);
#if TIER >= 1
    for (uint row = first_row + gl_SubgroupID; row < end; row += gl_NumSubgroups) {
        if (row < active_rows) {
            select(row);
        } else {
            for (uint rank = gl_SubgroupInvocationID; rank < push.per_token; rank += gl_SubgroupSize) {
                select_none(row, rank);
            }
        }
    }
#else
    for (uint row = first_row; row < end; row++) {
        if (row < active_rows) {
            select(row, thread);
        } else if (thread < push.per_token) {
            select_none(row, thread);
        }
    }
#endif
}
