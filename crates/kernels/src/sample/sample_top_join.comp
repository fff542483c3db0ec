#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// The most probable tokens, step 2, one workgroup per output row: the best of all blocks, with their log
// probabilities. Runs before any row of the step has its token, so that the number of finished rows gives the
// step of the run.
#include "common.glsl"
#include "logsum.glsl"
#include "sample.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;

#include "partial.glsl"

struct Top {
    uint token;
    float logprob;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Partials { Partial data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Tops { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer RunSoFar { uint finished; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer TopList { Top data[]; };

layout(push_constant, scalar) uniform Push {
    Floats logits;
    ParamsList params;
    Active active_rows;
    Partials partials;
    Tops tops;
    RunSoFar run;
    // [step of the run][active output row][MAX_TOP].
    TopList top;
    uint vocab;
    // Capacity of `top`, in rows.
    uint entries;
    uint blocks;
} push;

shared uint best_keys[MAX_TOP];
shared uint best_tokens[MAX_TOP];

bool ranks_before(uvec2 a, uvec2 b) {
    return a.x > b.x || a.x == b.x && a.y < b.y;
}

void main() {
    uint row = gl_WorkGroupID.x;
    uint rows = push.active_rows.rows;
    if (row >= rows) {
        return;
    }
    uint wanted = min(push.params.data[row].top, MAX_TOP);
    uint entry = push.run.finished % STOPPED_ROW / rows * rows + row;
    if (wanted == 0 || entry >= push.entries) {
        return;
    }
    uint thread = thread_index();
    for (uint i = thread; i < MAX_TOP; i += THREADS) {
        best_keys[i] = NO_KEY;
        best_tokens[i] = NO_TOKEN;
    }
    // In the same order as the step that computes the sampled token's probability, so that the two agree.
    Partial partial = no_tokens();
    for (uint i = thread; i < push.blocks; i += THREADS) {
        partial = join(partial, push.partials.data[row * push.blocks + i], 1.0);
    }
    LogSum raw = workgroup_join(partial, 1.0).raw;
    barrier();

    // The best of this thread's blocks; after each one taken, the next best.
    uvec2 own = uvec2(INVALID_KEY, 0);
    bool search = true;
    for (uint n = 0; n < wanted; n++) {
        if (search) {
            uvec2 taken = own;
            own = uvec2(NO_KEY, NO_TOKEN);
            for (uint block = thread; block < push.blocks; block += THREADS) {
                uint first = (row * push.blocks + block) * MAX_TOP;
                for (uint i = 0; i < wanted; i++) {
                    uvec2 candidate = push.tops.data[first + i];
                    // Each block's list is sorted: the first that was not taken is its best.
                    if (ranks_before(taken, candidate)) {
                        own = ranks_before(candidate, own) ? candidate : own;
                        break;
                    }
                }
            }
        }
        atomicMax(best_keys[n], own.x);
        barrier();
        if (own.x == best_keys[n] && own.x != NO_KEY) {
            atomicMin(best_tokens[n], own.y);
        }
        barrier();
        search = own.x != NO_KEY && best_tokens[n] == own.y;
    }
    for (uint n = thread; n < wanted; n += THREADS) {
        uint token = best_tokens[n];
        float logprob = uintBitsToFloat(0x7fc00000u);
        if (token != NO_TOKEN) {
            logprob = (push.logits.data[row * push.vocab + token] - raw.largest) - log(raw.sum);
        }
        push.top.data[entry * MAX_TOP + n] = Top(token, logprob);
    }
}
