#version 460
#pragma tiers(T1)
#extension GL_GOOGLE_include_directive : require
// The norm of rows of the residual stream as int16, after adding a sublayer's output, with a factor per row: what the
// prologue of a product computes (gemv/prologue.glsl), for products of more rows than fit their shared memory. The same
// code gives the same bits. A workgroup takes a row.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
// As in gemv.comp.
layout(constant_id = 1) const uint SHARED_X_QUADS = 1;
layout(constant_id = 2) const uint PROLOGUE = 1;
layout(constant_id = 3) const uint SUBLAYER_PARTIALS = 1;
layout(constant_id = 4) const bool WIDE_SUBGROUPS = false;
layout(constant_id = 5) const bool RESIDUAL_SCALED = false;

const uint COLUMNS = 1;
const uint QUAD = 128;
#include "int16.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Stream { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    // Both planes of bytes, and the scales.
    Output4 y;
    Stream y_scales;
    // One per row.
    Output factors;
    Floats4 residual;
    Floats4 sublayer;
    Floats4 post_weight;
    Floats4 weight;
    Stream stream;
    // One float: the factor of the residual stream.
    Words experts;
    uint k;
    float epsilon;
    // Whether to write the updated residual stream.
    uint writes_stream;
    // Rows of y: the low bytes follow the high ones of all.
    uint rows;
} push;

shared uvec4 x_high[SHARED_X_QUADS * 8];
shared uvec4 x_low[SHARED_X_QUADS * 8];
shared vec4 x_factors[SHARED_X_QUADS * 2];

#define NORM_ONLY
#include "../gemv/prologue.glsl"

void main() {
    uint row = gl_WorkGroupID.x;
    float factors[COLUMNS];
    factors[0] = 1.0;
    norm_x(factors, row, true);
    uint thread = thread_index();
    // Not the padding: only its scales must be zero.
    for (uint i = thread; i < push.k / 16; i += THREADS) {
        push.y.data[row * SHARED_X_QUADS * 8 + i] = x_high[i];
        push.y.data[(push.rows + row) * SHARED_X_QUADS * 8 + i] = x_low[i];
    }
    for (uint i = thread; i < SHARED_X_QUADS * 2; i += THREADS) {
        push.y_scales.data[row * SHARED_X_QUADS * 2 + i] = x_factors[i];
    }
    if (thread == 0) {
        push.factors.data[row] = factors[0];
    }
}
