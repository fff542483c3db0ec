#version 460
#pragma tiers(T2)
#extension GL_GOOGLE_include_directive : require
// Y = W · X on cooperative matrices, with weights loaded from memory straight into matrix fragments.
//
// As coopmat_staged.comp, but only activations pass through shared memory, several K-steps at a time.
// Which elements of a fragment a thread holds depends on the driver: this shader needs the layout
// `Fragments::FourThreadsPerRow` of a 16 × 16 operand A, where thread 4 g + t holds columns 2 t, 2 t + 1,
// 2 t + 8 and 2 t + 9 of row g, then the same columns of row g + 8, and the layout of a 16 × 8 operand B,
// where the thread holds the same rows of column g; and of a 16 × 8 accumulator, where it holds columns 2 t
// and 2 t + 1 of row g, then of row g + 8. The K index of a product may be permuted, if both
// operands are permuted alike: a thread therefore takes eight neighbouring values of each of its rows as
// its columns of two operands, and eight neighbouring activations of its column as its rows of both. So all
// loads of shared memory are of 16 bytes, and those of a subgroup are consecutive. So are the stores for integer weights;
// for float weights, which a thread holds four by four, 16 bytes are stored in parts.
#define MATRIX_COLUMNS 8
#include "tile.glsl"

// K-steps per stage: for the widest tiles, two stages of four would exceed 48 KiB of shared memory. With
// stages of two, 72 columns would not divide evenly among four subgroups.
const uint STAGE_K_STEPS = COLUMNS <= 72 ? 4 : 2;
// A stage in shared memory, in units of 16 bytes: per K-step and column, a unit of each of four threads.
const uint COLUMN_UNITS = 4;
const uint K_STEP_UNITS = COLUMNS * COLUMN_UNITS;
const uint STAGE = STAGE_K_STEPS * K_STEP_UNITS;
// Two stages, and at least 10 KiB: with less, steps of 4 to 16 columns took 5% longer on an H200, perhaps because the
// driver divides a compute unit's memory between cache and workgroups anew for these kernels.
const uint MIN_UNITS = 640;
shared uvec4 units[2 * STAGE > MIN_UNITS ? 2 * STAGE : MIN_UNITS];
#include "accumulators.glsl"

// x is loaded in tiles of eight columns × one K-step, one subgroup each: a thread loads eight values, 16
// bytes.
const uint X_TILES = COLUMNS / 8 * STAGE_K_STEPS;
const uint X_LOADS = (X_TILES + SUBGROUPS - 1) / SUBGROUPS;
const bool X_LOADS_EVEN = X_TILES % SUBGROUPS == 0;
// Loads per K-step and strip; one load of int4 covers two K-steps.
const uint LOADS = IS_FLOAT ? 2 : 1;
const uint SLOTS = IS_INT4 ? (PREFETCH_DEPTH + 1) / 2 : PREFETCH_DEPTH;
const uint OPERANDS = GROUP / SIDE;

// Weights of both rows of a thread.
uvec4 words[SLOTS * ROW_TILES * LOADS];
uvec4 x_words[X_LOADS];
// Four scales per quad for both rows, and four minima for both.
uvec4 scales[ROW_TILES * 2];
uvec4 next_scales[ROW_TILES * 2];
MatrixA a[ROW_TILES * OPERANDS];

uint quad_base[ROW_TILES];
uint x_base[X_LOADS];

void load_weights(uint quad, uint last_quad, uint k_step) {
    if (IS_INT4 && k_step % 2 != 0) {
        return;
    }
    // Past the end the last quad is loaded again, and not used.
    uint at = min(quad + k_step / K_STEPS, last_quad);
    uint slot = (IS_INT4 ? k_step / 2 : k_step) % SLOTS;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0; j < LOADS; j++) {
            uint tile = (quad_base[i] + at) * TILES + (IS_INT4 ? k_step % K_STEPS / 2 : k_step % K_STEPS * LOADS + j);
            // A tile is 64 × 8 bytes; its second half holds rows 8 to 15.
            uint index = tile * 64 + gl_SubgroupInvocationID;
            Words2 values = Words2(push.values);
            words[(slot * ROW_TILES + i) * LOADS + j] = uvec4(values.data[index], values.data[index + 32]);
        }
    }
}

void load_scales(uint quad) {
    if (!IS_FLOAT) {
        [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
            uint row = (quad_base[i] + quad) * STRIP + gl_SubgroupInvocationID / 4;
            uint at = row * (HAS_MIN ? 2 : 1);
            uint below = (row + 8) * (HAS_MIN ? 2 : 1);
            next_scales[i * 2] = uvec4(push.scales.data[at], push.scales.data[below]);
            if (HAS_MIN) {
                next_scales[i * 2 + 1] = uvec4(push.scales.data[at + 1], push.scales.data[below + 1]);
            }
        }
    }
}

void load_x(uint quad, uint last_quad, uint k_step) {
    uint at = min(quad + k_step / K_STEPS, last_quad) * (QUAD / 8) + k_step % K_STEPS * 4;
    [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
        x_words[i] = push.x.data[x_base[i] + at];
    }
}

// Tile i of x that a subgroup loads.
uint x_tile_of(uint i) {
    return i * SUBGROUPS + gl_SubgroupID;
}

uint column_of(uint i) {
    return x_tile_of(i) % (COLUMNS / 8) * 8 + gl_SubgroupInvocationID / COLUMN_UNITS;
}

// Permutes x to match the weights. A thread's integers are its columns of both operands, as its activations are in
// memory. Its floats are four values of each half of the K-step.
void store_x(uint stage) {
    uint unit = gl_SubgroupInvocationID % COLUMN_UNITS;
    [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
        if (X_LOADS_EVEN || x_tile_of(i) < X_TILES) {
            uint at = stage * STAGE + x_tile_of(i) / (COLUMNS / 8) * K_STEP_UNITS + column_of(i) * COLUMN_UNITS;
            if (IS_FLOAT) {
                uint first = at + unit % 2 * 2;
                uint operand = unit / 2;
                units[first][operand * 2] = x_words[i].x;
                units[first][operand * 2 + 1] = x_words[i].y;
                units[first + 1][operand * 2] = x_words[i].z;
                units[first + 1][operand * 2 + 1] = x_words[i].w;
            } else {
                units[at + unit] = x_words[i];
            }
        }
    }
}

// Sets a pair of elements of an operand.
void set_pair(uint i, uint first, uint pair) {
    f16vec2 both = unpackFloat2x16(pair);
    a[i][first] = both.x;
    a[i][first + 1] = both.y;
}

// Converts the weights of a K-step to operands; `k_step` is a compile-time constant.
void make_operands(uint k_step) {
    uint slot = (IS_INT4 ? k_step / 2 : k_step) % SLOTS;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0; j < OPERANDS; j++) {
            uvec2 above;
            uvec2 below;
            if (SCHEME == F16) {
                // As `converted`; a multiplication by a power of two is exact.
                uvec4 both = words[(slot * ROW_TILES + i) * LOADS + j % LOADS];
                above = converted_halves(both.xy);
                below = converted_halves(both.zw);
            } else if (IS_FLOAT) {
                uvec4 both = words[(slot * ROW_TILES + i) * LOADS + j % LOADS];
                above = converted(vec4(halves_to_floats(both.x), halves_to_floats(both.y)));
                below = converted(vec4(halves_to_floats(both.z), halves_to_floats(both.w)));
            } else {
                uvec4 both = words[slot * ROW_TILES + i];
                uvec4 d = scales[i * 2];
                uvec4 m = scales[i * 2 + 1];
                bool high = k_step % 2 != 0;
                above = dequantized(both[j], high, scaled(d.xy, k_step), scaled(m.xy, k_step));
                below = dequantized(both[2 + j], high, scaled(d.zw, k_step), scaled(m.zw, k_step));
            }
            set_pair(i * OPERANDS + j, 0, above.x);
            set_pair(i * OPERANDS + j, 2, above.y);
            set_pair(i * OPERANDS + j, 4, below.x);
            set_pair(i * OPERANDS + j, 6, below.y);
        }
    }
}

void multiply(uint stage, uint k_step) {
    uint at = stage * STAGE + k_step * K_STEP_UNITS + subgroup_column() * COLUMN_UNITS + gl_SubgroupInvocationID;
    [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
        uvec4 both = units[at + j * MATRIX_COLUMNS * COLUMN_UNITS];
        [[unroll]] for (uint k = 0; k < OPERANDS; k++) {
            MatrixB b;
            f16vec2 low = unpackFloat2x16(both[k * 2]);
            f16vec2 high = unpackFloat2x16(both[k * 2 + 1]);
            b[0] = low.x;
            b[1] = low.y;
            b[2] = high.x;
            b[3] = high.y;
            [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
                matrix_multiply(a[i * OPERANDS + k], b, accumulators[i * COLUMN_TILES + j]);
            }
        }
    }
}

#include "output.glsl"

// From a thread's elements of an accumulator to four neighbouring rows of one of its columns: four threads, of four
// neighbouring rows, exchange columns with each other.
vec4 rows_of_column(vec4 elements) {
    bool odd = (gl_SubgroupInvocationID & 4) != 0;
    bool lower = (gl_SubgroupInvocationID & 8) != 0;
    vec2 other_column = subgroupShuffleXor(odd ? elements.xz : elements.yw, 4);
    vec2 above = odd ? vec2(other_column.x, elements.y) : vec2(elements.x, other_column.x);
    vec2 below = odd ? vec2(other_column.y, elements.w) : vec2(elements.z, other_column.y);
    vec2 other_rows = subgroupShuffleXor(lower ? above : below, 8);
    return lower ? vec4(other_rows, below) : vec4(above, other_rows);
}

void write_accumulators(Tile tile) {
    uint lane = gl_SubgroupInvocationID;
    uint first_column = tile.first_column + subgroup_column() + lane % 4 * 2 + lane / 4 % 2;
    uint first_row = (tile.first_row + subgroup_row()) / STRIPS_PER_OUTPUT + lane / 8 % 2 * 8 + lane / 16 * 4;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i += STRIPS_PER_OUTPUT) {
        [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
            vec4 elements;
            [[unroll]] for (uint e = 0; e < 4; e++) {
                elements[e] = accumulators[i * COLUMN_TILES + j][e];
                if (EPILOGUE != 0) {
                    elements[e] = gated(elements[e], accumulators[(i + STRIPS_PER_OUTPUT - 1) * COLUMN_TILES + j][e]);
                }
            }
            uint row = first_row + i / STRIPS_PER_OUTPUT * SIDE;
            write_four(tile, first_column + j * MATRIX_COLUMNS, row, rows_of_column(elements));
        }
    }
}

#include "finish.glsl"

void main() {
    Tile tile = workgroup_tile();
    if (is_unused(tile)) {
        return;
    }
    uint strips = (push.rows + STRIP - 1) / STRIP;
    uint quads = (push.k + QUAD - 1) / QUAD;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        uint strip = min((tile.first_row + subgroup_row()) / STRIP + i, strips - 1);
        quad_base[i] = (tile.expert * strips + strip) * quads;
    }
    [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
        uint column = x_column_of(tile, column_of(i));
        uint k_step = min(x_tile_of(i) / (COLUMNS / 8), STAGE_K_STEPS - 1);
        x_base[i] = column * quads * (QUAD / 8) + k_step * 4 + gl_SubgroupInvocationID % 4;
    }
    clear_accumulators();
    if (tile.first_quad < tile.end_quad) {
        uint last_quad = tile.end_quad - 1;
        load_x(tile.first_quad, last_quad, 0);
        load_scales(tile.first_quad);
        [[unroll]] for (uint k_step = 0; k_step < PREFETCH_DEPTH; k_step++) {
            load_weights(tile.first_quad, last_quad, k_step);
        }
        uint stage = 0;
        store_x(stage);
        barrier();
        for (uint quad = tile.first_quad; quad < tile.end_quad; quad++) {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
                scales[i] = next_scales[i];
            }
            load_scales(min(quad + 1, last_quad));
            [[unroll]] for (uint first = 0; first < K_STEPS; first += STAGE_K_STEPS) {
                load_x(quad, last_quad, first + STAGE_K_STEPS);
                [[unroll]] for (uint i = 0; i < STAGE_K_STEPS; i++) {
                    uint k_step = first + i;
                    make_operands(k_step);
                    if (!IS_INT4) {
                        load_weights(quad, last_quad, k_step + PREFETCH_DEPTH);
                    } else if (k_step % 2 != 0) {
                        // Both groups of a tile have been converted to operands.
                        load_weights(quad, last_quad, k_step - 1 + 2 * SLOTS);
                    }
                    multiply(stage, i);
                }
                stage = 1 - stage;
                store_x(stage);
                barrier();
            }
        }
    }
    finish(tile);
}
