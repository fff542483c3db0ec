#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Average pooling of a grid of rows, then RMSNorm: an output row is the mean of side × side neighbouring input rows,
// divided by its root mean square, times weight. One workgroup per output row, which stays in its registers.
#include "common.glsl"
#include "f16.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
layout(constant_id = 1) const uint VEC4S_PER_THREAD = 1;
// As Activations (vectors.rs): f32 or f16.
layout(constant_id = 2) const uint OUTPUT = 0;

#include "reduce.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    // [image][y][x], rows of n values at a stride of x_stride.
    Floats4 x;
    Floats4 weight;
    // f32 or f16.
    Output4 y;
    // Active output rows.
    Active active_rows;
    uint n;
    uint x_stride;
    uint y_stride;
    // The grid of an image, and the side of a square of it that becomes one output row.
    uint columns;
    uint rows;
    uint side;
    float epsilon;
} push;

const bool F16 = OUTPUT == 3;

void main() {
    uint thread = thread_index();
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows) {
        return;
    }
    uint vec4s = push.n / 4;
    uint out_columns = push.columns / push.side;
    uint out_rows = push.rows / push.side;
    // Rows of squares, over all images.
    uint squares_y = row / out_columns;
    uint image = squares_y / out_rows;
    uint y = squares_y % out_rows * push.side;
    uint x = row % out_columns * push.side;
    uint first = (image * push.rows + y) * push.columns + x;

    vec4 value[VEC4S_PER_THREAD];
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        value[j] = vec4(0.0);
    }
    for (uint dy = 0; dy < push.side; dy++) {
        for (uint dx = 0; dx < push.side; dx++) {
            uint from = (first + dy * push.columns + dx) * (push.x_stride / 4);
            [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
                // Past the end, the last vec4 is loaded again and not used: this needs no branch.
                value[j] += push.x.data[from + min(thread + j * THREADS, vec4s - 1)];
            }
        }
    }
    float area = float(push.side * push.side);
    float squares = 0.0;
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        value[j] /= area;
        squares += thread + j * THREADS < vec4s ? dot(value[j], value[j]) : 0.0;
    }
    float scale = inversesqrt(workgroup_sum(squares) / float(push.n) + push.epsilon);

    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        uint i = thread + j * THREADS;
        if (i < vec4s) {
            vec4 normed = value[j] * scale * push.weight.data[i];
            uint at = row * (push.y_stride / 4) + i;
            if (F16) {
                Words2(push.y).data[at] = f16_activations(normed);
            } else {
                push.y.data[at] = normed;
            }
        }
    }
}
