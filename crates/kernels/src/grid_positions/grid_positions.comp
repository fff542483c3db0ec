#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// residual[row] = column_table[x] + row_table[y], where (x, y) is the position of the row in its image's grid.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Positions { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };

layout(push_constant, scalar) uniform Push {
    // [position][n].
    Floats4 column_table;
    Floats4 row_table;
    // x and y of each row.
    Positions positions;
    Output4 residual;
    Active active_rows;
    uint n;
    // Positions in each table.
    uint columns;
    uint rows;
} push;

void main() {
    // Rows are along x: along y and z there may be no more than 65,535 workgroups.
    uint row = gl_WorkGroupID.x;
    uint vec4s = push.n / 4;
    uint i = gl_WorkGroupID.y * THREADS + gl_LocalInvocationIndex;
    if (row >= push.active_rows.rows || i >= vec4s) {
        return;
    }
    // A position past the end is a mistake of the host: other memory must not be read.
    uvec2 at = min(push.positions.data[row], uvec2(push.columns, push.rows) - 1);
    push.residual.data[row * vec4s + i] =
        push.column_table.data[at.x * vec4s + i] + push.row_table.data[at.y * vec4s + i];
}
