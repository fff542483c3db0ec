#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Chooses experts for rows: scores = W · rmsnorm(x), softmax over all experts, and the experts with the largest weights.
//
// A workgroup computes the scores of EXPERT_TILE experts for ROWS rows; the last one to finish its rows chooses their
// experts. The norm's own weight is part of W, and its factor is common to a row: a score is one sum, scaled at the end.
//
// An expert's rank is the number of experts before it, those with larger scores and those with equal ones and smaller
// index, so that ranks are a permutation whatever the scores: a NaN counts as the largest, and makes weights NaN.
#include "common.glsl"
#include "experts.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint EXPERT_TILE = 4;
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint MAX_EXPERTS = 512;
// Divide by the sum over the chosen experts instead of all.
layout(constant_id = 4) const bool RENORMALIZE = true;
// Multiply the weights of the chosen experts by factors of their own.
layout(constant_id = 5) const bool SCALED = false;

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

// Threads per expert.
const uint LANES = THREADS / EXPERT_TILE;

shared float partials[ROWS * THREADS];
shared float squares[ROWS * LANES];
shared bool last_to_arrive;
// Scores as integers that order like them, then their exponentials.
shared uint keys[MAX_EXPERTS];
shared float exponentials[MAX_EXPERTS];
shared uint by_rank[MAX_EXPERTS_PER_TOKEN];

// NaN above all.
uint key_of(float score) {
    uint bits = floatBitsToUint(score);
    return isnan(score) ? 0xffffffffu : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float score_of(uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

void compute_scores(uint first_row, uint thread) {
    uint lane = thread % LANES;
    uint expert = gl_WorkGroupID.x * EXPERT_TILE + thread / LANES;
    uint vec4s = push.k / 4;
    float sums[ROWS];
    float own_squares[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        sums[r] = 0.0;
        own_squares[r] = 0.0;
    }
    // Experts and rows past the end repeat the last; their scores are discarded.
    uint w_first = min(expert, push.experts - 1) * vec4s;
    for (uint i = lane; i < vec4s; i += LANES) {
        vec4 w = push.w.data[w_first + i];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            vec4 x = push.x.data[min(first_row + r, push.rows - 1) * vec4s + i];
            sums[r] += dot(w, x);
            own_squares[r] += dot(x, x);
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        partials[r * THREADS + thread] = sums[r];
        if (thread < LANES) {
            squares[r * LANES + thread] = own_squares[r];
        }
    }
    barrier();
    for (uint n = thread; n < ROWS * EXPERT_TILE; n += THREADS) {
        uint r = n / EXPERT_TILE;
        uint e = n % EXPERT_TILE;
        float sum = 0.0;
        float square = 0.0;
        for (uint i = 0; i < LANES; i++) {
            sum += partials[r * THREADS + e * LANES + i];
            square += squares[r * LANES + i];
        }
        uint row = first_row + r;
        expert = gl_WorkGroupID.x * EXPERT_TILE + e;
        if (row < push.rows && expert < push.experts) {
            push.scores.data[row * push.experts + expert] = sum * inversesqrt(square / float(push.k) + push.epsilon);
        }
    }
}

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
        exponentials[e] = key == 0xffffffffu ? uintBitsToFloat(0x7fc00000u) : exp(score_of(key) - score_of(largest));
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
        push.chosen.data[row * push.per_token + thread] = expert;
        float weight = exponentials[expert] / sum;
        push.weights.data[row * push.per_token + thread] = SCALED ? weight * push.scales.data[expert] : weight;
    }
    // The next row overwrites them.
    barrier();
}

void main() {
    uint thread = gl_LocalInvocationIndex;
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
    for (uint row = first_row; row < min(first_row + ROWS, push.rows); row++) {
        if (row < active_rows) {
            choose(row, thread);
        } else if (thread < push.per_token) {
            push.chosen.data[row * push.per_token + thread] = NO_EXPERT;
            push.weights.data[row * push.per_token + thread] = 0.0;
        }
    }
}
