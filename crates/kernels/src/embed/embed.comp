#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// residual[row] = factor · the embedding of tokens[row], from any scheme of the tiled layout (see `Layout` in
// crate tensor).
//
// One thread takes four neighbouring columns: they are in one word of int8, in the same nibbles of one word
// of int4, in two words of 16-bit floats or in four of f32. Rows whose token is not in this block of the
// matrix are left unchanged.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
// As in `Scheme` (crate tensor).
layout(constant_id = 1) const uint SCHEME = 0;

const uint INT8 = 0;
const uint INT4 = 1;
const uint INT8_MIN = 2;
const uint INT4_MIN = 3;
const uint F16 = 4;
const uint BF16 = 5;
const uint F32 = 6;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Words values;
    Words scales;
    Active active_rows;
    Words tokens;
    Output residual;
    // Columns.
    uint hidden;
    // First row of this block in the matrix, and its number of rows.
    uint block_first_row;
    uint block_rows;
    float factor;
    // The token whose embedding soft tokens get; past the end of the matrix if they are left unchanged.
    uint soft_token;
} push;

const uint STRIP = 16;
const uint GROUP = 32;
const uint QUAD = 128;
const bool NIBBLES = SCHEME == INT4 || SCHEME == INT4_MIN;
const bool HAS_MIN = SCHEME == INT8_MIN || SCHEME == INT4_MIN;
const bool INTEGERS = SCHEME <= INT4_MIN;
// Columns that share a row of a tile, 32 bytes.
const uint COLUMNS = NIBBLES ? 64 : INTEGERS ? 32 : SCHEME == F32 ? 8 : 16;

// The value of an f16. Not unpackHalf2x16: devices may flush subnormals, which the scales of small groups
// are.
float half_value(uint bits) {
    uint magnitude = bits & 0x7fff;
    float normal = uintBitsToFloat((magnitude << 13) + (112u << 23));
    float value = magnitude < 0x400 ? float(magnitude) * (1.0 / 16777216.0) : normal;
    return (bits & 0x8000) == 0 ? value : -value;
}

float half_at(uint index) {
    return half_value(push.scales.data[index / 2] >> index % 2 * 16 & 0xffff);
}

// Columns k to k + 3 of a row of the block.
vec4 embedding(uint row, uint k) {
    uint quad = row / STRIP * ((push.hidden + QUAD - 1) / QUAD) + k / QUAD;
    uint tile = quad * (QUAD / COLUMNS) + k % QUAD / COLUMNS;
    uint word = (tile * STRIP + row % STRIP) * 8;
    if (SCHEME == F32) {
        word += k % COLUMNS;
        return uintBitsToFloat(
            uvec4(push.values.data[word], push.values.data[word + 1], push.values.data[word + 2], push.values.data[word + 3]));
    }
    if (!INTEGERS) {
        word += k % COLUMNS / 2;
        uint low = push.values.data[word];
        uint high = push.values.data[word + 1];
        if (SCHEME == BF16) {
            return uintBitsToFloat(uvec4(low << 16, low & 0xffff0000u, high << 16, high & 0xffff0000u));
        }
        return vec4(half_value(low & 0xffff), half_value(low >> 16), half_value(high & 0xffff), half_value(high >> 16));
    }
    uint bytes = push.values.data[word + k % GROUP / 4];
    uint scale = (quad * STRIP + row % STRIP) * (HAS_MIN ? 8 : 4) + k % QUAD / GROUP;
    if (NIBBLES) {
        // Shifted to the high half of a byte a nibble is 16 · q.
        bytes = (k / GROUP % 2 == 0 ? bytes << 4 : bytes) & 0xf0f0f0f0u;
    }
    vec4 values = bytes_to_floats(bytes) * (NIBBLES ? 0.0625 : 1.0);
    if (SCHEME == INT4_MIN) {
        values += 8.0;
    }
    // The product of an f16 and a byte is exact in f32: fusing it with the sum makes no difference.
    values *= half_at(scale);
    return HAS_MIN ? values + half_at(scale + 4) : values;
}

void main() {
    uint row = gl_WorkGroupID.y;
    uint k = gl_GlobalInvocationID.x * 4;
    if (row >= push.active_rows.rows || k >= push.hidden) {
        return;
    }
    uint token = push.tokens.data[row];
    // As SOFT_TOKEN (soft_tokens/mod.rs).
    uint block_row = (token >> 31 == 1 ? push.soft_token : token) - push.block_first_row;
    if (block_row >= push.block_rows) {
        return;
    }
    vec4 values = embedding(block_row, k) * push.factor;
    for (uint i = 0; i < min(push.hidden - k, 4); i++) {
        push.residual.data[row * push.hidden + k + i] = values[i];
    }
}
