#version 460
#pragma tiers(T1, T2)
#extension GL_GOOGLE_include_directive : require
// Y = W · X on cooperative matrices: f16 × f16, accumulated in f32.
//
// A workgroup computes a tile of ROWS rows × COLUMNS columns, a subgroup SUBGROUP_ROWS × SUBGROUP_COLUMNS
// of it as products of 16 × 16 × 16. A K-step is one group (32): weights are converted to f16 on their way
// to shared memory; activations already are f16. Shared memory is double-buffered: one K-step is
// multiplied while the next is written, and later ones are being loaded into registers. The loop runs over
// quads of four K-steps, so that differences between K-steps are compile-time constants.
//
// Weight bytes are converted to f16 in pairs: a mask selects the first and third byte of a word, an XOR makes
// each the low bits of 1024.0 + (q + 128). The four values of a word then have the order of VectorData::F16.
//
// Below T2 it is for tests only: matrix.glsl then emulates cooperative matrices.
//
// K may be split among workgroups (split-K). Each then stores its accumulators in scratch memory, and the
// last to finish adds them all up, in order.
#define MATRIX_COLUMNS 16
#include "tile.glsl"

// A row of a K-step in shared memory, in units of 16 bytes: 32 f16 plus one unit of padding, so that eight
// consecutive rows cover all banks.
const uint STRIDE = 5;
// Half groups of weights, and 16-byte words of activations (eight f16), that a thread loads per K-step.
const uint HALVES = ROWS * 2 / THREADS;
const uint X_LOADS = (COLUMNS * 4 + THREADS - 1) / THREADS;
const bool X_LOADS_EVEN = COLUMNS * 4 % THREADS == 0;
// 16-byte loads per half group; one load of int4 covers two K-steps.
const uint LOADS = !IS_FLOAT ? 1 : SCHEME == F32 ? 4 : 2;
const uint SLOTS = IS_INT4 ? (PREFETCH_DEPTH + 1) / 2 : PREFETCH_DEPTH;

const uint STAGE = (ROWS + COLUMNS) * STRIDE;
// At the end, accumulators pass through squares of 16 × 16 values, because their own memory layout is unknown: two per
// subgroup, gate and up, at a stride of five units.
const uint SQUARE_STRIDE = 5;
const uint SQUARE = SIDE * SQUARE_STRIDE;
const uint SQUARES = SUBGROUPS * 2 * SQUARE;
shared uvec4 units[2 * STAGE > SQUARES ? 2 * STAGE : SQUARES];
#include "accumulators.glsl"

uvec4 words[SLOTS * HALVES * LOADS];
uvec4 x_words[PREFETCH_DEPTH * X_LOADS];
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
uint x_base[X_LOADS];

// The column of word i of a thread, and the index of its words among the four of a column.
uint column_of(uint thread, uint i) {
    return i * (THREADS / 4) + thread / 32 * 8 + thread / 8 % 4 + thread / 4 % 2 * 4;
}

uint x_word_of(uint thread) {
    return thread % 4;
}

// Loads the weights of K-step `k_step`, counted from `quad`; `k_step` is a compile-time constant.
void load_weights(uint quad, uint last_quad, uint k_step) {
    if (IS_INT4 && k_step % 2 != 0) {
        return;
    }
    // Past the end the last quad is loaded again, and not used.
    uint at = min(quad + k_step / K_STEPS, last_quad);
    uint slot = (IS_INT4 ? k_step / 2 : k_step) % SLOTS;
    [[unroll]] for (uint i = 0; i < HALVES; i++) {
        [[unroll]] for (uint j = 0; j < LOADS; j++) {
            uint tile = (quad_base[i] + at) * TILES;
            uint index;
            if (IS_FLOAT) {
                // Half a group is one row of a tile; for f32, two rows of two tiles.
                tile += (k_step % K_STEPS * 2 + half_index) * (LOADS / 2) + j / 2;
                index = (tile * STRIP + strip_row) * 2 + j % 2;
            } else {
                tile += IS_INT4 ? k_step % K_STEPS / 2 : k_step % K_STEPS;
                index = (tile * STRIP + strip_row) * 2 + half_index;
            }
            words[(slot * HALVES + i) * LOADS + j] = push.values.data[index];
        }
    }
}

void load_x(uint quad, uint last_quad, uint k_step) {
    uint at = min(quad + k_step / K_STEPS, last_quad) * (QUAD / 8) + k_step % K_STEPS * 4;
    [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
        x_words[k_step % PREFETCH_DEPTH * X_LOADS + i] = push.x.data[x_base[i] + at];
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

// Writes K-step `k_step` to a stage; for the first K-step of a quad the scales are those loaded last.
void store(uint stage, uint k_step, uint thread) {
    uint base = stage * STAGE;
    uint slot = (IS_INT4 ? k_step / 2 : k_step) % SLOTS;
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
            f16vec2 d = scaled(scales[i * 2], k_step % K_STEPS);
            f16vec2 m = HAS_MIN ? scaled(scales[i * 2 + 1], k_step % K_STEPS) : f16vec2(0.0);
            uvec4 bytes = words[slot * HALVES + i];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                fours[j] = dequantized(bytes[j], k_step % 2 != 0, d, m);
            }
        }
        units[at] = uvec4(fours[0], fours[1]);
        units[at + 1] = uvec4(fours[2], fours[3]);
    }
    [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
        uint column = column_of(thread, i);
        if (X_LOADS_EVEN || column < COLUMNS) {
            units[base + (ROWS + column) * STRIDE + x_word_of(thread)] = x_words[k_step % PREFETCH_DEPTH * X_LOADS + i];
        }
    }
}

void multiply(uint stage) {
    uint w = stage * STAGE + subgroup_row() * STRIDE;
    uint x = stage * STAGE + (ROWS + subgroup_column()) * STRIDE;
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

#include "output.glsl"

void write_accumulators(Tile tile) {
    uint square = gl_SubgroupID * 2 * SQUARE;
    unrolled for (uint i = 0; i < ROW_TILES; i += STRIPS_PER_OUTPUT) {
        unrolled for (uint j = 0; j < COLUMN_TILES; j++) {
            unrolled for (uint strip = 0; strip < STRIPS_PER_OUTPUT; strip++) {
                matrix_store_sums_columns(accumulators[(i + strip) * COLUMN_TILES + j], square + strip * SQUARE, SQUARE_STRIDE);
            }
            subgroup_shared_barrier();
            // Halves of columns. The trip count must be a compile-time constant; otherwise the surrounding
            // loops are not unrolled, and accumulators spill to memory.
            unrolled for (uint first = 0; first < 2 * SIDE; first += LANES) {
                uint half_column = first + gl_SubgroupInvocationID;
                uint column = tile.first_column + subgroup_column() + j * SIDE + half_column / 2;
                uint row = (tile.first_row + subgroup_row() + i * SIDE) / STRIPS_PER_OUTPUT + half_column % 2 * 8;
                [[unroll]] for (uint four = 0; four < 2; four++) {
                    uint at = square + half_column / 2 * SQUARE_STRIDE + half_column % 2 * 2 + four;
                    vec4 values = uintBitsToFloat(units[at]);
                    if (EPILOGUE != 0) {
                        vec4 up = uintBitsToFloat(units[at + SQUARE]);
                        [[unroll]] for (uint e = 0; e < 4; e++) {
                            values[e] = gated(values[e], up[e]);
                        }
                    }
                    write_four(tile, column, row + four * 4, values);
                }
            }
            subgroup_shared_barrier();
        }
    }
}

#include "finish.glsl"

void main() {
    Tile tile = workgroup_tile();
    if (is_unused(tile)) {
        return;
    }
    uint thread = thread_index();
    uint strips = (push.rows + STRIP - 1) / STRIP;
    uint quads = (push.k + QUAD - 1) / QUAD;
    strip_row = thread % STRIP;
    half_index = thread / STRIP % 2;
    [[unroll]] for (uint i = 0; i < HALVES; i++) {
        uint strip = min(tile.first_row / STRIP + (thread + i * THREADS) / 32, strips - 1);
        quad_base[i] = (tile.expert * strips + strip) * quads;
    }
    [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
        // Columns past the tile's are not stored.
        uint column = x_column_of(tile, X_LOADS_EVEN ? column_of(thread, i) : min(column_of(thread, i), COLUMNS - 1));
        x_base[i] = column * quads * (QUAD / 8) + x_word_of(thread);
    }
    clear_accumulators();
    if (tile.first_quad < tile.end_quad) {
        uint last_quad = tile.end_quad - 1;
        load_scales(tile.first_quad);
        [[unroll]] for (uint k_step = 0; k_step < PREFETCH_DEPTH; k_step++) {
            load_weights(tile.first_quad, last_quad, k_step);
            load_x(tile.first_quad, last_quad, k_step);
        }
        [[unroll]] for (uint i = 0; i < HALVES * 2; i++) {
            scales[i] = next_scales[i];
        }
        store(0, 0, thread);
        load_x(tile.first_quad, last_quad, PREFETCH_DEPTH);
        if (!IS_INT4) {
            load_weights(tile.first_quad, last_quad, PREFETCH_DEPTH);
        }
        barrier();
        for (uint quad = tile.first_quad; quad < tile.end_quad; quad++) {
            load_scales(min(quad + 1, last_quad));
            [[unroll]] for (uint k_step = 0; k_step < K_STEPS; k_step++) {
                if (k_step == K_STEPS - 1) {
                    [[unroll]] for (uint i = 0; i < HALVES * 2; i++) {
                        scales[i] = next_scales[i];
                    }
                }
                // Loads the operands of this K-step from shared memory first: the stores after them can
                // then overlap with the matrix units.
                multiply(k_step % 2);
                store((k_step + 1) % 2, k_step + 1, thread);
                load_x(quad, last_quad, k_step + 1 + PREFETCH_DEPTH);
                if (!IS_INT4) {
                    load_weights(quad, last_quad, k_step + 1 + PREFETCH_DEPTH);
                } else if (k_step % 2 == 0) {
                    // Both groups of a tile have been stored.
                    load_weights(quad, last_quad, k_step + 2 * SLOTS);
                }
                barrier();
            }
        }
    }
    finish(tile);
}
