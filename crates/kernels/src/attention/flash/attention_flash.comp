#version 460
#pragma tiers(T1, T2)
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// o = softmax(q · kᵀ) · v of many rows of a few sequences over the pages of the cache, on cooperative
// matrices.
//
// A pair is a row and one of the query heads that share a KV head. A workgroup takes PAIRS of them in row
// order, 16 per subgroup, so that every key and value that it loads serves all heads of the group. Keys are
// processed in blocks of KEYS positions, which start at multiples of KEYS and so never cross a page. Blocks
// go through shared memory: keys while the values are in flight, values while the keys of the next block are.
// A subgroup's scores go from the accumulators of q · kᵀ to its scratch in shared memory, where its threads
// find the maximum of each row; the weights go back as f16, and the accumulators of weights · v stay in registers
// throughout. The sum of the weights is one more product, with ones: it sums the weights as rounded, and has
// the layout of the other accumulators.
//
// Where the layout of fragments is known, scores never leave their registers: they become weights right before the
// product that they are needed for, beside the products before it. The code is kept short, since a loop that exceeds the
// instruction cache takes half as long again.
//
// Weights are 2^(score − reference score), with a reference score per row. Online softmax would use the maximum
// so far and rescale the accumulators whenever it grows. Here the reference is raised to the maximum only when
// that exceeds it by more than RESCALE_MARGIN, so rescaling is rare. Each row decides by its own scores alone.
//
// The accumulators of a head longer than 256 exceed a thread's registers. HEAD_PARTS subgroups then share 16
// pairs, each with a part of the head: it computes that part of every score and of every output. They add up
// the parts of the scores in shared memory, always in order, and find the same weights. Values take the place
// of the keys there.
//
// A head that is not a multiple of 16 is padded with zeros in shared memory, but neither in the cache nor in
// queries and outputs. With softmax in registers, the padding also sums the weights, and masks the keys past the end of
// an image.
//
// A row sees the keys of its window up to its last visible position: its own, or the last of its image, whose
// rows see each other in both directions.
//
// A key outside a row's range does not change its sums, not even their rounding, and a block without keys of
// a subgroup's rows is skipped: a row's result does not depend on the other rows, provided that matrix units
// treat all their rows alike.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
// Threads per subgroup.
layout(constant_id = 1) const uint LANES = 32;
layout(constant_id = 2) const uint HEAD_DIM = 128;
layout(constant_id = 3) const uint KEYS = 32;
// Positions per page.
layout(constant_id = 4) const uint PAGE_SIZE = 64;
layout(constant_id = 5) const uint KV_BITS = 16;
// Keeps queries in registers; otherwise in shared memory.
layout(constant_id = 6) const bool QUERIES_IN_REGISTERS = true;
// Writes f16 activations; otherwise f32.
layout(constant_id = 7) const bool O_F16 = true;
// Accumulators per score, added up at the end: dependent products are slow where a subgroup has few of them.
layout(constant_id = 8) const uint CHAINS = 2;
// Each row is its own tile, and may belong to any sequence.
layout(constant_id = 9) const bool INDEPENDENT_ROWS = false;
// Subgroups that share 16 pairs, each with a part of the head.
layout(constant_id = 10) const uint HEAD_PARTS = 1;
// Scores become weights in the registers that they are in. Only for the layout of `fragment_column`, and heads without
// parts.
layout(constant_id = 11) const bool SOFTMAX_IN_REGISTERS = false;
// Matrices of 16 pairs per subgroup, which share the keys and values that it loads. More than one only with softmax in
// registers.
layout(constant_id = 12) const uint ROW_TILES = 1;
// Queries, keys and values are rows of f16 activations, as one product writes them, instead of f32 and pages. Every row
// sees its whole chunk.
layout(constant_id = 13) const bool FROM_ROWS = false;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint first; uint end; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output { uvec4 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats4 q;
    Words4 k;
    Words4 v;
    Numbers positions;
    // Last position that each row sees, at or after its own. Never decreases within a chunk.
    Numbers last_visible;
    Numbers slots;
    Numbers table;
    // Active rows first..end.
    Active active_rows;
    // End row of each chunk; a chunk is a run of rows of one sequence.
    Numbers chunk_ends;
    // Rows at a stride of o_stride values.
    Output o;
    uint heads;
    uint kv_heads;
    uint o_stride;
    uint table_stride;
    // Sliding window: positions up to its own that a row attends to; 0 for all.
    uint window;
    // Maximum number of chunks.
    uint chunks;
    // FROM_ROWS: units of 8 values from one row to the next, and a factor of the scores.
    uint row_units;
    float scale;
} push;

#include "range.glsl"
#include "chunks.glsl"
#include "half.glsl"
#include "kv.glsl"
#include "f16.glsl"

const uint SUBGROUPS = THREADS / LANES;
const uint PAIRS = 16 * ROW_TILES * SUBGROUPS / HEAD_PARTS;
// Matrices per part of a head, and per block of keys.
const uint PART_TILES = (HEAD_DIM / HEAD_PARTS + 15) / 16;
const uint KEY_TILES = KEYS / 16;

// Shared memory: queries, keys and values as lines of units; a unit is 8 f16 values. A line is padded to an
// even number of units: with one more unit between lines, the same unit of 8 lines covers all banks. Queries
// kept in registers are no longer needed here when the first key arrives.
const uint UNITS = HEAD_DIM / 8;
const uint PADDED_UNITS = UNITS + UNITS % 2;
const uint STRIDE = PADDED_UNITS + 1;
const uint Q_AT = 0;
const uint K_AT = QUERIES_IN_REGISTERS ? 0 : PAIRS * STRIDE;
const uint V_AT = HEAD_PARTS > 1 ? K_AT : K_AT + KEYS * STRIDE;
const uint LINES_END = V_AT + KEYS * STRIDE;
// Then scratch per subgroup: 16 rows of scores, f32, followed by 16 rows of weights, f16. The padding is such
// that ROW_THREADS threads of each of 4 rows read scores from all banks. Queries kept in registers and outputs
// use the memory of the scratch as well.
const uint QUERIES_END = PAIRS * STRIDE;
const uint SCRATCH_AT = LINES_END;
const uint SCORES_STRIDE = KEYS / 4 + 2;
const uint WEIGHTS_AT = 16 * SCORES_STRIDE;
const uint WEIGHTS_STRIDE = KEYS / 8 + 1;
const uint SUBGROUP_SCRATCH = SOFTMAX_IN_REGISTERS ? 0 : WEIGHTS_AT + 16 * WEIGHTS_STRIDE;
// The rescaling factors reuse the memory of the scores.
const uint FACTORS_STRIDE = 5;
const uint SCRATCH_END = SCRATCH_AT + SUBGROUPS * SUBGROUP_SCRATCH;
// Outputs reuse all of this memory, this many matrices of a row at a time.
const uint OUT_STRIDE = PADDED_UNITS / HEAD_PARTS + 1;
const uint OUT_TILES = OUT_STRIDE / 4;
const uint OUT_STEPS = (PART_TILES + OUT_TILES - 1) / OUT_TILES;
const uint OUT_END = SUBGROUPS * 16 * OUT_STRIDE;
const uint LATER_END = SCRATCH_END > OUT_END ? SCRATCH_END : OUT_END;
shared uvec4 units[LATER_END > QUERIES_END ? LATER_END : QUERIES_END];
#include "matrix.glsl"

// Threads that share a row of scores, and rows per thread.
const uint ROW_THREADS = 2;
const uint LANE_ROWS = 16 * ROW_THREADS / LANES;
// Vec4s of such a row per thread.
const uint LANE_VEC4S = KEYS / 4 / ROW_THREADS;

// The score of a masked key, and the reference score before the first block: no sum of f16 products comes near
// either, and 2 to the power of their difference is 0.
const float MASKED = -3.0e38;
const float NO_SCORE = -1.0e30;
// How far scores may exceed the reference score before the accumulators are rescaled, as a power of two. Weights
// then stay at or below 2⁸: f16 holds up to 2¹⁶, and their sums are f32.
const float RESCALE_MARGIN = 8.0;
const float LOG2_E = 1.4426950408889634;

// Elements per thread of an operand a and of an accumulator where softmax is computed in registers, and the rows that
// they are in: elements 0 to 3 in row lane / 4, the others 8 rows below.
const uint FRAGMENT = 8;
const uint FRAGMENT_ROWS = 2;
const uint FRAGMENT_ROW_THREADS = 4;

// The column of such an element.
uint fragment_column(uint i) {
    return gl_SubgroupInvocationID % FRAGMENT_ROW_THREADS * 2 + i % 2 + i / 2 % 2 * 8;
}

// The sums of weights are one more column of o: a column of ones in the padding of values.
const bool SUM_IN_PADDING = SOFTMAX_IN_REGISTERS && PADDED_UNITS > UNITS;
// Keys past the end of a chunk are masked by one more column: 1.0 in the padding of queries, and in that of such a key a
// number that makes its weight 0.
const bool MASK_IN_PADDING = SUM_IN_PADDING && FROM_ROWS && !QUERIES_IN_REGISTERS;
const uint HALF_ONE = 0x3c00;
const uint HALF_LOWEST = 0xfbff;

// 16-byte loads per line, and per thread and block.
const uint LINE_LOADS = HEAD_DIM * KV_BITS / 128;
const uint LOADS = (KEYS * LINE_LOADS + THREADS - 1) / THREADS;

// The key (or value) within its block of load i of a thread.
uint key_of(uint i, uint thread) {
    return min((i * THREADS + thread) / LINE_LOADS, KEYS - 1);
}

// The index within its line of load i of a thread.
uint load_in_line(uint i, uint thread) {
    return (i * THREADS + thread) % LINE_LOADS;
}

// Data in flight from the cache to shared memory; for int8 also the words with the scales.
struct Fetched {
    uvec4 words[LOADS];
    uint scales[KV_BITS == 8 ? LOADS : 1];
};

// Starts loading a block; `page_line` is the first line of its page, or the first row of the chunk. Nothing outside
// first…last is read: it may hold anything, even NaN. An in-range line is read instead, so that a weight of 0 cancels it.
void fetch(Words4 cache, uint page_line, uint block, uint first, uint last, uint thread, out Fetched fetched) {
    unrolled for (uint i = 0; i < LOADS; i++) {
        uint position = block * KEYS + key_of(i, thread);
        position = FROM_ROWS ? min(position, last) : clamp(position, first, last);
        uint line = page_line + position % PAGE_SIZE;
        uint load = load_in_line(i, thread);
        if (INT8) {
            fetched.words[i] = cache.data[int8_at(line) / 4 + load];
            // 16 values are half a group; a word has the scales of two groups.
            fetched.scales[i] = Numbers(cache).data[int8_scales_at(line) + load / 4];
        } else {
            uint at = FROM_ROWS ? (page_line + position) * push.row_units + gl_WorkGroupID.x * UNITS : line * UNITS;
            fetched.words[i] = cache.data[at + load];
        }
    }
}

uvec2 packed_halves(vec4 values) {
    return uvec2(packFloat2x16(f16vec2(values.xy)), packFloat2x16(f16vec2(values.zw)));
}

// Stores the loaded block into lines from `at` on.
void store_block(uint at, uint thread, Fetched fetched) {
    unrolled for (uint i = 0; i < LOADS; i++) {
        // Past the end, a thread has loaded part of the last line, as another thread has, and stores the same: this needs no
        // branch.
        uint line = at + key_of(i, thread) * STRIDE;
        uint load = load_in_line(i, thread);
        if (INT8) {
            unrolled for (uint h = 0; h < 2; h++) {
                uint scale = int8_scale_of(fetched.scales[i], 4 * load);
                uvec2 low = packed_halves(int8_values(fetched.words[i][2 * h], scale));
                uvec2 high = packed_halves(int8_values(fetched.words[i][2 * h + 1], scale));
                units[line + 2 * load + h] = uvec4(low, high);
            }
        } else {
            units[line + load] = fetched.words[i];
        }
    }
}

// Sets the masks of a block's keys, after the first: all zero until the last block, and so only there.
void mask_keys(uint block, uint last, uint thread) {
    if (MASK_IN_PADDING && block * KEYS + KEYS - 1 > last) {
        for (uint key = thread; key < KEYS; key += THREADS) {
            units[K_AT + key * STRIDE + UNITS].x = block * KEYS + key > last ? HALF_LOWEST : 0;
        }
    }
}

// The first line of a block's page, or the chunk's first row.
uint page_line_of(uint pages, uint block, uint kv_head, uint chunk_row) {
    return FROM_ROWS ? chunk_row : (push.table.data[pages + block * KEYS / PAGE_SIZE] * push.kv_heads + kv_head) * PAGE_SIZE;
}

void main() {
    uint group = push.heads / push.kv_heads;
    uint kv_head = gl_WorkGroupID.x;
    // The last tile of a prompt has the most keys, and runs first.
    uint tile_number = gl_NumWorkGroups.y - 1 - gl_WorkGroupID.y;
    uint first_active = push.active_rows.first;
    uint end_row = push.active_rows.end;
    Tile tile = Tile(first_active + tile_number, min(first_active + tile_number + 1, end_row), 0);
    if (!INDEPENDENT_ROWS) {
        tile = tile_of_chunks(push.chunk_ends, push.chunks, first_active, end_row, group, PAIRS, tile_number);
    }
    uint pairs = tile.end * group;
    uint first_pair = tile.first * group + tile.number * PAIRS;
    if (first_pair >= pairs) {
        return;
    }
    uint first_row = first_pair / group;
    uint last_row = min((first_pair + PAIRS - 1) / group, tile.end - 1);
    uint pages = FROM_ROWS ? 0 : push.slots.data[first_row] * push.table_stride;
    // Position of the first row; row r of the tile is at r more.
    uint position = push.positions.data[first_row];
    uint first = first_position(position, push.window);
    uint last = push.last_visible.data[last_row];

    uint thread = thread_index();
    uint lane = gl_SubgroupInvocationID;
    uint row_thread = lane % ROW_THREADS;
    // The subgroup's first pair. A subgroup without pairs helps to load, and writes nothing.
    uint own_pair = first_pair + gl_SubgroupID / HEAD_PARTS * 16 * ROW_TILES;
    bool is_empty = own_pair >= pairs;
    uint own_first_row = min(own_pair / group, last_row);
    uint own_last_row = min((own_pair + 16 * ROW_TILES - 1) / group, last_row);
    // Keys that any of the subgroup's rows sees, and keys that all of them see.
    uint any_first = first_position(position + own_first_row - first_row, push.window);
    uint any_last = push.last_visible.data[own_last_row];
    uint all_first = first_position(position + own_last_row - first_row, push.window);
    uint all_last = push.last_visible.data[own_first_row];
    uint scratch_at = SCRATCH_AT + gl_SubgroupID * SUBGROUP_SCRATCH;
    // The first matrix of the subgroup's part of the head, and the scores of the first part.
    uint first_tile = gl_SubgroupID % HEAD_PARTS * PART_TILES;
    uint scores_at = scratch_at - gl_SubgroupID % HEAD_PARTS * SUBGROUP_SCRATCH;

    uint block = first / KEYS;
    uint end = last / KEYS + 1;
    uint page_line = page_line_of(pages, block, kv_head, first_row - position);
    Fetched fetched;
    fetch(push.k, page_line, block, first, last, thread, fetched);

    for (uint i = thread; i < PAIRS * UNITS; i += THREADS) {
        uint pair = min(first_pair + i / UNITS, pairs - 1);
        uint at = ((pair / group * push.heads + kv_head * group + pair % group) * UNITS + i % UNITS) * 2;
        uvec4 query;
        if (FROM_ROWS) {
            // Of the row's heads; in the order of f16 activations, as the keys are.
            uint row_at = pair / group * push.row_units + (kv_head * group + pair % group) * UNITS + i % UNITS;
            uvec4 halves = Words4(push.q).data[row_at];
            float factor = push.scale * (F16_UNIT * F16_UNIT * LOG2_E);
            query.xy = packed_halves(vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y)) * factor);
            query.zw = packed_halves(vec4(unpackHalf2x16(halves.z), unpackHalf2x16(halves.w)) * factor);
        } else {
            query.xy = packed_halves(push.q.data[at] * LOG2_E);
            query.zw = packed_halves(push.q.data[at + 1] * LOG2_E);
        }
        units[Q_AT + i / UNITS * STRIDE + i % UNITS] = query;
    }
    if (PADDED_UNITS > UNITS) {
        // Nothing else is written there until the outputs are.
        const uint END = LINES_END > QUERIES_END ? LINES_END : QUERIES_END;
        for (uint at = thread * STRIDE + UNITS; at < END; at += THREADS * STRIDE) {
            // Queries that go to registers are in the memory of keys and values, and have some of these ones too: they meet
            // zeros of keys.
            bool one_in_value = SUM_IN_PADDING && at >= V_AT && at < LINES_END;
            bool one_in_query = MASK_IN_PADDING && at < QUERIES_END;
            bool masked = MASK_IN_PADDING && at >= K_AT && at < V_AT && block * KEYS + (at - K_AT) / STRIDE > last;
            units[at] = uvec4(one_in_value || one_in_query ? HALF_ONE : masked ? HALF_LOWEST : 0, 0, 0, 0);
        }
    }
    uint q_at = Q_AT + gl_SubgroupID / HEAD_PARTS * 16 * ROW_TILES * STRIDE + 2 * first_tile;
    MatrixA queries[QUERIES_IN_REGISTERS ? ROW_TILES * PART_TILES : 1];
    if (QUERIES_IN_REGISTERS) {
        barrier();
        unrolled for (uint t = 0; t < ROW_TILES; t++) {
            unrolled for (uint d = 0; d < PART_TILES; d++) {
                uint query = QUERIES_IN_REGISTERS ? t * PART_TILES + d : 0;
                matrix_load_a(queries[query], q_at + 16 * t * STRIDE + 2 * d, STRIDE);
            }
        }
        barrier();
    }

    MatrixSums o[ROW_TILES * PART_TILES];
    MatrixSums sum[ROW_TILES];
    unrolled for (uint d = 0; d < ROW_TILES * PART_TILES; d++) {
        matrix_zero(o[d]);
    }
    unrolled for (uint t = 0; t < ROW_TILES; t++) {
        matrix_zero(sum[t]);
    }
    MatrixB ones;
    matrix_ones(ones);
#if TIER >= 2
    // As below, for softmax in registers.
    float fragment_reference[ROW_TILES * FRAGMENT_ROWS];
    float fragment_sum[ROW_TILES * FRAGMENT_ROWS];
    unrolled for (uint r = 0; r < ROW_TILES * FRAGMENT_ROWS; r++) {
        fragment_reference[r] = NO_SCORE;
        fragment_sum[r] = 0.0;
    }
#endif
    float reference_score[LANE_ROWS];
    uint lane_first[LANE_ROWS];
    uint lane_last[LANE_ROWS];
    unrolled for (uint i = 0; i < LANE_ROWS; i++) {
        reference_score[i] = NO_SCORE;
        uint pair = min(own_pair + i * (LANES / ROW_THREADS) + lane / ROW_THREADS, pairs - 1);
        lane_first[i] = first_position(position + pair / group - first_row, push.window);
        lane_last[i] = push.last_visible.data[pair / group];
    }

    store_block(K_AT, thread, fetched);
    barrier();
    for (; block < end; block++) {
        fetch(push.v, page_line, block, first, last, thread, fetched);
        // Loaded early, so that the page is known when the keys of the next block are loaded.
        page_line = page_line_of(pages, min(block + 1, end - 1), kv_head, first_row - position);
        uint block_first = block * KEYS;
        uint block_last = block_first + KEYS - 1;
        bool has_keys = !is_empty && block_first <= any_last && block_last >= any_first;
        bool all_in_range = block_first >= all_first && block_last <= all_last;
        // By matrix of pairs, matrix of keys and chain.
        MatrixSums scores[ROW_TILES * KEY_TILES * CHAINS];
        if (has_keys) {
            unrolled for (uint i = 0; i < ROW_TILES * KEY_TILES * CHAINS; i++) {
                matrix_zero(scores[i]);
            }
            unrolled for (uint d = 0; d < PART_TILES; d++) {
                MatrixA q[ROW_TILES];
                unrolled for (uint t = 0; t < ROW_TILES; t++) {
                    if (QUERIES_IN_REGISTERS) {
                        q[t] = queries[QUERIES_IN_REGISTERS ? t * PART_TILES + d : 0];
                    } else {
                        matrix_load_a(q[t], q_at + 16 * t * STRIDE + 2 * d, STRIDE);
                    }
                }
                unrolled for (uint k = 0; k < KEY_TILES; k++) {
                    MatrixB keys;
                    matrix_load_b_columns(keys, K_AT + 16 * k * STRIDE + 2 * (first_tile + d), STRIDE);
                    unrolled for (uint t = 0; t < ROW_TILES; t++) {
                        matrix_multiply(q[t], keys, scores[(t * KEY_TILES + k) * CHAINS + d % CHAINS]);
                    }
                }
            }
            unrolled for (uint k = 0; k < ROW_TILES * KEY_TILES; k++) {
                unrolled for (uint chain = 1; chain < CHAINS; chain++) {
                    matrix_add(scores[k * CHAINS], scores[k * CHAINS + chain]);
                }
                if (!SOFTMAX_IN_REGISTERS) {
                    matrix_store_sums(scores[k * CHAINS], scratch_at + 4 * k, SCORES_STRIDE);
                }
            }
            if (HEAD_PARTS == 1 && !SOFTMAX_IN_REGISTERS) {
                subgroup_shared_barrier();
            }
        }
        if (HEAD_PARTS > 1) {
            // All parts of the scores are visible; the keys are no longer needed.
            barrier();
        }
        bool any_rescaled = false;
        float factors[LANE_ROWS];
        if (has_keys && !SOFTMAX_IN_REGISTERS) {
            unrolled for (uint i = 0; i < LANE_ROWS; i++) {
                uint row = i * (LANES / ROW_THREADS) + lane / ROW_THREADS;
                vec4 weights[LANE_VEC4S];
                unrolled for (uint j = 0; j < LANE_VEC4S; j++) {
                    uint at = scores_at + row * SCORES_STRIDE + j * ROW_THREADS + row_thread;
                    weights[j] = uintBitsToFloat(units[at]);
                    unrolled for (uint part = 1; part < HEAD_PARTS; part++) {
                        weights[j] += uintBitsToFloat(units[at + part * SUBGROUP_SCRATCH]);
                    }
                }
                if (!all_in_range) {
                    unrolled for (uint j = 0; j < LANE_VEC4S; j++) {
                        uvec4 key = block_first + (j * ROW_THREADS + row_thread) * 4 + uvec4(0, 1, 2, 3);
                        bvec4 in_range = equal(clamp(key, uvec4(lane_first[i]), uvec4(lane_last[i])), key);
                        weights[j] = mix(vec4(MASKED), weights[j], in_range);
                    }
                }
                vec4 largest4 = weights[0];
                unrolled for (uint j = 1; j < LANE_VEC4S; j++) {
                    largest4 = max(largest4, weights[j]);
                }
                float largest = max(max(largest4.x, largest4.y), max(largest4.z, largest4.w));
                unrolled for (uint distance = 1; distance < ROW_THREADS; distance *= 2) {
                    largest = max(largest, subgroupShuffleXor(largest, distance));
                }
                bool rescales = largest > reference_score[i] + RESCALE_MARGIN;
                factors[i] = rescales ? exp2(reference_score[i] - largest) : 1.0;
                reference_score[i] = rescales ? largest : reference_score[i];
                any_rescaled = any_rescaled || rescales;
                unrolled for (uint j = 0; j < LANE_VEC4S; j++) {
                    uvec2 halves = packed_halves(exp2(weights[j] - reference_score[i]));
                    uint unit_half = j * ROW_THREADS + row_thread;
                    uint at = scratch_at + WEIGHTS_AT + row * WEIGHTS_STRIDE + unit_half / 2;
                    units[at][unit_half % 2 * 2] = halves.x;
                    units[at][unit_half % 2 * 2 + 1] = halves.y;
                }
            }
        }

        store_block(V_AT, thread, fetched);
        // Values are visible to all, and weights to the subgroup; the keys are no longer needed.
        barrier();
        if (block + 1 < end) {
            fetch(push.k, page_line, block + 1, first, last, thread, fetched);
        }
        if (has_keys) {
            // The memory of the scores is free: all threads have read them.
            if (!SOFTMAX_IN_REGISTERS && subgroupAny(any_rescaled)) {
                unrolled for (uint i = 0; i < LANE_ROWS; i++) {
                    uint row = i * (LANES / ROW_THREADS) + lane / ROW_THREADS;
                    unrolled for (uint j = 0; j < 4 / ROW_THREADS; j++) {
                        uint at = scratch_at + row * FACTORS_STRIDE + j * ROW_THREADS + row_thread;
                        units[at] = uvec4(floatBitsToUint(factors[i]));
                    }
                }
                subgroup_shared_barrier();
                MatrixSums factor_matrix;
                matrix_load_sums(factor_matrix, scratch_at, FACTORS_STRIDE);
                unrolled for (uint d = 0; d < PART_TILES; d++) {
                    matrix_scale(o[d], factor_matrix);
                }
                matrix_scale(sum[0], factor_matrix);
            }
#if TIER >= 2
            if (SOFTMAX_IN_REGISTERS) {
                if (!MASK_IN_PADDING && !all_in_range) {
                    unrolled for (uint r = 0; r < ROW_TILES * FRAGMENT_ROWS; r++) {
                        uint pair = min(own_pair + lane / FRAGMENT_ROW_THREADS + 8 * r, pairs - 1);
                        uint row_first = first_position(position + pair / group - first_row, push.window);
                        uint row_last = push.last_visible.data[pair / group];
                        unrolled for (uint k = 0; k < KEY_TILES; k++) {
                            unrolled for (uint i = 0; i < 4; i++) {
                                uint key = block_first + 16 * k + fragment_column(i);
                                bool in_range = clamp(key, row_first, row_last) == key;
                                uint matrix = (r / FRAGMENT_ROWS * KEY_TILES + k) * CHAINS;
                                uint e = r % FRAGMENT_ROWS * 4 + i;
                                float score = scores[matrix][e];
                                scores[matrix][e] = in_range ? score : MASKED;
                            }
                        }
                    }
                }
                // Every thread looks at its own scores first: mostly none is too large, and the maximum of a row does not
                // matter.
                float largest[ROW_TILES * FRAGMENT_ROWS];
                bool exceeds = false;
                unrolled for (uint r = 0; r < ROW_TILES * FRAGMENT_ROWS; r++) {
                    largest[r] = MASKED;
                    unrolled for (uint i = 0; i < 4 * KEY_TILES; i++) {
                        uint matrix = (r / FRAGMENT_ROWS * KEY_TILES + i / 4) * CHAINS;
                        largest[r] = max(largest[r], scores[matrix][r % FRAGMENT_ROWS * 4 + i % 4]);
                    }
                    exceeds = exceeds || largest[r] > fragment_reference[r] + RESCALE_MARGIN;
                }
                if (subgroupAny(exceeds)) {
                    unrolled for (uint r = 0; r < ROW_TILES * FRAGMENT_ROWS; r++) {
                        unrolled for (uint distance = 1; distance < FRAGMENT_ROW_THREADS; distance *= 2) {
                            largest[r] = max(largest[r], subgroupShuffleXor(largest[r], distance));
                        }
                        bool row_rescales = largest[r] > fragment_reference[r] + RESCALE_MARGIN;
                        float factor = row_rescales ? exp2(fragment_reference[r] - largest[r]) : 1.0;
                        fragment_reference[r] = row_rescales ? largest[r] : fragment_reference[r];
                        fragment_sum[r] *= factor;
                        unrolled for (uint i = 0; i < 4 * PART_TILES; i++) {
                            o[r / FRAGMENT_ROWS * PART_TILES + i / 4][r % FRAGMENT_ROWS * 4 + i % 4] *= factor;
                        }
                    }
                }
            }
#endif
            unrolled for (uint k = 0; k < KEY_TILES; k++) {
                MatrixA weights[ROW_TILES];
#if TIER >= 2
                // Right before they are needed, so that the next ones are computed beside the products.
                if (SOFTMAX_IN_REGISTERS) {
                    unrolled for (uint t = 0; t < ROW_TILES; t++) {
                        uint matrix = (t * KEY_TILES + k) * CHAINS;
                        unrolled for (uint i = 0; i < FRAGMENT; i += 2) {
                            uint r = t * FRAGMENT_ROWS + i / 4;
                            vec2 two = vec2(scores[matrix][i], scores[matrix][i + 1]) - fragment_reference[r];
                            f16vec2 rounded = unpackFloat2x16(packHalf2x16(exp2(two)));
                            weights[t][i] = rounded.x;
                            weights[t][i + 1] = rounded.y;
                            if (!SUM_IN_PADDING) {
                                // As rounded.
                                fragment_sum[r] += float(rounded.x) + float(rounded.y);
                            }
                        }
                    }
                }
#endif
                if (!SOFTMAX_IN_REGISTERS) {
                    matrix_load_a(weights[0], scratch_at + WEIGHTS_AT + 2 * k, WEIGHTS_STRIDE);
                    matrix_multiply(weights[0], ones, sum[0]);
                }
                unrolled for (uint d = 0; d < PART_TILES; d++) {
                    MatrixB values;
                    matrix_load_b_rows(values, V_AT + 16 * k * STRIDE + 2 * (first_tile + d), STRIDE);
                    unrolled for (uint t = 0; t < ROW_TILES; t++) {
                        matrix_multiply(weights[t], values, o[t * PART_TILES + d]);
                    }
                }
            }
        }
        if (HEAD_PARTS > 1) {
            // The values are no longer needed.
            barrier();
        }
        if (block + 1 < end) {
            store_block(K_AT, thread, fetched);
            mask_keys(block + 1, last, thread);
        }
        // The next keys are visible to all; the values are no longer needed.
        barrier();
    }

    if (is_empty) {
        return;
    }
#if TIER >= 2
    if (SOFTMAX_IN_REGISTERS) {
        unrolled for (uint r = 0; r < ROW_TILES * FRAGMENT_ROWS; r++) {
            if (SUM_IN_PADDING) {
                // Column 8 of the last matrix.
                float sum_of_row = o[r / FRAGMENT_ROWS * PART_TILES + PART_TILES - 1][r % FRAGMENT_ROWS * 4 + 2];
                fragment_sum[r] = subgroupShuffle(sum_of_row, lane & ~(FRAGMENT_ROW_THREADS - 1));
            } else {
                unrolled for (uint distance = 1; distance < FRAGMENT_ROW_THREADS; distance *= 2) {
                    fragment_sum[r] += subgroupShuffleXor(fragment_sum[r], distance);
                }
            }
        }
        unrolled for (uint t = 0; t < ROW_TILES; t++) {
            unrolled for (uint i = 0; i < FRAGMENT; i++) {
                // Divided by once instead of by every element.
                sum[t][i] = 1.0 / fragment_sum[t * FRAGMENT_ROWS + i / 4];
            }
        }
    }
#endif
    uint out_at = gl_SubgroupID * 16 * OUT_STRIDE;
    unrolled for (uint all = 0; all < ROW_TILES * OUT_STEPS; all++) {
        uint t = all / OUT_STEPS;
        uint tile = all % OUT_STEPS * OUT_TILES;
        // All threads have read the previous content.
        subgroup_shared_barrier();
        uint tiles = min(OUT_TILES, PART_TILES - tile);
        unrolled for (uint i = 0; i < OUT_TILES; i++) {
            if (i < tiles) {
                if (SOFTMAX_IN_REGISTERS) {
                    matrix_scale(o[t * PART_TILES + tile + i], sum[t]);
                } else {
                    matrix_divide(o[t * PART_TILES + tile + i], sum[t]);
                }
                matrix_store_sums(o[t * PART_TILES + tile + i], out_at + 4 * i, OUT_STRIDE);
            }
        }
        subgroup_shared_barrier();
        // Vec8s per row.
        uint vec8s = 2 * tiles;
        if (PADDED_UNITS > UNITS) {
            vec8s = min(vec8s, UNITS - 2 * tile);
        }
        for (uint i = lane; i < 16 * vec8s; i += LANES) {
            uint pair = own_pair + 16 * t + i / vec8s;
            if (pair < pairs) {
                uvec4 low = units[out_at + i / vec8s * OUT_STRIDE + i % vec8s * 2];
                uvec4 high = units[out_at + i / vec8s * OUT_STRIDE + i % vec8s * 2 + 1];
                uint head = kv_head * group + pair % group;
                uint at = pair / group * push.o_stride + head * HEAD_DIM + (first_tile + tile) * 16 + i % vec8s * 8;
                if (FROM_ROWS) {
                    // Values were f16 activations, so their means are.
                    vec4 first_four = uintBitsToFloat(low);
                    vec4 second_four = uintBitsToFloat(high);
                    push.o.data[at / 8] = uvec4(packHalf2x16(first_four.xy), packHalf2x16(first_four.zw),
                                                packHalf2x16(second_four.xy), packHalf2x16(second_four.zw));
                } else if (O_F16) {
                    push.o.data[at / 8] = uvec4(f16_activations(uintBitsToFloat(low)), f16_activations(uintBitsToFloat(high)));
                } else {
                    push.o.data[at / 4] = low;
                    push.o.data[at / 4 + 1] = high;
                }
            }
        }
    }
}
