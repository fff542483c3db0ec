#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Marks the tokens of a prompt in their sequences' counts, or reverts generated tokens; one thread per row.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
layout(constant_id = 1) const bool REVERT = false;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Counts { uint data[]; };

layout(push_constant, scalar) uniform Push {
    Active active_rows;
    Words tokens;
    Words slots;
    // [slot][vocab].
    Counts counts;
    uint rows;
    uint vocab;
} push;

const uint IN_PROMPT = 0x80000000u;

void main() {
    uint row = gl_GlobalInvocationID.x;
    if (row >= min(push.active_rows.rows, push.rows)) {
        return;
    }
    uint token = push.tokens.data[row];
    // Soft tokens of an image may be past the vocabulary.
    if (token >= push.vocab) {
        return;
    }
    uint at = push.slots.data[row] * push.vocab + token;
    if (REVERT) {
        atomicAdd(push.counts.data[at], 0xffffffffu);
    } else {
        // A generated token, which is fed back as the next step's input, needs no mark; without one it can be
        // reverted.
        atomicCompSwap(push.counts.data[at], 0, IN_PROMPT);
    }
}
