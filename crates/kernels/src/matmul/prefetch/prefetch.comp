#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Reads a stretch of memory, so that it is in the device's cache when the next kernel begins: while a norm or attention keep a few
// compute units busy, the others and the memory have nothing to do.
//
// Leaves a checksum for each workgroup: else no driver would read anything.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
// 16 bytes each, of a thread.
layout(constant_id = 1) const uint LOADS = 4;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Words { uint data[]; };

layout(push_constant, scalar) uniform Push {
    Words4 data;
    Words checksums;
    // Workgroups that read what lies together, and how far that is from the next such stretch, in 16 bytes.
    uint groups_per_range;
    uint stride;
} push;

shared uint sum;

void main() {
    if (gl_LocalInvocationIndex == 0) {
        sum = 0;
    }
    barrier();
    uint group = gl_WorkGroupID.x;
    uint first = group / push.groups_per_range * push.stride + group % push.groups_per_range * THREADS * LOADS + gl_LocalInvocationIndex;
    uvec4 all = uvec4(0);
    [[unroll]] for (uint i = 0; i < LOADS; i++) {
        all ^= push.data.data[first + i * THREADS];
    }
    atomicXor(sum, all.x ^ all.y ^ all.z ^ all.w);
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        push.checksums.data[group] = sum;
    }
}
