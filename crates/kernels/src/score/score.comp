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
layout(constant_id = 1) const bool WIDE = true;

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

struct Part {
    LogSum all;
    uint bad;
};

Part join(Part a, Part b) {
    return Part(join_logits(a.all, b.all, 1.0), a.bad | b.bad);
}

#if TIER >= 1
shared Part parts[THREADS / 4];
#else
shared Part parts[THREADS];
#endif

vec4 load4(uint row, uint token) {
    uint at = row * push.vocab + token;
    if (WIDE) {
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

    Part part = Part(no_logits(), target < push.vocab ? 0 : 1);
    for (uint token = thread * 4; token < push.vocab; token += THREADS * 4) {
        vec4 logits = load4(row, token);
        [[unroll]] for (uint i = 0; i < 4; i++) {
            part.bad |= uint(is_bad(logits[i]));
        }
        part.all = add_logits(part.all, logits, 1.0);
    }
#if TIER >= 1
    for (uint far = 1; far < gl_SubgroupSize; far *= 2) {
        Part other;
        other.all.largest = subgroupShuffleXor(part.all.largest, far);
        other.all.sum = subgroupShuffleXor(part.all.sum, far);
        other.bad = subgroupShuffleXor(part.bad, far);
        part = join(part, other);
    }
    if (gl_SubgroupInvocationID == 0) {
        parts[gl_SubgroupID] = part;
    }
    barrier();
    uint left = gl_NumSubgroups;
#else
    parts[thread] = part;
    barrier();
    uint left = THREADS;
#endif
    for (uint half_way = left; half_way > 1;) {
        // Rounded up: the number of subgroups need not be a power of two.
        uint far = (half_way + 1) / 2;
        if (thread < half_way - far) {
            parts[thread] = join(parts[thread], parts[thread + far]);
        }
        barrier();
        half_way = far;
    }
    if (thread == 0) {
        part = parts[0];
        float nll = uintBitsToFloat(0x7fc00000u);
        if (part.bad == 0) {
            // The rounding error of the difference of two large numbers is recovered and added to the
            // logarithm, which is small.
            float logit = push.logits.data[row * push.vocab + target];
            precise float difference = part.all.largest - logit;
            precise float taken = part.all.largest - difference;
            precise float lost = taken - logit;
            nll = difference + (log(part.all.sum) + lost);
        }
        push.nll.data[row] = nll;
    }
}
