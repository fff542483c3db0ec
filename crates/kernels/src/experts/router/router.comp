#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Chooses experts for rows: scores = W · rmsnorm(x), softmax over all experts, and the experts with the largest weights.
//
// A workgroup computes the scores of EXPERT_TILE experts for ROWS rows; the last one to finish its rows chooses their
// experts. The norm's own weight is part of W, and its factor is common to a row: a score is one sum, scaled at the end.
// Every thread has its own part of K for all experts and rows of the tile, and loads it all at once: latency counts here,
// not bandwidth.
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
// Divide by the sum over the chosen experts instead of all.
layout(constant_id = 4) const bool RENORMALIZE = true;
// Multiply the weights of the chosen experts by factors of their own.
layout(constant_id = 5) const bool SCALED = false;
// Threads that add up their sums before these go through shared memory: no more than a subgroup has, 1 at T0.
layout(constant_id = 6) const uint THREADS_PER_PARTIAL = 1;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Scores { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counters { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Chosen { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Weights { float data[]; };

layout(push_constant, scalar) uniform Push {
    Floats4 x;
    Floats4 w;
    Active active_rows;
    Scores scores;
    // Per tile of rows, the number of workgroups that have stored their scores: zero between calls.
    Counters counters;
    Chosen chosen;
    Weights weights;
    uint k;
    uint rows;
    uint experts;
    uint per_token;
    float epsilon;
    // Per expert.
    Floats scales;
} push;

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

void write_choice(uint row, uint rank, uint expert, float weight) {
    push.chosen.data[row * push.per_token + rank] = expert;
    push.weights.data[row * push.per_token + rank] = SCALED ? weight * push.scales.data[expert] : weight;
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
            x[r] = push.x.data[min(first_row + r, push.rows - 1) * vec4s + i];
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
            float factor = inversesqrt(sums[ROWS * EXPERT_TILE + r] / float(push.k) + push.epsilon);
            push.scores.data[(first_row + r) * push.experts + expert] = sums[n] * factor;
        }
    }
}

#if TIER >= 1
// Keys per thread.
const uint KEYS = (MAX_EXPERTS + THREADS_PER_PARTIAL - 1) / THREADS_PER_PARTIAL;
const uint SUBGROUPS = PARTIALS;
shared uint experts_by_rank[SUBGROUPS * MAX_EXPERTS_PER_TOKEN];
shared float exponentials_by_rank[SUBGROUPS * MAX_EXPERTS_PER_TOKEN];

// A subgroup chooses the experts of a row, without waiting for others.
void choose(uint row) {
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
                // The chosen one is no longer among the keys.
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
        write_choice(row, rank, experts_by_rank[first + rank], exponentials_by_rank[first + rank] / sum);
    }
    // The subgroup's next row overwrites them.
    subgroupBarrier();
}
#else
shared uint keys[MAX_EXPERTS];
shared float exponentials[MAX_EXPERTS];
shared uint by_rank[MAX_EXPERTS_PER_TOKEN];

// The workgroup chooses the experts of a row. An expert's rank is the number of experts before it.
void choose(uint row, uint thread) {
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
        write_choice(row, thread, expert, exponentials[expert] / sum);
    }
    // The next row overwrites them.
    barrier();
}
#endif

void choose_none(uint row, uint rank) {
    push.chosen.data[row * push.per_token + rank] = NO_EXPERT;
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
    if (!last_to_arrive) {
        return;
    }
    memoryBarrierBuffer();
    uint end = min(first_row + ROWS, push.rows);
#if TIER >= 1
    for (uint row = first_row + gl_SubgroupID; row < end; row += gl_NumSubgroups) {
        if (row < active_rows) {
            choose(row);
        } else {
            for (uint rank = gl_SubgroupInvocationID; rank < push.per_token; rank += gl_SubgroupSize) {
                choose_none(row, rank);
            }
        }
    }
#else
    for (uint row = first_row; row < end; row++) {
        if (row < active_rows) {
            choose(row, thread);
        } else if (thread < push.per_token) {
            choose_none(row, thread);
        }
    }
#endif
}
