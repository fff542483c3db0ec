#version 460
#pragma tiers(T1)
#extension GL_GOOGLE_include_directive : require
// Y = W · X for drivers that run shaders on the CPU, a subgroup of 8 threads as one vector.
//
// There a load is a gather, lane by lane, whatever the addresses; barriers and shared memory cost more than they save;
// arithmetic is nearly free. So a subgroup is all of a workgroup, and each lane has rows of its own: a word of weights is one
// gather, 8 values of x are one more and reach all lanes by shuffles, and no lane ever needs another's sum.
#include "common.glsl"

layout(local_size_x = 8) in;
layout(constant_id = 0) const uint SCHEME = 0;
layout(constant_id = 1) const uint EPILOGUE = 0;
// Columns of x that are multiplied at once.
layout(constant_id = 2) const uint COLUMNS = 1;
// Strips of a unit: one, or two that may be gate and up.
layout(constant_id = 3) const uint STRIPS = 1;
// Whether the number of columns in use is in a buffer.
layout(constant_id = 4) const bool HAS_ACTIVE = false;

#include "weights.glsl"
#include "gated.glsl"

const uint LANES = 8;
// Chunks of 8 columns of K in a tile.
const uint CHUNKS = IS_INT4 ? 8 : !IS_FLOAT ? 4 : SCHEME == F32 ? 1 : 2;
// Vectors of 8 rows.
const uint VECTORS = STRIPS * STRIP / LANES;

struct Tile {
    uint words[STRIP][8];
};
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Tiles { Tile data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats { float data[]; };
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
    // Where this part of the matrix starts in y, and how far apart the columns of y are.
    uint y_first;
    uint y_stride;
} push;

void main() {
    uint columns = HAS_ACTIVE ? min(push.columns, push.active_rows.rows) : push.columns;
    uint first_column = gl_WorkGroupID.y * COLUMNS;
    if (first_column >= columns) {
        return;
    }
    uint lane = gl_SubgroupInvocationID;
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint tiles = (push.k + CHUNKS * 8 - 1) / (CHUNKS * 8);
    uint units = (push.rows + STRIP * STRIPS - 1) / (STRIP * STRIPS);
    uint x_first[COLUMNS];
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        // Past the last column it is read again: nobody looks at what comes of it.
        x_first[c] = min(first_column + c, push.columns - 1) * quads * QUAD + lane;
    }

    for (uint unit = gl_WorkGroupID.x; unit < units; unit += gl_NumWorkGroups.x) {
        float sums[VECTORS * COLUMNS];
        [[unroll]] for (uint i = 0; i < VECTORS * COLUMNS; i++) {
            sums[i] = 0.0;
        }
        for (uint tile = 0; tile < tiles; tile++) {
            // Of the vectors: scale and minimum of the tile's group, for int4 of its two groups.
            vec2 low[VECTORS];
            vec2 high[VECTORS];
            uint at[VECTORS];
            [[unroll]] for (uint v = 0; v < VECTORS; v++) {
                uint strip = min(unit * STRIPS + v / 2, (push.rows - 1) / STRIP);
                uint row = v % 2 * LANES + lane;
                at[v] = strip * quads * TILES + tile;
                if (!IS_FLOAT) {
                    uint scale = ((strip * quads + tile / TILES) * STRIP + row) * (HAS_MIN ? 4 : 2);
                    if (IS_INT4) {
                        vec2 d = unpackHalf2x16(push.scales.data[scale + tile % TILES]);
                        vec2 m = HAS_MIN ? unpackHalf2x16(push.scales.data[scale + 2 + tile % TILES]) : vec2(0.0);
                        low[v] = vec2(d.x, HAS_MIN ? m.x + 8.0 * d.x : 0.0);
                        high[v] = vec2(d.y, HAS_MIN ? m.y + 8.0 * d.y : 0.0);
                    } else {
                        uint shift = tile % 2 * 16;
                        float d = unpackHalf2x16(push.scales.data[scale + tile % TILES / 2] >> shift).x;
                        float m = HAS_MIN ? unpackHalf2x16(push.scales.data[scale + 2 + tile % TILES / 2] >> shift).x : 0.0;
                        low[v] = vec2(d, m);
                    }
                }
            }
            [[unroll]] for (uint chunk = 0; chunk < CHUNKS; chunk++) {
                float w[VECTORS * 8];
                [[unroll]] for (uint v = 0; v < VECTORS; v++) {
                    uint row = v % 2 * LANES + lane;
                    if (SCHEME == F32) {
                        [[unroll]] for (uint j = 0; j < 8; j++) {
                            w[v * 8 + j] = uintBitsToFloat(push.values.data[at[v]].words[row][j]);
                        }
                    } else if (IS_FLOAT) {
                        [[unroll]] for (uint j = 0; j < 4; j++) {
                            vec2 pair = halves_to_floats(push.values.data[at[v]].words[row][(chunk * 4 + j) % 8]);
                            w[v * 8 + j * 2] = pair.x;
                            w[v * 8 + j * 2 + 1] = pair.y;
                        }
                    } else {
                        [[unroll]] for (uint j = 0; j < 8; j++) {
                            uint word = push.values.data[at[v]].words[row][chunk % 4 * 2 + j / 4];
                            vec2 both = chunk < 4 ? low[v] : high[v];
                            int q;
                            if (IS_INT4) {
                                q = int(word << ((chunk < 4 ? 28 : 24) - j % 4 * 8)) >> 28;
                            } else {
                                q = int(word << (24 - j % 4 * 8)) >> 24;
                            }
                            w[v * 8 + j] = HAS_MIN ? fma(float(q), both.x, both.y) : float(q) * both.x;
                        }
                    }
                }
                [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                    float x = push.x.data[x_first[c] + (tile * CHUNKS + chunk) * 8];
                    [[unroll]] for (uint j = 0; j < 8; j++) {
                        float value = subgroupShuffle(x, j);
                        [[unroll]] for (uint v = 0; v < VECTORS; v++) {
                            sums[v * COLUMNS + c] = fma(w[v * 8 + j], value, sums[v * COLUMNS + c]);
                        }
                    }
                }
            }
        }
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            if (first_column + c < columns) {
                uint y = (first_column + c) * push.y_stride + push.y_first;
                if (EPILOGUE != 0) {
                    [[unroll]] for (uint v = 0; v < 2; v++) {
                        float up = sums[min(v + 2, VECTORS - 1) * COLUMNS + c];
                        push.y.data[y + unit * STRIP + v * LANES + lane] = gated(sums[v * COLUMNS + c], up);
                    }
                } else {
                    [[unroll]] for (uint v = 0; v < VECTORS; v++) {
                        uint row = unit * STRIPS * STRIP + v * LANES + lane;
                        if (row < push.rows) {
                            push.y.data[y + row] = sums[v * COLUMNS + c];
                        }
                    }
                }
            }
        }
    }
}
