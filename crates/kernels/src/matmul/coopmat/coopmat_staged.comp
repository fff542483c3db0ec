#version 460
#pragma tiers(T1, T2)
#extension GL_GOOGLE_include_directive : require
// Y = W · X on cooperative matrices: f16 × f16, accumulated in f32.
//
// A workgroup computes a tile of ROWS rows × COLUMNS columns, a subgroup OWN_ROWS × OWN_COLUMNS of it as
// products of 16 × 16 × 16. K is processed in steps of one group (32): weights are converted to f16 on their
// way to shared memory; activations already are f16. Shared memory is double-buffered: one step is multiplied
// while the next is written, and later ones are being loaded into registers. The loop runs over quads of four
// steps, so that differences between steps are compile-time constants.
//
// Weight bytes are converted to f16 in pairs: a mask selects the first and third byte of a word, an XOR makes
// each the low bits of 1024.0 + (q + 128). The four values of a word then have the order of VectorData::F16.
//
// Below T2 it is for tests only: matrix.glsl then emulates cooperative matrices.
//
// K may be split among workgroups (split-K). Each then stores its accumulators in scratch memory, and the
// last to finish adds them all up, in order.
#include "tile.glsl"

// A row of a step in shared memory, in units of 16 bytes: 32 f16 plus one unit of padding, so that eight
// consecutive rows cover all banks.
const uint STRIDE = 5;
// Half groups of weights, and eights of activations, that a thread loads per step.
const uint HALVES = ROWS * 2 / THREADS;
const uint EIGHTS = (COLUMNS * 4 + THREADS - 1) / THREADS;
const bool ALL_EIGHTS = COLUMNS * 4 % THREADS == 0;
// 16-byte loads per half group; one load of int4 serves the steps of two groups.
const uint LOADS = !IS_FLOAT ? 1 : SCHEME == F32 ? 4 : 2;
const uint SLOTS = IS_INT4 ? (AHEAD + 1) / 2 : AHEAD;

const uint STAGE = (ROWS + COLUMNS) * STRIDE;
shared uvec4 units[2 * STAGE > SQUARES ? 2 * STAGE : SQUARES];
#include "accumulators.glsl"

uvec4 words[SLOTS * HALVES * LOADS];
uvec4 eights[AHEAD * EIGHTS];
// Four scales per quad, followed by four minima, for each half group's row.
uvec2 scales[HALVES * 2];
uvec2 next_scales[HALVES * 2];

// Start of a half group's strip, in quads, and its row within the strip and half. Eight neighbouring threads
// have eight rows of weights, and two columns of activations that are four apart: their stores cover all
// banks, and they load from only two cache lines. (Eight columns store as well, but load from eight lines:
// 1.25 times the total time.)
uint quad_base[HALVES];
uint strip_row;
uint half_index;
uint x_base[EIGHTS];

// The column of a tile, and the eight of its 32 values, that a thread loads as number i of its eights.
uint column_of(uint thread, uint i) {
    return i * (THREADS / 4) + thread / 32 * 8 + thread / 8 % 4 + thread / 4 % 2 * 4;
}

uint eight_of(uint thread) {
    return thread % 4;
}

// Loads the weights of step `step`, counted from `quad`; `step` is a compile-time constant.
void load_weights(uint quad, uint last_quad, uint step) {
    if (IS_INT4 && step % 2 != 0) {
        return;
    }
    // Past the end the last quad is loaded again, and not used.
    uint at = min(quad + step / STEPS, last_quad);
    uint slot = (IS_INT4 ? step / 2 : step) % SLOTS;
    [[unroll]] for (uint i = 0; i < HALVES; i++) {
        [[unroll]] for (uint j = 0; j < LOADS; j++) {
            uint tile = (quad_base[i] + at) * TILES;
            uint index;
            if (IS_FLOAT) {
                // Half a group is one row of a tile; for f32, two rows of two tiles.
                tile += (step % STEPS * 2 + half_index) * (LOADS / 2) + j / 2;
                index = (tile * STRIP + strip_row) * 2 + j % 2;
            } else {
                tile += IS_INT4 ? step % STEPS / 2 : step % STEPS;
                index = (tile * STRIP + strip_row) * 2 + half_index;
            }
            words[(slot * HALVES + i) * LOADS + j] = push.values.data[index];
        }
    }
}

void load_x(uint quad, uint last_quad, uint step) {
    uint at = min(quad + step / STEPS, last_quad) * (QUAD / 8) + step % STEPS * 4;
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
        eights[step % AHEAD * EIGHTS + i] = push.x.data[x_base[i] + at];
    }
}

void load_scales(uint quad) {
    if (!IS_FLOAT) {
        [[unroll]] for (uint i = 0; i < HALVES; i++) {
            uint at = ((quad_base[i] + quad) * STRIP + strip_row) * (HAS_MIN ? 2 : 1);
            next_scales[i * 2] = push.scales.data[at];
            if (HAS_MIN) {
                next_scales[i * 2 + 1] = push.scales.data[at + 1];
            }
        }
    }
}

// Writes step `step` to a stage; for the first step of a quad the scales are those loaded last.
void store(uint stage, uint step, uint thread) {
    uint base = stage * STAGE;
    uint slot = (IS_INT4 ? step / 2 : step) % SLOTS;
    [[unroll]] for (uint i = 0; i < HALVES; i++) {
        uint row = (thread + i * THREADS) / 32 * STRIP + strip_row;
        uint at = base + row * STRIDE + half_index * 2;
        uvec2 fours[4];
        if (IS_FLOAT) {
            [[unroll]] for (uint j = 0; j < 4; j++) {
                vec4 four;
                if (SCHEME == F32) {
                    four = uintBitsToFloat(words[(slot * HALVES + i) * LOADS + j % LOADS]);
                } else {
                    uvec4 both = words[(slot * HALVES + i) * LOADS + j / 2 % LOADS];
                    four = vec4(halves_to_floats(both[j % 2 * 2]), halves_to_floats(both[j % 2 * 2 + 1]));
                }
                fours[j] = converted(four);
            }
        } else {
            f16vec2 d = scaled(scales[i * 2], step % STEPS);
            f16vec2 m = HAS_MIN ? scaled(scales[i * 2 + 1], step % STEPS) : f16vec2(0.0);
            uvec4 bytes = words[slot * HALVES + i];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                fours[j] = dequantized(bytes[j], step % 2 != 0, d, m);
            }
        }
        units[at] = uvec4(fours[0], fours[1]);
        units[at + 1] = uvec4(fours[2], fours[3]);
    }
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
        uint column = column_of(thread, i);
        if (ALL_EIGHTS || column < COLUMNS) {
            units[base + (ROWS + column) * STRIDE + eight_of(thread)] = eights[step % AHEAD * EIGHTS + i];
        }
    }
}

void multiply(uint stage) {
    uint w = stage * STAGE + own_row() * STRIDE;
    uint x = stage * STAGE + (ROWS + own_column()) * STRIDE;
    unrolled for (uint k = 0; k < GROUP / SIDE; k++) {
        MatrixA a[ROW_TILES];
        unrolled for (uint i = 0; i < ROW_TILES; i++) {
            matrix_load_a(a[i], w + i * SIDE * STRIDE + k * 2, STRIDE);
        }
        unrolled for (uint j = 0; j < COLUMN_TILES; j++) {
            MatrixB b;
            matrix_load_b_columns(b, x + j * SIDE * STRIDE + k * 2, STRIDE);
            unrolled for (uint i = 0; i < ROW_TILES; i++) {
                matrix_multiply(a[i], b, accumulators[i * COLUMN_TILES + j]);
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
    uint thread = thread_index();
    uint strips = (push.rows + STRIP - 1) / STRIP;
    uint quads = (push.k + QUAD - 1) / QUAD;
    strip_row = thread % STRIP;
    half_index = thread / STRIP % 2;
    [[unroll]] for (uint i = 0; i < HALVES; i++) {
        quad_base[i] = min(tile.first_row / STRIP + (thread + i * THREADS) / 32, strips - 1) * quads;
    }
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
        // Columns past the last repeat it; their results are discarded.
        uint column = min(tile.first_column + column_of(thread, i), push.columns - 1);
        x_base[i] = column * quads * (QUAD / 8) + eight_of(thread);
    }
    clear_accumulators();
    if (tile.first_quad < tile.end_quad) {
        uint last_quad = tile.end_quad - 1;
        load_scales(tile.first_quad);
        [[unroll]] for (uint step = 0; step < AHEAD; step++) {
            load_weights(tile.first_quad, last_quad, step);
            load_x(tile.first_quad, last_quad, step);
        }
        [[unroll]] for (uint i = 0; i < HALVES * 2; i++) {
            scales[i] = next_scales[i];
        }
        store(0, 0, thread);
        load_x(tile.first_quad, last_quad, AHEAD);
        if (!IS_INT4) {
            load_weights(tile.first_quad, last_quad, AHEAD);
        }
        barrier();
        for (uint quad = tile.first_quad; quad < tile.end_quad; quad++) {
            load_scales(min(quad + 1, last_quad));
            [[unroll]] for (uint step = 0; step < STEPS; step++) {
                if (step == STEPS - 1) {
                    [[unroll]] for (uint i = 0; i < HALVES * 2; i++) {
                        scales[i] = next_scales[i];
                    }
                }
                // Loads this step's operands from shared memory first: the stores after them can then overlap
                // with the matrix units.
                multiply(step % 2);
                store((step + 1) % 2, step + 1, thread);
                load_x(quad, last_quad, step + 1 + AHEAD);
                if (!IS_INT4) {
                    load_weights(quad, last_quad, step + 1 + AHEAD);
                } else if (step % 2 == 0) {
                    // Both groups of a tile have been stored.
                    load_weights(quad, last_quad, step + 2 * SLOTS);
                }
                barrier();
            }
        }
    }
    finish(tile);
}
