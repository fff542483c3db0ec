#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Fills a buffer with random words that depend only on the seed and their index.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
// 0: any bits. 1: two f16 between 2⁻⁸ and 2⁻⁷, as scales. 2: an f32 between −1 and 1. 3: as 1, of either sign.
layout(constant_id = 1) const uint DISTRIBUTION = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Words { uint data[]; };
layout(push_constant, scalar) uniform Push {
    Words words;
    uint count;
    uint seed;
} push;

// A full-avalanche mix of 32 bits (xor-shift and odd multipliers).
uint mix32(uint x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < push.count; i += gl_NumWorkGroups.x * THREADS) {
        uint bits = mix32(i ^ mix32(push.seed));
        if (DISTRIBUTION == 1) {
            bits = (bits & 0x03ff03ffu) | 0x1c001c00u;
        } else if (DISTRIBUTION == 3) {
            bits = (bits & 0x83ff83ffu) | 0x1c001c00u;
        } else if (DISTRIBUTION == 2) {
            // 24 bits, centred: every value is exact in f32.
            bits = floatBitsToUint(float(int(bits >> 8) - (1 << 23)) * (1.0 / float(1 << 23)));
        }
        push.words.data[i] = bits;
    }
}
