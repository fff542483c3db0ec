#version 460
#pragma tiers(T1)
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
// Y = W · X for drivers that run shaders on the CPU, where a subgroup of 8 or 16 threads is one vector.
//
// There every load is a gather, lane by lane, whatever the addresses; barriers and shared memory cost more
// than they save; arithmetic is nearly free. So the workgroup is one subgroup, and each lane has its own
// rows: a word of weights is one gather, as many values of x are another and reach all lanes by broadcasts, and no
// lane ever needs another's sum.
#include "common.glsl"

layout(local_size_x_id = 6) in;
layout(constant_id = 0) const uint SCHEME = 0;
layout(constant_id = 1) const uint EPILOGUE = 0;
// Columns of x that are multiplied at once.
layout(constant_id = 2) const uint COLUMNS = 1;
// Strips per row panel: one, two or four; pairs of them may be gate and up.
layout(constant_id = 3) const uint STRIPS = 1;
// Whether the number of active columns is read from a buffer.
layout(constant_id = 4) const bool HAS_ACTIVE = false;
// Experts: a workgroup multiplies the columns of one group. As many pairs of a row and an expert share a column of x. 0
// where there are no experts.
layout(constant_id = 5) const uint PAIRS_PER_X = 0;
// Threads of a subgroup.
layout(constant_id = 6) const uint LANES = 8;

#include "weights.glsl"
#include "gated.glsl"
#include "experts.glsl"

// Groups per tile, values of K per group, and vectors of x that hold them; floats have no groups.
const uint GROUPS = IS_INT4 ? 2 : 1;
const uint K_VALUES = !IS_FLOAT ? 32 : SCHEME == F32 ? 8 : 16;
// A lane holds two values of x.
const uint K_LANES = K_VALUES / 2 < LANES ? K_VALUES / 2 : LANES;
const uint K_VECTORS = K_VALUES / 2 / K_LANES;
// Weights per word and group.
const uint PER_WORD = !IS_FLOAT ? 4 : SCHEME == F32 ? 1 : 2;
// Vectors of rows, of a strip and of all.
const uint STRIP_VECTORS = STRIP / LANES;
const uint ROW_VECTORS = STRIPS * STRIP_VECTORS;

struct Tile {
    uint64_t pairs[STRIP][4];
};
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Tiles { Tile data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats { uint64_t pairs[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Tiles values;
    Words scales;
    Floats x;
    Active active_rows;
    Output y;
    uint rows;
    uint k;
    uint columns;
    // Start of this block of the matrix in y, and the column stride of y.
    uint y_first;
    uint y_stride;
    // Per group its expert, and per column of a group its pair. Without pairs, groups are single pairs.
    Words group_experts;
    Words group_pairs;
} push;

// Where weights have minima, a group's sum is scaled, and its minimum times the sum of x added. 8 threads add up their own
// values of x and then each other's, by shuffles, which the driver compiles to one instruction for 8 threads only. 16
// threads add up the broadcasts, which the products need anyway.
const bool SHUFFLES_X_SUM = HAS_MIN && LANES == 8;
const bool ADDS_BROADCASTS = HAS_MIN && LANES > 8;
// Whether nibbles become floats as bits of a mantissa, which takes fewer instructions than a conversion, and adds 16 to
// each: the sum of x takes it off again.
const bool IN_MANTISSA = SCHEME == INT4_MIN && LANES > 8;

// The sum over a subgroup of 8; the driver's own subgroupAdd goes lane by lane.
float sum_of_lanes(float value) {
    value += subgroupShuffleXor(value, 1);
    value += subgroupShuffleXor(value, 2);
    return value + subgroupShuffleXor(value, 4);
}

// Columns whose sums are in registers at once. All of them take a weight before the next one is unpacked: then weights
// need no registers, and no addition waits for the one before. 8 threads have too few registers for that.
const uint COLUMN_BLOCK = LANES == 8 ? 1 : COLUMNS * STRIPS <= 16 ? COLUMNS : STRIPS == 4 ? 2 : 4;
const uint COLUMN_BLOCKS = (COLUMNS + COLUMN_BLOCK - 1) / COLUMN_BLOCK;

// Weight i of a word, for int4 in its low or high nibbles; 16 more if IN_MANTISSA.
float weight(uint word, uint group, uint i) {
    if (SCHEME == F32) {
        return uintBitsToFloat(word);
    }
    if (IS_FLOAT) {
        return halves_to_floats(word)[i];
    }
    if (IN_MANTISSA) {
        // The highest bits of the mantissa of 16.0, with the sign flipped: an unsigned nibble.
        uint bit = i * 8 + group * 4;
        uint bits = bit < 19 ? word << (19 - min(bit, 19)) : word >> (max(bit, 19) - 19);
        return uintBitsToFloat((bits & 0x780000u) ^ 0x41c00000u);
    }
    return float(IS_INT4 ? int(word << (28 - i * 8 - group * 4)) >> 28 : int(word << (24 - i * 8)) >> 24);
}

void main() {
    uint columns = HAS_ACTIVE ? min(push.columns, push.active_rows.rows) : push.columns;
    uint first_column = gl_WorkGroupID.y * COLUMNS;
    uint expert = PAIRS_PER_X > 0 ? push.group_experts.data[gl_WorkGroupID.y] : 0;
    if (first_column >= columns && PAIRS_PER_X == 0 || expert == NO_EXPERT) {
        return;
    }
    // Read once: the driver checks the bounds of push constants wherever they are read.
    Tiles values = push.values;
    Words scale_words = push.scales;
    uint lane = gl_SubgroupInvocationID;
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint tiles = (push.k + GROUPS * K_VALUES - 1) / (GROUPS * K_VALUES);
    uint last_strip = (push.rows - 1) / STRIP;
    uint panels = (push.rows + STRIP * STRIPS - 1) / (STRIP * STRIPS);
    uint expert_strip = expert * (last_strip + 1);
    uint x_first[COLUMNS];
    uint y_columns[COLUMNS];
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        // Columns past the last repeat it; their results are discarded.
        uint x_column = min(first_column + c, push.columns - 1);
        y_columns[c] = first_column + c < columns ? first_column + c : NO_EXPERT;
        if (PAIRS_PER_X > 0) {
            y_columns[c] = COLUMNS == 1 ? gl_WorkGroupID.y : push.group_pairs.data[first_column + c];
            // The first column of a group is never unused.
            x_column = (y_columns[c] == NO_EXPERT ? y_columns[0] : y_columns[c]) / PAIRS_PER_X;
        }
        x_first[c] = x_column * quads * (QUAD / 2) + lane % K_LANES;
    }

    for (uint panel = gl_WorkGroupID.x; panel < panels; panel += gl_NumWorkGroups.x) {
        float sums[ROW_VECTORS * COLUMNS];
        [[unroll]] for (uint i = 0; i < ROW_VECTORS * COLUMNS; i++) {
            sums[i] = 0.0;
        }
        for (uint tile = 0; tile < tiles; tile++) {
            uint words[ROW_VECTORS * 8];
            vec2 scales[ROW_VECTORS];
            vec2 minima[ROW_VECTORS];
            [[unroll]] for (uint v = 0; v < ROW_VECTORS; v++) {
                uint strip = expert_strip + min(panel * STRIPS + v / STRIP_VECTORS, last_strip);
                uint row = v % STRIP_VECTORS * LANES + lane;
                [[unroll]] for (uint i = 0; i < 4; i++) {
                    uvec2 pair = unpack32(values.data[strip * quads * TILES + tile].pairs[row][i]);
                    words[v * 8 + 2 * i] = pair.x;
                    words[v * 8 + 2 * i + 1] = pair.y;
                }
                if (!IS_FLOAT) {
                    uint at = ((strip * quads + tile / TILES) * STRIP + row) * (HAS_MIN ? 4 : 2);
                    at += IS_INT4 ? tile % TILES : tile % TILES / 2;
                    // An int4 tile has two groups, an int8 tile one of the two whose scales share a word.
                    uint shift = IS_INT4 ? 0 : tile % 2 * 16;
                    scales[v] = unpackHalf2x16(scale_words.data[at] >> shift);
                    minima[v] = HAS_MIN ? unpackHalf2x16(scale_words.data[at + 2] >> shift) : vec2(0.0);
                    if (SCHEME == INT4_MIN) {
                        // Of q + 24, or of q.
                        minima[v] += (IN_MANTISSA ? -16.0 : 8.0) * scales[v];
                    }
                }
            }
            [[unroll]] for (uint group = 0; group < GROUPS; group++) {
                float group_sums[ROW_VECTORS * COLUMNS];
                float x_sums[COLUMNS];
                [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                    x_sums[c] = 0.0;
                }
                [[unroll]] for (uint k_vector = 0; k_vector < K_VECTORS; k_vector++) {
                    vec2 x[COLUMNS];
                    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                        uint at = x_first[c] + ((tile * GROUPS + group) * K_VECTORS + k_vector) * K_LANES;
                        x[c] = uintBitsToFloat(unpack32(push.x.pairs[at]));
                        if (SHUFFLES_X_SUM) {
                            x_sums[c] += x[c].x + x[c].y;
                        }
                    }
                    [[unroll]] for (uint block = 0; block < COLUMN_BLOCKS; block++) {
                        [[unroll]] for (uint j = 0; j < K_LANES * 2; j++) {
                            float w[ROW_VECTORS];
                            [[unroll]] for (uint v = 0; v < ROW_VECTORS; v++) {
                                uint word = words[v * 8 + (k_vector * K_LANES * 2 + j) / PER_WORD];
                                w[v] = weight(word, group, j % PER_WORD);
                            }
                            [[unroll]] for (uint i = 0; i < COLUMN_BLOCK; i++) {
                                uint c = min(block * COLUMN_BLOCK + i, COLUMNS - 1);
                                if (block * COLUMN_BLOCK + i != c) {
                                    continue;
                                }
                                float value = LANES == 8 ? subgroupShuffle(x[c][j % 2], j / 2) : subgroupBroadcast(x[c][j % 2], j / 2);
                                if (ADDS_BROADCASTS) {
                                    x_sums[c] += value;
                                }
                                [[unroll]] for (uint v = 0; v < ROW_VECTORS; v++) {
                                    uint at = v * COLUMNS + c;
                                    float product = w[v] * value;
                                    if (IS_FLOAT) {
                                        sums[at] += product;
                                    } else {
                                        group_sums[at] = k_vector + j == 0 ? product : group_sums[at] + product;
                                    }
                                }
                            }
                        }
                    }
                }
                if (!IS_FLOAT) {
                    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                        float x_sum = SHUFFLES_X_SUM ? sum_of_lanes(x_sums[c]) : x_sums[c];
                        [[unroll]] for (uint v = 0; v < ROW_VECTORS; v++) {
                            uint at = v * COLUMNS + c;
                            sums[at] += group_sums[at] * scales[v][group];
                            if (HAS_MIN) {
                                sums[at] += x_sum * minima[v][group];
                            }
                        }
                    }
                }
            }
        }
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            if (y_columns[c] != NO_EXPERT) {
                uint y = y_columns[c] * push.y_stride + push.y_first;
                if (EPILOGUE != 0) {
                    [[unroll]] for (uint v = 0; v < ROW_VECTORS; v++) {
                        // A strip of gate, and the next one, of up.
                        uint strip = panel * STRIPS + v / STRIP_VECTORS;
                        if (v / STRIP_VECTORS % 2 == 0 && strip < last_strip) {
                            float up = sums[min(v + STRIP_VECTORS, ROW_VECTORS - 1) * COLUMNS + c];
                            uint row = strip / 2 * STRIP + v % STRIP_VECTORS * LANES + lane;
                            push.y.data[y + row] = gated(sums[v * COLUMNS + c], up);
                        }
                    }
                } else {
                    [[unroll]] for (uint v = 0; v < ROW_VECTORS; v++) {
                        uint row = panel * STRIPS * STRIP + v * LANES + lane;
                        if (row < push.rows) {
                            push.y.data[y + row] = sums[v * COLUMNS + c];
                        }
                    }
                }
            }
        }
    }
}
