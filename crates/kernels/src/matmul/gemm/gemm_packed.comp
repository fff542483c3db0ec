#version 460
#pragma tiers(T1)
#extension GL_GOOGLE_include_directive : require
// Y = W · X for many int16 columns, by packed byte dot products, without cooperative matrices. Integer
// weights only.
//
// A workgroup computes 8 · THREAD_ROWS rows × THREADS / 8 · THREAD_COLUMNS columns, a thread THREAD_ROWS ×
// THREAD_COLUMNS of them. A K-step is half a quad; it passes through shared memory as bytes: nibbles are
// expanded to bytes on the way, scales to floats. The next K-step is loaded into registers while this one
// is multiplied.
//
// The sum over 16 values of K is an integer, and exact. These sums are accumulated in the order of K by one
// chain of fma, independent of the number of columns and of the tile of a thread: a column gets the same bits
// in any batch, and from any variant.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint SCHEME = 0;
layout(constant_id = 2) const uint EPILOGUE = 0;
// Writes the gated product as int16; otherwise as f32.
layout(constant_id = 3) const bool INT16_OUTPUT = false;
// 4 or 8, so that a strip of gate and its strip of up belong to the same threads.
layout(constant_id = 4) const uint THREAD_ROWS = 8;
layout(constant_id = 5) const uint THREAD_COLUMNS = 4;
// Experts: a workgroup multiplies the columns of one group. As many pairs of a row and an expert share a column of x. 0
// where there are no experts.
layout(constant_id = 6) const uint PAIRS_PER_X = 0;

#include "weights.glsl"
#include "gated.glsl"
#include "int16.glsl"
#include "experts.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer OutputWords { uint data[]; };

layout(push_constant, scalar) uniform Push {
    Words4 values;
    Words scales;
    Words4 x;
    Floats x_scales;
    Active active_rows;
    Output y;
    Output y_scales;
    uint rows;
    uint k;
    uint columns;
    // Start of this block of the matrix in y, and the column stride of y.
    uint y_first;
    uint y_stride;
    // Words from the high bytes of int16 to the low ones.
    uint y_low;
    // Per group its expert, and per column of a group its pair.
    Words group_experts;
    Words group_pairs;
} push;

// Threads that share columns: neighbours in one subgroup.
const uint ROW_THREADS = 8;
const uint COLUMN_THREADS = THREADS / ROW_THREADS;
const uint ROWS = ROW_THREADS * THREAD_ROWS;
const uint COLUMNS = COLUMN_THREADS * THREAD_COLUMNS;
const uint STRIPS = ROWS / STRIP;
const uint SLICE = 32;

// Half groups of 16 values per K-step, which is half a quad.
const uint HALVES = 4;
const uint K_STEP = HALVES * GROUP / 2;
const uint K_STEP_TILES = TILES / 2;

// By half group. 8 neighbours read 8 consecutive rows, or the same column. They write halves of 4 rows, and
// all planes of a column of x: an odd stride avoids bank conflicts.
const uint W_STRIDE = ROWS + 4;
const uint X_STRIDE = COLUMNS + 1;
shared uvec4 w_bytes[HALVES * W_STRIDE];
shared uvec4 x_bytes[HALVES * 2 * X_STRIDE];
// By group, for a thread's rows: four adjacent at a time.
const uint FOURS = THREAD_ROWS / 4;
shared vec4 w_scales[2 * FOURS * ROW_THREADS];
shared vec4 w_minima[HAS_MIN ? 2 * FOURS * ROW_THREADS : 1];
shared float x_scales[HALVES * COLUMNS];
// Per half group the sum of x, which is multiplied by the minima.
shared float x_sums[HAS_MIN ? HALVES * COLUMNS : 1];

// Items to load per K-step (16 bytes of weights, a scale, or a half group of x), and items per thread.
const uint W_ITEMS = STRIPS * K_STEP_TILES * SLICE;
const uint W_PER_THREAD = (W_ITEMS + THREADS - 1) / THREADS;
const uint SCALE_ITEMS = ROWS * 2;
const uint SCALES_PER_THREAD = (SCALE_ITEMS + THREADS - 1) / THREADS;
const uint X_ITEMS = COLUMNS * HALVES;
const uint X_PER_THREAD = (X_ITEMS + THREADS - 1) / THREADS;

struct KStep {
    uvec4 weights[W_PER_THREAD];
    uint scales[SCALES_PER_THREAD];
    uint minima[SCALES_PER_THREAD];
    uvec4 high[X_PER_THREAD];
    uvec4 low[X_PER_THREAD];
    float x_scales[X_PER_THREAD];
};

// The columns of x that a thread loads.
uint x_columns[X_PER_THREAD];

// The pair of a column, or NO_EXPERT; without experts, the column.
uint pair_of(uint column) {
    return PAIRS_PER_X > 0 ? push.group_pairs.data[column] : column;
}

// Items past the end repeat the last one: no branch before the loads.
uint clamped_item(uint item, uint items) {
    return items % THREADS == 0 ? item : min(item, items - 1);
}

void load(out KStep loaded, uint first_strip, uint last_strip, uint k_step) {
    uint quads = (push.k + QUAD - 1) / QUAD;
    [[unroll]] for (uint i = 0; i < W_PER_THREAD; i++) {
        uint item = clamped_item(thread_index() + i * THREADS, W_ITEMS);
        uint tile = item / SLICE;
        uint strip = min(first_strip + tile / K_STEP_TILES, last_strip);
        uint at = (strip * quads + k_step / 2) * TILES + k_step % 2 * K_STEP_TILES + tile % K_STEP_TILES;
        loaded.weights[i] = push.values.data[at * SLICE + item % SLICE];
    }
    [[unroll]] for (uint i = 0; i < SCALES_PER_THREAD; i++) {
        uint row = clamped_item(thread_index() + i * THREADS, SCALE_ITEMS) / 2;
        uint strip = min(first_strip + row / STRIP, last_strip);
        // Words of two f16: two scales of a K-step, of four in a quad, then as many minima.
        uint at = ((strip * quads + k_step / 2) * STRIP + row % STRIP) * (HAS_MIN ? 4 : 2) + k_step % 2;
        loaded.scales[i] = push.scales.data[at];
        if (HAS_MIN) {
            loaded.minima[i] = push.scales.data[at + 2];
        }
    }
    [[unroll]] for (uint i = 0; i < X_PER_THREAD; i++) {
        uint item = clamped_item(thread_index() + i * THREADS, X_ITEMS);
        uint half_group = item % HALVES;
        uint at = x_columns[i] * quads * INT16_SCALES + k_step * HALVES + half_group;
        loaded.high[i] = push.x.data[at];
        loaded.low[i] = push.x.data[at + push.columns * quads * INT16_SCALES];
        loaded.x_scales[i] = push.x_scales.data[int16_scale_at(at)];
    }
}

// Dot product of 16 bytes and 16 int16 values: exact, since 16 · 128 · 32639 is far below 2³¹.
int dot16_int16(uvec4 bytes, uvec4 high, uvec4 low) {
    return (dot16(bytes, high) << 8) + dot16(bytes, low);
}

void store_shared(KStep loaded) {
    [[unroll]] for (uint i = 0; i < W_PER_THREAD; i++) {
        uint item = thread_index() + i * THREADS;
        if (W_ITEMS % THREADS != 0 && item >= W_ITEMS) {
            break;
        }
        uint tile = item / SLICE;
        uint row = tile / K_STEP_TILES * STRIP + item % SLICE / 2;
        uint half_group = item % 2;
        uvec4 bytes = loaded.weights[i];
        if (IS_INT4) {
            w_bytes[half_group * W_STRIDE + row] = low_nibbles(bytes);
            w_bytes[(half_group + 2) * W_STRIDE + row] = high_nibbles(bytes);
        } else {
            w_bytes[(tile % K_STEP_TILES * 2 + half_group) * W_STRIDE + row] = bytes;
        }
    }
    [[unroll]] for (uint i = 0; i < SCALES_PER_THREAD; i++) {
        uint item = thread_index() + i * THREADS;
        if (SCALE_ITEMS % THREADS != 0 && item >= SCALE_ITEMS) {
            break;
        }
        uint thread_row = item / 2 / ROW_THREADS;
        uint at = (item % 2 * FOURS + thread_row / 4) * ROW_THREADS + item / 2 % ROW_THREADS;
        uint shift = item % 2 * 16;
        float minimum = HAS_MIN ? unpackHalf2x16(loaded.minima[i] >> shift).x : 0.0;
        vec2 both = scale_of(unpackHalf2x16(loaded.scales[i] >> shift).x, minimum);
        w_scales[at][thread_row % 4] = both.x;
        if (HAS_MIN) {
            w_minima[at][thread_row % 4] = both.y;
        }
    }
    [[unroll]] for (uint i = 0; i < X_PER_THREAD; i++) {
        uint item = thread_index() + i * THREADS;
        if (X_ITEMS % THREADS != 0 && item >= X_ITEMS) {
            break;
        }
        uint half_group = item % HALVES;
        uint column = item / HALVES;
        x_bytes[half_group * 2 * X_STRIDE + column] = loaded.high[i];
        x_bytes[(half_group * 2 + 1) * X_STRIDE + column] = loaded.low[i];
        x_scales[half_group * COLUMNS + column] = loaded.x_scales[i];
        if (HAS_MIN) {
            int sum = dot16_int16(uvec4(0x01010101u), loaded.high[i], loaded.low[i]);
            x_sums[half_group * COLUMNS + column] = float(sum) * loaded.x_scales[i];
        }
    }
}

const uint SUMS = THREAD_ROWS * THREAD_COLUMNS;

// Adds one half group of the K-step to a thread's accumulators.
void multiply(inout float sums[SUMS], uint half_group, uint row_thread, uint first_column) {
    uvec4 high[THREAD_COLUMNS];
    uvec4 low[THREAD_COLUMNS];
    float factors[THREAD_COLUMNS];
    [[unroll]] for (uint c = 0; c < THREAD_COLUMNS; c++) {
        high[c] = x_bytes[half_group * 2 * X_STRIDE + first_column + c];
        low[c] = x_bytes[(half_group * 2 + 1) * X_STRIDE + first_column + c];
        factors[c] = x_scales[half_group * COLUMNS + first_column + c];
    }
    [[unroll]] for (uint r = 0; r < THREAD_ROWS; r++) {
        uvec4 bytes = w_bytes[half_group * W_STRIDE + r * ROW_THREADS + row_thread];
        float scale = w_scales[(half_group / 2 * FOURS + r / 4) * ROW_THREADS + row_thread][r % 4];
        [[unroll]] for (uint c = 0; c < THREAD_COLUMNS; c++) {
            float product = float(dot16_int16(bytes, high[c], low[c])) * factors[c];
            sums[r * THREAD_COLUMNS + c] = fma(product, scale, sums[r * THREAD_COLUMNS + c]);
        }
    }
}

// Adds the contribution of a group's minima.
void add_minima(inout float sums[SUMS], uint group, uint row_thread, uint first_column) {
    [[unroll]] for (uint c = 0; c < THREAD_COLUMNS; c++) {
        uint at = group * 2 * COLUMNS + first_column + c;
        float x_sum = x_sums[at] + x_sums[at + COLUMNS];
        [[unroll]] for (uint r = 0; r < THREAD_ROWS; r++) {
            float minimum = w_minima[(group * FOURS + r / 4) * ROW_THREADS + row_thread][r % 4];
            sums[r * THREAD_COLUMNS + c] = fma(x_sum, minimum, sums[r * THREAD_COLUMNS + c]);
        }
    }
}

// 8 neighbours hold 16 gated values of a column, rows i and i + 8 each: half a group, with its own scale.
void write_int16(uint first, uint i, vec2 values) {
    uint largest = max(magnitude(values.x), magnitude(values.y));
    [[unroll]] for (uint mask = 1; mask < ROW_THREADS; mask *= 2) {
        largest = max(largest, subgroupShuffleXor(largest, mask));
    }
    float factor = int16_factor(largest);
    OutputWords words = OutputWords(push.y);
    [[unroll]] for (uint j = 0; j < 2; j++) {
        uvec2 both = int16_shuffled_words(int16_of(values[j], factor), i);
        if (i % 4 == 0) {
            uint at = (first + j * ROW_THREADS + i) / 4;
            words.data[at] = both.x;
            words.data[push.y_low + at] = both.y;
        }
    }
    if (i == 0) {
        push.y_scales.data[int16_scale_at(first / STRIP)] = int16_scale(largest);
    }
}

void main() {
    uint columns = PAIRS_PER_X > 0 ? 0 : min(push.columns, push.active_rows.rows);
    uint first_column = gl_WorkGroupID.y * COLUMNS;
    uint expert = PAIRS_PER_X > 0 ? push.group_experts.data[gl_WorkGroupID.y] : 0;
    if (first_column >= columns && PAIRS_PER_X == 0 || expert == NO_EXPERT) {
        return;
    }
    [[unroll]] for (uint i = 0; i < X_PER_THREAD; i++) {
        uint column = first_column + clamped_item(thread_index() + i * THREADS, X_ITEMS) / HALVES;
        // Columns past the last repeat it, and unused ones the first, which is never unused; their results are discarded.
        x_columns[i] = min(column, push.columns - 1);
        if (PAIRS_PER_X > 0) {
            uint pair = pair_of(column);
            x_columns[i] = (pair == NO_EXPERT ? pair_of(first_column) : pair) / PAIRS_PER_X;
        }
    }
    uint row_thread = thread_index() % ROW_THREADS;
    uint thread_column = thread_index() / ROW_THREADS * THREAD_COLUMNS;
    uint k_steps = (push.k + K_STEP - 1) / K_STEP;
    uint strips = (push.rows + STRIP - 1) / STRIP;

    for (uint tile = gl_WorkGroupID.x; tile * STRIPS < strips; tile += gl_NumWorkGroups.x) {
        float sums[SUMS];
        [[unroll]] for (uint i = 0; i < SUMS; i++) {
            sums[i] = 0.0;
        }
        KStep loaded;
        uint first_strip = expert * strips + tile * STRIPS;
        uint last_strip = expert * strips + strips - 1;
        load(loaded, first_strip, last_strip, 0);
        for (uint k_step = 0; k_step < k_steps; k_step++) {
            barrier();
            store_shared(loaded);
            barrier();
            if (k_step + 1 < k_steps) {
                load(loaded, first_strip, last_strip, k_step + 1);
            }
            // Not unrolled: compilers would load everything at once and run out of registers.
            [[dont_unroll]] for (uint half_group = 0; half_group < HALVES; half_group++) {
                multiply(sums, half_group, row_thread, thread_column);
            }
            if (HAS_MIN) {
                [[dont_unroll]] for (uint group = 0; group < 2; group++) {
                    add_minima(sums, group, row_thread, thread_column);
                }
            }
        }

        [[unroll]] for (uint c = 0; c < THREAD_COLUMNS; c++) {
            uint column = pair_of(first_column + thread_column + c);
            if (PAIRS_PER_X > 0 ? column == NO_EXPERT : column >= columns) {
                continue;
            }
            uint at = column * push.y_stride + push.y_first;
            if (EPILOGUE == 0) {
                [[unroll]] for (uint r = 0; r < THREAD_ROWS; r++) {
                    uint row = tile * ROWS + r * ROW_THREADS + row_thread;
                    if (row < push.rows) {
                        push.y.data[at + row] = sums[r * THREAD_COLUMNS + c];
                    }
                }
                continue;
            }
            // A thread's rows in a pair of strips: two of gate, the same two of up.
            [[unroll]] for (uint r = 0; r < THREAD_ROWS; r += 4) {
                uint pair = tile * FOURS + r / 4;
                if (pair * 2 >= strips) {
                    continue;
                }
                vec2 values;
                [[unroll]] for (uint j = 0; j < 2; j++) {
                    values[j] = gated(sums[(r + j) * THREAD_COLUMNS + c], sums[(r + j + 2) * THREAD_COLUMNS + c]);
                }
                uint first = at + pair * STRIP;
                if (INT16_OUTPUT) {
                    write_int16(first, row_thread, values);
                    continue;
                }
                push.y.data[first + row_thread] = values.x;
                push.y.data[first + ROW_THREADS + row_thread] = values.y;
            }
        }
    }
}
