#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Step 4 of sampling, one workgroup per output row: applies top-k, top-p and min-p to the candidates exactly,
// and samples.
//
// Each filter is a threshold, found by radix selection over 8-bit digits from the highest down: a histogram
// gives the digit of the k-th token, or of the token at which the probabilities reach p. Probabilities are
// summed as integers, so that the sum does not depend on the order.
#include "common.glsl"
#include "logsum.glsl"
#include "sample.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const bool COUNTS = false;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer States { State data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Candidates { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats logits;
    ParamsList params;
    Active active_rows;
    Words rows;
    Words positions;
    Words slots;
    Counts counts;
    States states;
    Candidates candidates;
    SampledList sampled;
    Next next_tokens;
    Next next_positions;
    Words stop_tokens;
    Run run;
    uint vocab;
    // Capacity of `sampled`.
    uint entries;
} push;

#include "finish.glsl"

// 64-bit integers, low word first.
uvec2 add64(uvec2 a, uvec2 b) {
    uint carry;
    uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

uvec2 subtract64(uvec2 a, uvec2 b) {
    uint borrow;
    uint low = usubBorrow(a.x, b.x, borrow);
    return uvec2(low, a.y - b.y - borrow);
}

bool less64(uvec2 a, uvec2 b) {
    return a.y < b.y || a.y == b.y && a.x < b.x;
}

// A probability as an integer: 2⁴⁰ is 1. The loss over 262144 tokens is less than a float's rounding.
uvec2 fixed64(float mass) {
    float high = floor(mass * 256.0);
    return uvec2(uint((mass * 256.0 - high) * 4294967296.0), uint(high));
}

// The fraction p < 1 of a mass.
uvec2 fraction64(uvec2 mass, float p) {
    uint of_2_32 = uint(p * 4294967296.0);
    uint high, low, carry_in, dropped;
    umulExtended(mass.y, of_2_32, high, low);
    umulExtended(mass.x, of_2_32, carry_in, dropped);
    return add64(uvec2(low, high), uvec2(carry_in, 0));
}

// The criterion of a selection.
const uint KEYS_BY_COUNT = 0;
const uint TOKENS_BY_COUNT = 1;
const uint KEYS_BY_MASS = 2;

const uint DIGITS = 256;
const uint DIGITS_PER_GROUP = 16;
// Candidates that a thread loads before it uses any: with many candidates, the latency of loads dominates.
const uint IN_FLIGHT = 4;

shared uint low[DIGITS];
shared uint high[DIGITS];
shared uvec2 group_weights[DIGITS / DIGITS_PER_GROUP];
shared uint found_digit;
shared uvec2 found_left;
shared uvec2 found_weight;
shared uint best_key;
shared uint best_token;

// The current row.
Params params;
State state;
uint first;
float scale;
float largest;
// What top-k leaves: larger keys, and at the cut tokens up to this one.
uint cut_key;
uint cut_token;

bool passes_top_k(uvec2 candidate) {
    return candidate.x > cut_key || candidate.x == cut_key && candidate.y <= cut_token;
}

float mass_of(uint key) {
    return exp((value_of(key) - largest) * scale);
}

void count_digit(uvec2 candidate, uint criterion, uint prefix, uint shift) {
    uint ordered = criterion == TOKENS_BY_COUNT ? ~candidate.y : candidate.x;
    bool counts = criterion == KEYS_BY_COUNT
        || (criterion == TOKENS_BY_COUNT ? candidate.x == cut_key : passes_top_k(candidate));
    if (!counts || (ordered ^ prefix) >> shift > 0xff) {
        return;
    }
    uint digit = ordered >> shift & 0xff;
    uvec2 weight = criterion == KEYS_BY_MASS ? fixed64(mass_of(candidate.x)) : uvec2(1, 0);
    uint before = atomicAdd(low[digit], weight.x);
    uint carry_in = weight.y + uint(before + weight.x < before);
    if (carry_in > 0) {
        atomicAdd(high[digit], carry_in);
    }
}

// Fills the histogram of the digit at `shift` over the candidates that match `prefix` above it.
void count_digits(uint criterion, uint prefix, uint shift) {
    for (uint i = gl_LocalInvocationIndex; i < DIGITS; i += THREADS) {
        low[i] = 0;
        high[i] = 0;
    }
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < state.candidates; i += THREADS * IN_FLIGHT) {
        uvec2 loaded[IN_FLIGHT];
        [[unroll]] for (uint j = 0; j < IN_FLIGHT; j++) {
            loaded[j] = push.candidates.data[first + min(i + j * THREADS, state.candidates - 1)];
        }
        [[unroll]] for (uint j = 0; j < IN_FLIGHT; j++) {
            if (i + j * THREADS < state.candidates) {
                count_digit(loaded[j], criterion, prefix, shift);
            }
        }
    }
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < DIGITS / DIGITS_PER_GROUP; i += THREADS) {
        uvec2 sum = uvec2(0);
        for (uint j = 0; j < DIGITS_PER_GROUP; j++) {
            sum = add64(sum, uvec2(low[i * DIGITS_PER_GROUP + j], high[i * DIGITS_PER_GROUP + j]));
        }
        group_weights[i] = sum;
    }
    barrier();
}

// Finds the digit at which the weights, from the highest digit down, reach `wanted`.
void find_digit(uvec2 wanted) {
    for (uint i = gl_LocalInvocationIndex; i < DIGITS; i += THREADS) {
        uvec2 above = uvec2(0);
        for (uint j = i / DIGITS_PER_GROUP + 1; j < DIGITS / DIGITS_PER_GROUP; j++) {
            above = add64(above, group_weights[j]);
        }
        for (uint j = i + 1; j < (i / DIGITS_PER_GROUP + 1) * DIGITS_PER_GROUP; j++) {
            above = add64(above, uvec2(low[j], high[j]));
        }
        uvec2 own = uvec2(low[i], high[i]);
        if (less64(above, wanted) && !less64(add64(above, own), wanted)) {
            found_digit = i;
            found_left = subtract64(wanted, above);
            found_weight = own;
        }
    }
    barrier();
}

// The largest value such that the weights from it upwards reach `wanted` (by mass: the fraction `p` of all).
// All values are between `bottom` and `top`. found_left is how much of the value's own weight, found_weight,
// is needed.
uint threshold(uint criterion, uint top, uint bottom, uvec2 wanted, float p) {
    // Above the highest bit in which values differ there is nothing to search.
    uint shift = uint(max(findMSB(top ^ bottom), 0)) / 8 * 8;
    uint prefix = shift == 24 ? 0 : top >> shift >> 8 << 8 << shift;
    bool first_digit = true;
    for (;;) {
        count_digits(criterion, prefix, shift);
        if (first_digit && criterion == KEYS_BY_MASS) {
            uvec2 all = uvec2(0);
            for (uint i = 0; i < DIGITS / DIGITS_PER_GROUP; i++) {
                all = add64(all, group_weights[i]);
            }
            // Without top-k the fraction is of the whole vocabulary's mass, most of which the candidates hold.
            wanted = fraction64(has_top_k(params, push.vocab) ? all : fixed64(state.mass), p);
            wanted = less64(all, wanted) ? all : wanted;
            wanted = less64(uvec2(0), wanted) ? wanted : uvec2(1, 0);
        }
        first_digit = false;
        find_digit(wanted);
        prefix |= found_digit << shift;
        wanted = found_left;
        if (shift == 0) {
            return prefix;
        }
        shift -= 8;
    }
}

void main() {
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows || push.states.data[row].filtered == 0) {
        return;
    }
    state = push.states.data[row];
    params = push.params.data[row];
    first = row * push.vocab;
    scale = 1.0 / params.temperature;
    largest = value_of(state.max_key);
    cut_key = 0;
    cut_token = NO_TOKEN;
    if (has_top_k(params, push.vocab) && state.candidates > params.top_k) {
        cut_key = threshold(KEYS_BY_COUNT, state.max_key, state.bound, uvec2(params.top_k, 0), 0.0);
        // Ties go to the lowest tokens, so that exactly k are kept.
        uvec2 needed = found_left;
        uvec2 equal = found_weight;
        barrier();
        if (less64(needed, equal)) {
            cut_token = ~threshold(TOKENS_BY_COUNT, NO_TOKEN, ~(push.vocab - 1), needed, 0.0);
        }
    }
    uint lowest = max(state.min_p_key, cut_key);
    if (params.top_p < 1.0) {
        lowest = max(lowest, threshold(KEYS_BY_MASS, state.max_key, state.bound, uvec2(0), params.top_p));
    }

    if (gl_LocalInvocationIndex == 0) {
        best_key = NO_KEY;
        best_token = NO_TOKEN;
    }
    barrier();
    uint position = push.positions.data[push.rows.data[row]];
    uint own_key = NO_KEY;
    uint own_token = NO_TOKEN;
    for (uint i = gl_LocalInvocationIndex; i < state.candidates; i += THREADS) {
        uvec2 candidate = push.candidates.data[first + i];
        if (candidate.x < lowest || !passes_top_k(candidate)) {
            continue;
        }
        float score = (value_of(candidate.x) - largest) * scale + noise(params, position, candidate.y);
        uint key = key_of(score);
        if (key > own_key || key == own_key && candidate.y < own_token) {
            own_key = key;
            own_token = candidate.y;
        }
    }
    atomicMax(best_key, own_key);
    barrier();
    if (own_key == best_key) {
        atomicMin(best_token, own_token);
    }
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        finish(row, best_token, state.raw);
    }
}
