#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Reads memory ranges, so that they are in the device's cache when the next kernel starts: while a norm or
// attention keeps a few compute units busy, the others and the memory are idle.
//
// Writes a checksum per workgroup; otherwise drivers would eliminate the loads.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
// 16-byte loads per thread.
layout(constant_id = 1) const uint LOADS = 4;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Words { uint data[]; };

layout(push_constant, scalar) uniform Push {
    Words4 data;
    Words checksums;
    // Workgroups per range, and the stride of the ranges in units of 16 bytes.
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
