#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// The most probable tokens, step 1, one workgroup per block and output row: the block's most probable tokens,
// best first, by the unedited logits. Rows that request none read nothing.
#include "common.glsl"
#include "logsum.glsl"
#include "sample.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;

layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Tops { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats logits;
    ParamsList params;
    Active active_rows;
    // [output row][block][MAX_TOP]: key and token.
    Tops tops;
    uint vocab;
} push;

shared uint keys[BLOCK];
shared uint best_keys[MAX_TOP];
shared uint best_tokens[MAX_TOP];

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= push.active_rows.rows) {
        return;
    }
    uint wanted = min(push.params.data[row].top, MAX_TOP);
    if (wanted == 0) {
        return;
    }
    uint thread = gl_LocalInvocationIndex;
    uint first = gl_WorkGroupID.x * BLOCK;
    for (uint i = thread; i < MAX_TOP; i += THREADS) {
        best_keys[i] = NO_KEY;
        best_tokens[i] = NO_TOKEN;
    }
    // Each thread owns every THREADS-th token: no barrier needed.
    for (uint i = thread; i < BLOCK; i += THREADS) {
        uint key = first + i < push.vocab ? key_of(push.logits.data[row * push.vocab + first + i]) : NO_KEY;
        keys[i] = key > KEY_OF_MINUS_INFINITY ? key : NO_KEY;
    }
    uint own_key = NO_KEY;
    uint own = 0;
    bool search = true;
    barrier();
    for (uint n = 0; n < wanted; n++) {
        if (search) {
            own_key = NO_KEY;
            for (uint i = thread; i < BLOCK; i += THREADS) {
                // Tokens ascend: ties go to the first.
                if (keys[i] > own_key) {
                    own_key = keys[i];
                    own = i;
                }
            }
        }
        atomicMax(best_keys[n], own_key);
        barrier();
        if (own_key == best_keys[n] && own_key != NO_KEY) {
            atomicMin(best_tokens[n], first + own);
        }
        barrier();
        search = best_tokens[n] == first + own && own_key != NO_KEY;
        if (search) {
            keys[own] = NO_KEY;
        }
    }
    uint at = (row * gl_NumWorkGroups.x + gl_WorkGroupID.x) * MAX_TOP;
    for (uint n = thread; n < wanted; n += THREADS) {
        push.tops.data[at + n] = uvec2(best_keys[n], best_tokens[n]);
    }
}
