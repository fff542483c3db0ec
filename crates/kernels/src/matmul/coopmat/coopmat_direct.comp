#version 460
#pragma tiers(T2)
#extension GL_GOOGLE_include_directive : require
// Y = W · X on cooperative matrices, with weights loaded from memory straight into matrix fragments.
//
// As coopmat_staged.comp, but only activations pass through shared memory, several K-steps at a time.
// Which elements of a fragment a thread holds depends on the driver: this shader needs the layout
// `Fragments::FourThreadsPerRow` of a 16 × 16 operand A, where thread 4 g + t holds columns 2 t, 2 t + 1,
// 2 t + 8 and 2 t + 9 of row g, then the same columns of row g + 8. The K index of a product may be
// permuted, if both operands are permuted alike: a thread therefore takes eight neighbouring bytes of each
// of its rows as its columns of two operands, and activations are permuted to match when they are staged.
#include "tile.glsl"

// K-steps per stage: for the widest tiles, two stages of four would exceed 48 KiB of shared memory. With
// stages of two, 72 columns would not divide evenly among four subgroups.
const uint STAGE_K_STEPS = COLUMNS <= 72 ? 4 : 2;
// A column of a stage in shared memory, in units of 16 bytes, plus one of padding, so that eight consecutive
// columns cover all banks.
const uint STRIDE = STAGE_K_STEPS * 4 + 1;
const uint STAGE = COLUMNS * STRIDE;
shared uvec4 units[2 * STAGE > SQUARES ? 2 * STAGE : SQUARES];
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

// Two columns, four apart, per eight neighbouring threads: they load from two cache lines.
uint column_of(uint i) {
    uint lane = gl_SubgroupInvocationID;
    return x_tile_of(i) % (COLUMNS / 8) * 8 + lane / 8 + lane / 4 % 2 * 4;
}

// Permutes x to match the weights. Of every four values, the first pair goes to the first eight columns of
// an operand, the second pair to the other eight.
void store_x(uint stage) {
    uint x_word = gl_SubgroupInvocationID % 4;
    [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
        if (X_LOADS_EVEN || x_tile_of(i) < X_TILES) {
            uint at = stage * STAGE + column_of(i) * STRIDE + x_tile_of(i) / (COLUMNS / 8) * 4;
            if (IS_FLOAT) {
                uint operand = at + x_word / 2 * 2;
                uint pair = x_word % 2 * 2;
                units[operand][pair] = x_words[i].x;
                units[operand + 1][pair] = x_words[i].y;
                units[operand][pair + 1] = x_words[i].z;
                units[operand + 1][pair + 1] = x_words[i].w;
            } else {
                units[at][x_word] = x_words[i].x;
                units[at + 1][x_word] = x_words[i].y;
                units[at + 2][x_word] = x_words[i].z;
                units[at + 3][x_word] = x_words[i].w;
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
    uint x = stage * STAGE + subgroup_column() * STRIDE + k_step * 4;
    [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
        [[unroll]] for (uint k = 0; k < OPERANDS; k++) {
            MatrixB b;
            matrix_load_b_columns(b, x + j * COOPMAT_COLUMNS * STRIDE + k * 2, STRIDE);
            [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
                matrix_multiply(a[i * OPERANDS + k], b, accumulators[i * COLUMN_TILES + j]);
            }
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
