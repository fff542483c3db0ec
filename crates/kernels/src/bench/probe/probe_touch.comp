#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Increments a word, or does nothing at all, so that a chain of these measures the cost of dispatches and
// barriers. With COUNT a missing barrier shows up as a wrong count.
#include "common.glsl"

layout(local_size_x = 1) in;
layout(constant_id = 0) const bool COUNT = true;
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Counter { uint data[]; };
layout(push_constant, scalar) uniform Push {
    Counter counter;
} push;

void main() {
    if (COUNT) {
        push.counter.data[0] += 1;
    }
}
