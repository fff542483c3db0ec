#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// gelu(gate) · up or silu(gate) · up, value by value, for gate and up that two products made apart.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint EPILOGUE = 1;

#include "gated.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Floats gate;
    Floats up;
    Output y;
    Active active_rows;
    uint n;
    uint y_stride;
} push;

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= push.active_rows.rows) {
        return;
    }
    for (uint i = gl_GlobalInvocationID.x; i < push.n; i += gl_NumWorkGroups.x * THREADS) {
        push.y.data[row * push.y_stride + i] = gated(push.gate.data[row * push.n + i], push.up.data[row * push.n + i]);
    }
}
