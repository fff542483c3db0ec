#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Step 1 of sampling, one workgroup per block of 2048 tokens and output row: the only pass over all logits.
// Computes the block's log-sum-exp and its best token: by logit, or, without filters, by logit / temperature
// plus noise.
#include "common.glsl"
#include "logsum.glsl"
#include "sample.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
// The vocabulary size is a multiple of 4, so that four logits are one load.
layout(constant_id = 1) const bool VEC4_LOADS = true;
layout(constant_id = 2) const bool COUNTS = false;
layout(constant_id = 3) const bool BIASES = false;
layout(constant_id = 4) const bool MASK = false;

#include "partial.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Partials { Partial data[]; };

layout(push_constant, scalar) uniform Push {
    Floats logits;
    ParamsList params;
    Active active_rows;
    Words rows;
    Words positions;
    Words slots;
    Words counts;
    Biases biases;
    Words mask;
    // [output row][block].
    Partials partials;
    uint vocab;
} push;

#include "edit.glsl"

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= push.active_rows.rows) {
        return;
    }
    Params params = push.params.data[row];
    uint mode = mode_of(params, push.vocab);
    uint step_row = push.rows.data[row];
    uint position = mode == DRAW ? push.positions.data[step_row] : 0;
    uint slot = COUNTS ? push.slots.data[step_row] : 0;
    float scale = mode == GREEDY ? 1.0 : 1.0 / params.temperature;
    bool needs_mass = mode == FILTER && params.top_p < 1.0;
    uint first = gl_WorkGroupID.x * BLOCK;
    load_biases(params, row, first);

    Partial partial = no_tokens();
    uint end = min(first + BLOCK, push.vocab);
    for (uint token = first + thread_index() * 4; token < end; token += THREADS * 4) {
        vec4 raw = load4(row, token);
        partial.raw = add_logits(partial.raw, raw, 1.0);
        vec4 logits = edit4(params, row, slot, token, raw);
        if (needs_mass) {
            partial.scaled = add_logits(partial.scaled, logits, scale);
        }
        vec4 scores = logits;
        if (mode == DRAW) {
            scores = logits * scale + noise4(params, position, token / 4);
        }
        [[unroll]] for (uint i = 0; i < 4; i++) {
            uint key = key_of(logits[i]) > KEY_OF_MINUS_INFINITY ? key_of(scores[i]) : NO_KEY;
            key = is_invalid(raw[i]) || is_invalid(logits[i]) ? INVALID_KEY : key;
            // Tokens ascend: ties go to the first.
            if (key > partial.key) {
                partial.key = key;
                partial.token = token + i;
            }
        }
    }
    partial = workgroup_join(partial, scale);
    if (thread_index() == 0) {
        push.partials.data[row * gl_NumWorkGroups.x + gl_WorkGroupID.x] = partial;
    }
}
