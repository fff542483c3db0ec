#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Average pooling of squares of rows, then RMSNorm. One workgroup per output row, which stays in its registers:
//   mean = sum of a square of side × side input rows · factor
//   mean = (mean - bias) · scale                                              if STANDARDISE
//   y = mean / sqrt(mean square + epsilon) · weight                           weight only if WEIGHT
#include "common.glsl"
#include "f16.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
layout(constant_id = 1) const uint VEC4S_PER_THREAD = 1;
// As Activations (vectors.rs): f32 or f16.
layout(constant_id = 2) const uint OUTPUT = 0;
layout(constant_id = 3) const bool STANDARDISE = false;
layout(constant_id = 4) const bool WEIGHT = false;

#include "reduce.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Squares { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    // x_rows rows of n values at a stride of x_stride.
    Floats4 x;
    // Per output row: the first input row of its square, and the columns of the grid that the square is in.
    Squares squares;
    Floats4 bias;
    Floats4 scale;
    Floats4 weight;
    // f32 or f16.
    Output4 y;
    // Active output rows.
    Active active_rows;
    uint n;
    uint x_rows;
    uint x_stride;
    uint y_stride;
    uint side;
    // Divided by the rows of a square.
    float factor;
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
    uvec2 square = push.squares.data[row];
    uint first = square.x;
    uint columns = square.y;

    vec4 value[VEC4S_PER_THREAD];
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        value[j] = vec4(0.0);
    }
    bool within = true;
    for (uint dy = 0; dy < push.side; dy++) {
        for (uint dx = 0; dx < push.side; dx++) {
            uint x_row = first + dy * columns + dx;
            within = within && x_row < push.x_rows;
            uint from = min(x_row, push.x_rows - 1) * (push.x_stride / 4);
            [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
                // Past the end, the last vec4 is loaded again and not used: this needs no branch.
                value[j] += push.x.data[from + min(thread + j * THREADS, vec4s - 1)];
            }
        }
    }
    // A square that is not within x is a mistake of the host: NaN shows it, and nothing else was read.
    float factor = within ? push.factor : uintBitsToFloat(0x7fc00000u);
    float squares = 0.0;
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        value[j] *= factor;
        if (STANDARDISE) {
            uint i = min(thread + j * THREADS, vec4s - 1);
            value[j] = (value[j] - push.bias.data[i]) * push.scale.data[i];
        }
        squares += thread + j * THREADS < vec4s ? dot(value[j], value[j]) : 0.0;
    }
    float scale = inversesqrt(workgroup_sum(squares) / float(push.n) + push.epsilon);

    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        uint i = thread + j * THREADS;
        if (i < vec4s) {
            vec4 normed = value[j] * scale;
            if (WEIGHT) {
                normed *= push.weight.data[i];
            }
            uint at = row * (push.y_stride / 4) + i;
            if (F16) {
                Words2(push.y).data[at] = f16_activations(normed);
            } else {
                push.y.data[at] = normed;
            }
        }
    }
}
