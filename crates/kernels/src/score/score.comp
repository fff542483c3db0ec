#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// nll[row] = logsumexp(logits[row]) − logits[row][targets[row]], one workgroup per row.
//
// Each thread sums its own share, and the shares are combined in a tree: errors grow with the share, not with
// the vocabulary.
#include "common.glsl"
#include "logsum.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
// The vocabulary size is a multiple of 4, so that four logits are one load.
layout(constant_id = 1) const bool VEC4_LOADS = true;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Floats logits;
    Active active_rows;
    Words targets;
    Output nll;
    uint vocab;
} push;

const uint NO_TARGET = 0xffffffffu;

struct Partial {
    LogSum log_sum;
    uint invalid;
};

Partial combine(Partial a, Partial b) {
    return Partial(join_logits(a.log_sum, b.log_sum, 1.0), a.invalid | b.invalid);
}

#if TIER >= 1
shared Partial partials[THREADS / 4];
#else
shared Partial partials[THREADS];
#endif

vec4 load4(uint row, uint token) {
    uint at = row * push.vocab + token;
    if (VEC4_LOADS) {
        return Floats4(push.logits).data[at / 4];
    }
    vec4 logits = vec4(MINUS_INFINITY);
    for (uint i = 0; i < min(push.vocab - token, 4); i++) {
        logits[i] = push.logits.data[at + i];
    }
    return logits;
}

void main() {
    uint thread = thread_index();
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows) {
        return;
    }
    uint target = push.targets.data[row];
    if (target == NO_TARGET) {
        if (thread == 0) {
            push.nll.data[row] = 0.0;
        }
        return;
    }

    Partial partial = Partial(no_logits(), target < push.vocab ? 0 : 1);
    for (uint token = thread * 4; token < push.vocab; token += THREADS * 4) {
        vec4 logits = load4(row, token);
        [[unroll]] for (uint i = 0; i < 4; i++) {
            partial.invalid |= uint(is_invalid(logits[i]));
        }
        partial.log_sum = add_logits(partial.log_sum, logits, 1.0);
    }
#if TIER >= 1
    for (uint distance = 1; distance < gl_SubgroupSize; distance *= 2) {
        Partial other;
        other.log_sum.largest = subgroupShuffleXor(partial.log_sum.largest, distance);
        other.log_sum.sum = subgroupShuffleXor(partial.log_sum.sum, distance);
        other.invalid = subgroupShuffleXor(partial.invalid, distance);
        partial = combine(partial, other);
    }
    if (gl_SubgroupInvocationID == 0) {
        partials[gl_SubgroupID] = partial;
    }
    barrier();
    uint count = gl_NumSubgroups;
#else
    partials[thread] = partial;
    barrier();
    uint count = THREADS;
#endif
    for (uint remaining = count; remaining > 1;) {
        // Rounded up: the number of subgroups need not be a power of two.
        uint distance = (remaining + 1) / 2;
        if (thread < remaining - distance) {
            partials[thread] = combine(partials[thread], partials[thread + distance]);
        }
        barrier();
        remaining = distance;
    }
    if (thread == 0) {
        partial = partials[0];
        float nll = uintBitsToFloat(0x7fc00000u);
        if (partial.invalid == 0) {
            // The rounding error of the difference of two large numbers is recovered and added to the
            // logarithm, which is small.
            float logit = push.logits.data[row * push.vocab + target];
            precise float difference = partial.log_sum.largest - logit;
            precise float recovered = partial.log_sum.largest - difference;
            precise float rounding_error = recovered - logit;
            nll = difference + (log(partial.log_sum.sum) + rounding_error);
        }
        push.nll.data[row] = nll;
    }
}
