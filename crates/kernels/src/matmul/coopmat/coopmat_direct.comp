#version 460
#pragma tiers(T2)
#extension GL_GOOGLE_include_directive : require
// Y = W · X on cooperative matrices, with weights loaded from memory straight into matrix fragments.
//
// As coopmat_staged.comp, but only activations pass through shared memory, several steps at a time. Which
// elements of a fragment a thread holds is up to the driver: this shader is for drivers with the layout that
// the policy's `Fragments` describes for a 16 × 16 operand A: thread 4 g + t holds of row g the columns 2 t,
// 2 t + 1, 2 t + 8 and 2 t + 9, then the same of row g + 8. The K index of a product may be permuted, if both
// operands are permuted alike: a thread therefore takes eight neighbouring bytes of each of its rows as its
// columns of two operands, and activations are permuted to match when they are staged.
#include "tile.glsl"

// Steps per stage: for the widest tiles, two stages of four steps would exceed 48 KiB of shared memory. With
// stages of two steps, 72 columns would not divide evenly among four subgroups.
const uint STAGE_STEPS = COLUMNS <= 72 ? 4 : 2;
// A column of a stage in shared memory, in units of 16 bytes, plus one of padding, so that eight consecutive
// columns cover all banks.
const uint STRIDE = STAGE_STEPS * 4 + 1;
const uint STAGE = COLUMNS * STRIDE;
shared uvec4 units[2 * STAGE > SQUARES ? 2 * STAGE : SQUARES];
#include "accumulators.glsl"

// Blocks of eight columns of a step, each loaded by a subgroup: a thread loads eight values.
const uint BLOCKS = COLUMNS / 8 * STAGE_STEPS;
const uint EIGHTS = (BLOCKS + SUBGROUPS - 1) / SUBGROUPS;
const bool ALL_EIGHTS = BLOCKS % SUBGROUPS == 0;
// Loads per step and strip; one load of int4 serves the steps of two groups.
const uint LOADS = IS_FLOAT ? 2 : 1;
const uint SLOTS = IS_INT4 ? (AHEAD + 1) / 2 : AHEAD;
const uint OPERANDS = GROUP / SIDE;

// For both rows of a thread.
uvec4 words[SLOTS * ROW_TILES * LOADS];
uvec4 eights[EIGHTS];
// Four scales per quad for both rows, and four minima for both.
uvec4 scales[ROW_TILES * 2];
uvec4 next_scales[ROW_TILES * 2];
MatrixA a[ROW_TILES * OPERANDS];

uint quad_base[ROW_TILES];
uint x_base[EIGHTS];

void load_weights(uint quad, uint last_quad, uint step) {
    if (IS_INT4 && step % 2 != 0) {
        return;
    }
    // Past the end the last quad is loaded again, and not used.
    uint at = min(quad + step / STEPS, last_quad);
    uint slot = (IS_INT4 ? step / 2 : step) % SLOTS;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0; j < LOADS; j++) {
            uint tile = (quad_base[i] + at) * TILES + (IS_INT4 ? step % STEPS / 2 : step % STEPS * LOADS + j);
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

void load_x(uint quad, uint last_quad, uint step) {
    uint at = min(quad + step / STEPS, last_quad) * (QUAD / 8) + step % STEPS * 4;
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
        eights[i] = push.x.data[x_base[i] + at];
    }
}

// Block i of a subgroup.
uint block_of(uint i) {
    return i * SUBGROUPS + gl_SubgroupID;
}

// Two columns, four apart, per eight neighbouring threads: they load from two cache lines.
uint column_of(uint i) {
    uint lane = gl_SubgroupInvocationID;
    return block_of(i) % (COLUMNS / 8) * 8 + lane / 8 + lane / 4 % 2 * 4;
}

// Stores the fours of an eight where the threads that hold the weights of the same columns read them: the
// first pair of a four among the first eight columns of an operand, the second among the others.
void store_x(uint stage) {
    uint eight = gl_SubgroupInvocationID % 4;
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
        if (ALL_EIGHTS || block_of(i) < BLOCKS) {
            uint at = stage * STAGE + column_of(i) * STRIDE + block_of(i) / (COLUMNS / 8) * 4;
            if (IS_FLOAT) {
                uint operand = at + eight / 2 * 2;
                uint pair = eight % 2 * 2;
                units[operand][pair] = eights[i].x;
                units[operand + 1][pair] = eights[i].y;
                units[operand][pair + 1] = eights[i].z;
                units[operand + 1][pair + 1] = eights[i].w;
            } else {
                units[at][eight] = eights[i].x;
                units[at + 1][eight] = eights[i].y;
                units[at + 2][eight] = eights[i].z;
                units[at + 3][eight] = eights[i].w;
            }
        }
    }
}

// A pair of elements of an operand.
void set(uint i, uint first, uint pair) {
    f16vec2 both = unpackFloat2x16(pair);
    a[i][first] = both.x;
    a[i][first + 1] = both.y;
}

// The weights of a step as operands; `step` is a compile-time constant.
void make_operands(uint step) {
    uint slot = (IS_INT4 ? step / 2 : step) % SLOTS;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0; j < OPERANDS; j++) {
            uvec2 above;
            uvec2 below;
            if (IS_FLOAT) {
                uvec4 both = words[(slot * ROW_TILES + i) * LOADS + j % LOADS];
                above = converted(vec4(halves_to_floats(both.x), halves_to_floats(both.y)));
                below = converted(vec4(halves_to_floats(both.z), halves_to_floats(both.w)));
            } else {
                uvec4 both = words[slot * ROW_TILES + i];
                uvec4 d = scales[i * 2];
                uvec4 m = scales[i * 2 + 1];
                bool high = step % 2 != 0;
                above = dequantized(both[j], high, scaled(d.xy, step), scaled(m.xy, step));
                below = dequantized(both[2 + j], high, scaled(d.zw, step), scaled(m.zw, step));
            }
            set(i * OPERANDS + j, 0, above.x);
            set(i * OPERANDS + j, 2, above.y);
            set(i * OPERANDS + j, 4, below.x);
            set(i * OPERANDS + j, 6, below.y);
        }
    }
}

void multiply(uint stage, uint step) {
    uint x = stage * STAGE + own_column() * STRIDE + step * 4;
    [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
        [[unroll]] for (uint k = 0; k < OPERANDS; k++) {
            MatrixB b;
            matrix_load_b_columns(b, x + j * SIDE_COLUMNS * STRIDE + k * 2, STRIDE);
            [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
                matrix_multiply(a[i * OPERANDS + k], b, accumulators[i * COLUMN_TILES + j]);
            }
        }
    }
}

#include "finish.glsl"

void main() {
    Tile tile = own_tile();
    if (tile.first_column >= tile.columns) {
        return;
    }
    uint strips = (push.rows + STRIP - 1) / STRIP;
    uint quads = (push.k + QUAD - 1) / QUAD;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        quad_base[i] = min((tile.first_row + own_row()) / STRIP + i, strips - 1) * quads;
    }
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
        // Columns past the last repeat it; their results are discarded.
        uint column = min(tile.first_column + column_of(i), push.columns - 1);
        uint step = min(block_of(i) / (COLUMNS / 8), STAGE_STEPS - 1);
        x_base[i] = column * quads * (QUAD / 8) + step * 4 + gl_SubgroupInvocationID % 4;
    }
    clear_accumulators();
    if (tile.first_quad < tile.end_quad) {
        uint last_quad = tile.end_quad - 1;
        load_x(tile.first_quad, last_quad, 0);
        load_scales(tile.first_quad);
        [[unroll]] for (uint step = 0; step < AHEAD; step++) {
            load_weights(tile.first_quad, last_quad, step);
        }
        uint stage = 0;
        store_x(stage);
        barrier();
        for (uint quad = tile.first_quad; quad < tile.end_quad; quad++) {
            [[unroll]] for (uint i = 0; i < ROW_TILES * 2; i++) {
                scales[i] = next_scales[i];
            }
            load_scales(min(quad + 1, last_quad));
            [[unroll]] for (uint first = 0; first < STEPS; first += STAGE_STEPS) {
                load_x(quad, last_quad, first + STAGE_STEPS);
                [[unroll]] for (uint i = 0; i < STAGE_STEPS; i++) {
                    uint step = first + i;
                    make_operands(step);
                    if (!IS_INT4) {
                        load_weights(quad, last_quad, step + AHEAD);
                    } else if (step % 2 != 0) {
                        // Both groups of a tile have been converted to operands.
                        load_weights(quad, last_quad, step - 1 + 2 * SLOTS);
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
