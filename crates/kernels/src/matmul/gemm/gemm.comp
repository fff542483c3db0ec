#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Y = W · X for many columns in plain f32 arithmetic, without cooperative matrices.
//
// A workgroup computes 64 rows (4 strips) × 32 columns, a thread 4 × 4 of them. K passes through shared
// memory group by group: each thread loads 16 weights of one row, as in gemv, and dequantises them once for
// all columns. The next group is loaded into registers while this one is multiplied. Every output is one sum
// in the order of K, independent of the number of columns and of its own column.
#include "common.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint SCHEME = 0;
layout(constant_id = 1) const uint EPILOGUE = 0;
// Experts: a workgroup multiplies the columns of one group. As many pairs of a row and an expert share a column of x. 0
// where there are no experts.
layout(constant_id = 2) const uint PAIRS_PER_X = 0;

#include "weights.glsl"
#include "gated.glsl"
#include "experts.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Words4 values;
    Words scales;
    Floats4 x;
    Active active_rows;
    Output y;
    uint rows;
    uint k;
    uint columns;
    // Start of this block of the matrix in y, and the column stride of y.
    uint y_first;
    uint y_stride;
    // Per group its expert, and per column of a group its pair.
    Words group_experts;
    Words group_pairs;
} push;

const uint THREADS = 128;
const uint SLICE = 32;
const uint ROWS = 64;
const uint COLUMNS = 32;
const uint STRIPS = ROWS / STRIP;
// 16-byte loads per 16 weights; int4 uses half of one.
const uint LOADS = !IS_FLOAT ? 1 : SCHEME == F32 ? 4 : 2;
// One vec4 of padding: the rows of consecutive k start in different banks.
const uint W_STRIDE = ROWS / 4 + 1;
const uint X_STRIDE = COLUMNS / 4 + 1;

shared vec4 w_group[GROUP * W_STRIDE];
shared vec4 x_group[GROUP * X_STRIDE];

// The data that a thread loads per group: weights of its row and half, their scale and minimum, and values of
// two columns.
struct Loaded {
    // LOADS of them are used; a structure cannot have an array of that length.
    uvec4 words[4];
    float scale;
    float minimum;
    vec4 x[2];
};

float half_at(uint index) {
    return unpackHalf2x16(push.scales.data[index / 2])[index % 2];
}

// The columns of x that a thread loads.
uint x_columns[2];

// The pair of a column, or NO_EXPERT; without experts, the column.
uint pair_of(uint column) {
    return PAIRS_PER_X > 0 ? push.group_pairs.data[column] : column;
}

Loaded load_group(uint strip, uint row, uint half_index, uint group) {
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint quad = strip * quads + group / 4;
    Loaded loaded;
    loaded.scale = 1.0;
    loaded.minimum = 0.0;
    if (IS_FLOAT) {
        // Half a group is 32 bytes per row of 16-bit floats, one row of a tile, and two rows of two tiles of
        // f32.
        uint tile = quad * TILES + (group % 4 * 2 + half_index) * (LOADS / 2);
        [[unroll]] for (uint i = 0; i < LOADS; i++) {
            loaded.words[i] = push.values.data[((tile + i / 2) * STRIP + row) * 2 + i % 2];
        }
    } else {
        uint tile = quad * TILES + (IS_INT4 ? group % 4 / 2 : group % 4);
        loaded.words[0] = push.values.data[(tile * STRIP + row) * 2 + half_index];
        uint at = (quad * STRIP + row) * (HAS_MIN ? 8 : 4) + group % 4;
        vec2 both = scale_of(half_at(at), HAS_MIN ? half_at(at + 4) : 0.0);
        loaded.scale = both.x;
        loaded.minimum = both.y;
    }
    [[unroll]] for (uint i = 0; i < 2; i++) {
        uint item = gl_LocalInvocationIndex + i * THREADS;
        loaded.x[i] = push.x.data[(x_columns[i] * quads * QUAD + group * GROUP) / 4 + item % 8];
    }
    return loaded;
}

vec4 four_weights(Loaded loaded, uint i, uint group) {
    if (SCHEME == F32) {
        return uintBitsToFloat(loaded.words[i]);
    }
    if (IS_FLOAT) {
        uvec4 words = loaded.words[i / 2];
        uint word = i % 2 * 2;
        return vec4(halves_to_floats(words[word]), halves_to_floats(words[word + 1]));
    }
    uvec4 bytes = loaded.words[0];
    if (IS_INT4) {
        bytes = group % 2 == 0 ? low_nibbles(bytes) : high_nibbles(bytes);
    }
    return bytes_to_floats(bytes[i]) * loaded.scale + loaded.minimum;
}

void main() {
    uint columns = PAIRS_PER_X > 0 ? 0 : min(push.columns, push.active_rows.rows);
    uint first_column = gl_WorkGroupID.y * COLUMNS;
    uint expert = PAIRS_PER_X > 0 ? push.group_experts.data[gl_WorkGroupID.y] : 0;
    if (first_column >= columns && PAIRS_PER_X == 0 || expert == NO_EXPERT) {
        return;
    }
    [[unroll]] for (uint i = 0; i < 2; i++) {
        uint column = first_column + (gl_LocalInvocationIndex + i * THREADS) / 8;
        // Columns past the last repeat it, and unused ones the first, which is never unused; their results are discarded.
        x_columns[i] = min(column, push.columns - 1);
        if (PAIRS_PER_X > 0) {
            uint pair = pair_of(column);
            x_columns[i] = (pair == NO_EXPERT ? pair_of(first_column) : pair) / PAIRS_PER_X;
        }
    }
    uint thread = gl_LocalInvocationIndex;
    uint strip_of_tile = thread / SLICE;
    uint row = thread % SLICE / 2;
    uint half_index = thread % 2;
    // A thread has two neighbouring rows of a strip and the same two of the next: with an epilogue these are
    // gate and up. The four are adjacent in shared memory.
    uint slot = strip_of_tile / 2 * 32 + row / 2 * 4 + strip_of_tile % 2 * 2 + row % 2;
    uint four_rows = thread % 16;
    uint four_columns = thread / 16;
    uint groups = (push.k + GROUP - 1) / GROUP;
    uint strips = (push.rows + STRIP - 1) / STRIP;

    for (uint tile = gl_WorkGroupID.x; tile * STRIPS < strips; tile += gl_NumWorkGroups.x) {
        uint strip = expert * strips + min(tile * STRIPS + strip_of_tile, strips - 1);
        vec4 sums[4];
        [[unroll]] for (uint i = 0; i < 4; i++) {
            sums[i] = vec4(0.0);
        }
        Loaded loaded = load_group(strip, row, half_index, 0);
        for (uint group = 0; group < groups; group++) {
            barrier();
            [[unroll]] for (uint i = 0; i < 4; i++) {
                vec4 weights = four_weights(loaded, i, group);
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    uint k = half_index * 16 + i * 4 + j;
                    w_group[k * W_STRIDE + slot / 4][slot % 4] = weights[j];
                }
            }
            [[unroll]] for (uint i = 0; i < 2; i++) {
                uint item = thread + i * THREADS;
                uint column = item / 8;
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    x_group[(item % 8 * 4 + j) * X_STRIDE + column / 4][column % 4] = loaded.x[i][j];
                }
            }
            barrier();
            if (group + 1 < groups) {
                loaded = load_group(strip, row, half_index, group + 1);
            }
            // Unrolling by eight hides the latency of shared memory; unrolling all 32 only makes the code
            // long.
            [[dont_unroll]] for (uint first = 0; first < GROUP; first += 8) {
                [[unroll]] for (uint k = 0; k < 8; k++) {
                    vec4 weights = w_group[(first + k) * W_STRIDE + four_rows];
                    vec4 x = x_group[(first + k) * X_STRIDE + four_columns];
                    [[unroll]] for (uint i = 0; i < 4; i++) {
                        sums[i] = fma(weights, vec4(x[i]), sums[i]);
                    }
                }
            }
        }

        uint pair = tile * (STRIPS / 2) + four_rows / 8;
        uint first_row = four_rows % 8 * 2;
        [[unroll]] for (uint i = 0; i < 4; i++) {
            uint column = pair_of(first_column + four_columns * 4 + i);
            if (PAIRS_PER_X > 0 ? column == NO_EXPERT : column >= columns) {
                continue;
            }
            uint at = column * push.y_stride + push.y_first;
            [[unroll]] for (uint j = 0; j < 2; j++) {
                if (EPILOGUE != 0) {
                    if (pair * 2 < strips) {
                        push.y.data[at + pair * STRIP + first_row + j] = gated(sums[i][j], sums[i][j + 2]);
                    }
                    continue;
                }
                [[unroll]] for (uint s = 0; s < 2; s++) {
                    uint y_row = (pair * 2 + s) * STRIP + first_row + j;
                    if (y_row < push.rows) {
                        push.y.data[at + y_row] = sums[i][s * 2 + j];
                    }
                }
            }
        }
    }
}
