#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Sorts pairs by expert into groups of WIDTH columns, all of one expert. One workgroup.
//
// Which column of its expert's groups a pair gets depends on the order in which threads arrive. No product depends on
// it: every column is a sum of its own.
#include "common.glsl"
#include "experts.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint WIDTH = 16;
layout(constant_id = 2) const uint MAX_EXPERTS = 512;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { uint data[]; };

layout(push_constant, scalar) uniform Push {
    // The expert of each pair.
    Words chosen;
    Output group_experts;
    Output group_pairs;
    uint pairs;
    uint experts;
    uint groups;
} push;

shared uint counts[MAX_EXPERTS];
shared uint first_groups[MAX_EXPERTS];
shared uint used_groups;

uint groups_of(uint count) {
    return (count + WIDTH - 1) / WIDTH;
}

void main() {
    uint thread = gl_LocalInvocationIndex;
    for (uint e = thread; e < push.experts; e += THREADS) {
        counts[e] = 0;
    }
    barrier();
    for (uint pair = thread; pair < push.pairs; pair += THREADS) {
        uint expert = push.chosen.data[pair];
        if (expert != NO_EXPERT) {
            atomicAdd(counts[expert], 1);
        }
    }
    barrier();
    for (uint e = thread; e < push.experts; e += THREADS) {
        uint first = 0;
        for (uint other = 0; other < e; other++) {
            first += groups_of(counts[other]);
        }
        first_groups[e] = first;
        uint own = groups_of(counts[e]);
        for (uint group = first; group < first + own; group++) {
            push.group_experts.data[group] = e;
        }
        for (uint column = counts[e]; column < own * WIDTH; column++) {
            push.group_pairs.data[first * WIDTH + column] = NO_EXPERT;
        }
        if (e == push.experts - 1) {
            used_groups = first + own;
        }
    }
    barrier();
    for (uint group = used_groups + thread; group < push.groups; group += THREADS) {
        push.group_experts.data[group] = NO_EXPERT;
    }
    for (uint e = thread; e < push.experts; e += THREADS) {
        counts[e] = 0;
    }
    barrier();
    for (uint pair = thread; pair < push.pairs; pair += THREADS) {
        uint expert = push.chosen.data[pair];
        if (expert != NO_EXPERT) {
            uint column = atomicAdd(counts[expert], 1);
            push.group_pairs.data[first_groups[expert] * WIDTH + column] = pair;
        }
    }
}
