#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Reads a buffer once, at full memory bandwidth. Outputs the XOR of all words, so that nothing can be skipped
// and the result does not depend on the order.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 512;
layout(constant_id = 1) const uint IN_FLIGHT = 4;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { uint data[]; };
layout(push_constant, scalar) uniform Push {
    Words4 source;
    // One word per workgroup.
    Output result;
    // Number of 16-byte words.
    uint count;
} push;

shared uint partials[THREADS];

void main() {
    uint thread = gl_LocalInvocationIndex;
    uint stride = gl_NumWorkGroups.x * THREADS;
    uvec4 all = uvec4(0);
    uint at = gl_GlobalInvocationID.x;
    for (; at + (IN_FLIGHT - 1) * stride < push.count; at += IN_FLIGHT * stride) {
        uvec4 words[IN_FLIGHT];
        [[unroll]] for (uint i = 0; i < IN_FLIGHT; i++) {
            words[i] = push.source.data[at + i * stride];
        }
        [[unroll]] for (uint i = 0; i < IN_FLIGHT; i++) {
            all ^= words[i];
        }
    }
    for (; at < push.count; at += stride) {
        all ^= push.source.data[at];
    }
    partials[thread] = all.x ^ all.y ^ all.z ^ all.w;
    // Tree reduction: one thread combining all words would add microseconds to every measured read.
    for (uint remaining = THREADS; remaining > 1;) {
        uint kept = (remaining + 1) / 2;
        barrier();
        if (thread + kept < remaining) {
            partials[thread] ^= partials[thread + kept];
        }
        remaining = kept;
    }
    if (thread == 0) {
        push.result.data[gl_WorkGroupID.x] = partials[0];
    }
}
