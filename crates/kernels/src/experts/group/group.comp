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
    Words selected;
    Output group_experts;
    Output group_pairs;
    uint pairs;
    uint experts;
    uint groups;
} push;

shared uint counts[MAX_EXPERTS];
// The next column of an expert for pairs that are not the first of a thread.
shared uint next_columns[MAX_EXPERTS];
// Prefix sums of the experts' numbers of groups, twice: one is written while the other is read.
shared uint ends[2 * MAX_EXPERTS];

uint groups_of(uint expert) {
    return (counts[expert] + WIDTH - 1) / WIDTH;
}

void main() {
    uint thread = gl_LocalInvocationIndex;
    // The first pair of a thread stays in registers: up to THREADS pairs are read once.
    uint own_expert = thread < push.pairs ? push.selected.data[thread] : NO_EXPERT;
    uint own_column = 0;
    for (uint e = thread; e < push.experts; e += THREADS) {
        counts[e] = 0;
    }
    barrier();
    if (own_expert != NO_EXPERT) {
        own_column = atomicAdd(counts[own_expert], 1);
    }
    barrier();
    if (push.pairs > THREADS) {
        for (uint e = thread; e < push.experts; e += THREADS) {
            next_columns[e] = counts[e];
        }
        barrier();
        for (uint pair = thread + THREADS; pair < push.pairs; pair += THREADS) {
            uint expert = push.selected.data[pair];
            if (expert != NO_EXPERT) {
                atomicAdd(counts[expert], 1);
            }
        }
        barrier();
    }
    for (uint e = thread; e < push.experts; e += THREADS) {
        ends[e] = groups_of(e);
    }
    barrier();
    uint from = 0;
    for (uint stride = 1; stride < push.experts; stride *= 2) {
        uint to = MAX_EXPERTS - from;
        for (uint e = thread; e < push.experts; e += THREADS) {
            ends[to + e] = ends[from + e] + (e >= stride ? ends[from + e - stride] : 0);
        }
        barrier();
        from = to;
    }
    for (uint e = thread; e < push.experts; e += THREADS) {
        uint end = ends[from + e];
        uint first = end - groups_of(e);
        for (uint group = first; group < end; group++) {
            push.group_experts.data[group] = e;
        }
        for (uint column = first * WIDTH + counts[e]; column < end * WIDTH; column++) {
            push.group_pairs.data[column] = NO_EXPERT;
        }
    }
    for (uint group = ends[from + push.experts - 1] + thread; group < push.groups; group += THREADS) {
        push.group_experts.data[group] = NO_EXPERT;
    }
    if (own_expert != NO_EXPERT) {
        uint first = ends[from + own_expert] - groups_of(own_expert);
        push.group_pairs.data[first * WIDTH + own_column] = thread;
    }
    for (uint pair = thread + THREADS; pair < push.pairs; pair += THREADS) {
        uint expert = push.selected.data[pair];
        if (expert != NO_EXPERT) {
            uint first = ends[from + expert] - groups_of(expert);
            push.group_pairs.data[first * WIDTH + atomicAdd(next_columns[expert], 1)] = pair;
        }
    }
}
