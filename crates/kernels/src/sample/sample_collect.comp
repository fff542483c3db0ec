#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Step 3 of sampling, one workgroup per block and output row: appends tokens at or above the row's bound to
// its candidate list, in any order. Blocks without candidates, which are most, read no logits.
#include "common.glsl"
#include "logsum.glsl"
#include "sample.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const bool VEC4_LOADS = true;
layout(constant_id = 2) const bool COUNTS = false;
layout(constant_id = 3) const bool BIASES = false;
layout(constant_id = 4) const bool MASK = false;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Partials { Partial data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer States { State data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Candidates { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats logits;
    ParamsList params;
    Active active_rows;
    Words rows;
    Words slots;
    Words counts;
    Biases biases;
    Words mask;
    Partials partials;
    States states;
    // [output row][vocab]: key and token.
    Candidates candidates;
    uint vocab;
} push;

#include "edit.glsl"

shared uint found;
shared uint start;

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= push.active_rows.rows || push.states.data[row].filtered == 0) {
        return;
    }
    uint bound = push.states.data[row].bound;
    if (push.partials.data[row * gl_NumWorkGroups.x + gl_WorkGroupID.x].key < bound) {
        return;
    }
    uint thread = gl_LocalInvocationIndex;
    Params params = push.params.data[row];
    uint slot = COUNTS ? push.slots.data[push.rows.data[row]] : 0;
    uint first = gl_WorkGroupID.x * BLOCK;
    uint end = min(first + BLOCK, push.vocab);
    if (thread == 0) {
        found = 0;
    }
    load_biases(params, row, first);
    barrier();

    // One pass to count, so that the list grows once per block, and one to write.
    uint own = 0;
    for (uint token = first + thread * 4; token < end; token += THREADS * 4) {
        vec4 logits = edit4(params, row, slot, token, load4(row, token));
        [[unroll]] for (uint i = 0; i < 4; i++) {
            own += uint(key_of(logits[i]) >= bound);
        }
    }
    uint at = own > 0 ? atomicAdd(found, own) : 0;
    barrier();
    if (thread == 0) {
        start = atomicAdd(push.states.data[row].candidates, found);
    }
    barrier();
    at += row * push.vocab + start;
    for (uint token = first + thread * 4; token < end && own > 0; token += THREADS * 4) {
        vec4 logits = edit4(params, row, slot, token, load4(row, token));
        [[unroll]] for (uint i = 0; i < 4; i++) {
            uint key = key_of(logits[i]);
            if (key >= bound) {
                push.candidates.data[at] = uvec2(key, token + i);
                at++;
                own--;
            }
        }
    }
}
