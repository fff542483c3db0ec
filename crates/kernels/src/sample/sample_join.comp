#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Step 2 of sampling, one workgroup per output row: combines the blocks. A row without filters gets its token
// here. For the others it computes the lowest logit worth collecting: a lower bound means more work, but
// never another result.
#include "common.glsl"
#include "logsum.glsl"
#include "sample.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const bool COUNTS = false;
// Steps 3 and 4 follow.
layout(constant_id = 2) const bool FILTERS = false;

#include "partial.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Partials { Partial data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer States { State data[]; };

layout(push_constant, scalar) uniform Push {
    Floats logits;
    ParamsList params;
    Active active_rows;
    Words rows;
    Words positions;
    Words slots;
    Counts counts;
    Partials partials;
    States states;
    SampledList sampled;
    Next next_tokens;
    Next next_positions;
    Words stop_tokens;
    Run run;
    uint vocab;
    // Capacity of `sampled`.
    uint entries;
    uint blocks;
} push;

#include "finish.glsl"

// Blocks whose best tokens are ranked against each other: the work grows with their square.
const uint MAX_RANKED = 256;
// Should two steps round a logit differently after all, the bound is this many floats lower than necessary.
const uint MARGIN = 16;

shared uint best[MAX_RANKED];
shared uint ranked;

// The k-th largest of the blocks' best logits: at least k logits are as large.
uint bound_of_top_k(uint row, uint k) {
    uint thread = thread_index();
    for (uint i = thread; i < push.blocks; i += THREADS) {
        best[i] = push.partials.data[row * push.blocks + i].key;
    }
    barrier();
    for (uint i = thread; i < push.blocks; i += THREADS) {
        uint above = 0;
        for (uint j = 0; j < push.blocks; j++) {
            above += uint(best[j] > best[i] || best[j] == best[i] && j < i);
        }
        if (above == k - 1) {
            ranked = best[i];
        }
    }
    barrier();
    return ranked - min(ranked, MARGIN);
}

State filter_state(Params params, uint row, Partial partial) {
    float largest = value_of(partial.key);
    bool top_k = has_top_k(params, push.vocab);
    bool top_p = params.top_p < 1.0;
    // Minus infinity has no probability: it is never a candidate.
    uint bound = KEY_OF_MINUS_INFINITY + 1;
    uint min_p_key = bound;
    if (params.min_p > 0.0) {
        float lowest = largest + params.temperature * min(log(params.min_p), 0.0);
        min_p_key = params.min_p < 1.0 ? max(bound, key_of(lowest)) : partial.key;
    }
    if (top_k && params.top_k <= push.blocks && push.blocks <= MAX_RANKED) {
        bound = max(bound, bound_of_top_k(row, params.top_k));
    }
    // If every token below the bound had the bound's probability, they would still hold only half of what
    // top-p drops. Closer to 1 the error of the sum itself would matter.
    float dropped_mass = 1.0 - params.top_p;
    if (top_p && !top_k && dropped_mass > 1e-5) {
        float bound_mass = 0.5 * dropped_mass * partial.scaled.sum / float(push.vocab);
        bound = max(bound, min(partial.key, key_of(largest + params.temperature * log(bound_mass))));
    }
    // With top-p, tokens that min-p drops count in the sum first.
    if (!top_p) {
        bound = max(bound, min_p_key);
    }
    return State(1, partial.key, bound, min_p_key, partial.scaled.sum, partial.raw, 0);
}

void main() {
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows) {
        return;
    }
    Params params = push.params.data[row];
    uint mode = mode_of(params, push.vocab);
    float scale = mode == GREEDY ? 1.0 : 1.0 / params.temperature;
    Partial partial = no_tokens();
    for (uint i = thread_index(); i < push.blocks; i += THREADS) {
        partial = join(partial, push.partials.data[row * push.blocks + i], scale);
    }
    partial = workgroup_join(partial, scale);

    bool no_token = partial.key == NO_KEY || partial.key == INVALID_KEY;
    bool filters = mode == FILTER && !no_token;
    State state = State(0, 0, 0, 0, 0.0, partial.raw, 0);
    if (FILTERS && filters) {
        state = filter_state(params, row, partial);
    }
    if (thread_index() == 0) {
        if (FILTERS) {
            push.states.data[row] = state;
        }
        if (!FILTERS || !filters) {
            finish(row, no_token || filters ? NO_TOKEN : partial.token, partial.raw);
        }
    }
}
