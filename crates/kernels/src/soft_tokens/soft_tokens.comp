#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// residual[row] = soft[index] where tokens[row] is a soft token; other rows are left unchanged.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Active active_rows;
    Words tokens;
    Floats soft;
    Output residual;
    // Columns.
    uint hidden;
    uint soft_rows;
} push;

// As SOFT_TOKEN in mod.rs.
const uint SOFT_TOKEN = 0x80000000u;

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= push.active_rows.rows) {
        return;
    }
    uint token = push.tokens.data[row];
    uint index = token & ~SOFT_TOKEN;
    if ((token & SOFT_TOKEN) == 0 || index >= push.soft_rows) {
        return;
    }
    uint stride = gl_NumWorkGroups.x * THREADS;
    for (uint k = gl_GlobalInvocationID.x; k < push.hidden; k += stride) {
        push.residual.data[row * push.hidden + k] = push.soft.data[index * push.hidden + k];
    }
}
