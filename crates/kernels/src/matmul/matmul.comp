#version 460
#pragma tiers(T2)
#extension GL_GOOGLE_include_directive : require
// Y = W · X on matrix units: f16 × f16, summed in f32.
//
// A workgroup makes a tile of ROWS rows × COLUMNS columns, a subgroup OWN_ROWS × OWN_COLUMNS of it as products of 16 × 16 × 16.
// K goes by in steps of one group (32): weights become f16 on their way to shared memory, activations are f16 already. There are
// two stages in shared memory: one step is multiplied while the next is written, and those after it are on their way to registers.
// The loop goes by quads of four steps, so that what differs from step to step is known to the compiler.
//
// Bytes of weights become f16 in pairs: a mask leaves the first and third of a word, an exclusive or makes each the low bits of
// 1024.0 + (q + 128). So the four of a word lie as VectorData::F16 has activations.
//
// K may be split among workgroups. Each then leaves its sums in scratch memory, and the last to arrive adds them all up, in order.
#include "common.glsl"
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#pragma use_vulkan_memory_model

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint SCHEME = 0;
layout(constant_id = 2) const uint EPILOGUE = 0;
layout(constant_id = 3) const bool F16_OUTPUT = false;
layout(constant_id = 4) const uint ROWS = 128;
layout(constant_id = 5) const uint COLUMNS = 128;
layout(constant_id = 6) const uint OWN_ROWS = 64;
layout(constant_id = 7) const uint OWN_COLUMNS = 64;
// Steps whose loads are under way: 1, 2 or 4.
layout(constant_id = 8) const uint AHEAD = 1;
// Parts that K is split into.
layout(constant_id = 9) const uint SPLITS = 1;

#include "weights.glsl"
#include "gated.glsl"
#include "f16.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Words2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Output2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer Parts { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counters { uint data[]; };

layout(push_constant, scalar) uniform Push {
    Words4 values;
    Words2 scales;
    Words4 x;
    Active active_rows;
    // f32, or f16 activations.
    Output4 y;
    // Sums of the parts of K, [tile][split][ROWS · COLUMNS], and how many workgroups of a tile have left theirs: zeros between calls.
    Parts parts;
    Counters counters;
    uint rows;
    uint k;
    uint columns;
    // Where this part of the matrix starts in y, and how far apart the columns of y are: multiples of 4.
    uint y_first;
    uint y_stride;
} push;

const uint SIDE = 16;
const uint STEPS = QUAD / GROUP;
const uint SUBGROUPS = THREADS / 32;
const uint ROW_TILES = OWN_ROWS / SIDE;
const uint COLUMN_TILES = OWN_COLUMNS / SIDE;
const uint SUBGROUP_COLUMNS = COLUMNS / OWN_COLUMNS;
// A row of a step in shared memory, in 16 bytes: 32 f16 and one more, so that eight rows that follow each other meet all banks.
const uint STRIDE = 5;
// Half groups of weights, and eights of activations, that a thread brings in a step.
const uint HALVES = ROWS * 2 / THREADS;
const uint EIGHTS = (COLUMNS * 4 + THREADS - 1) / THREADS;
const bool ALL_EIGHTS = COLUMNS * 4 % THREADS == 0;
// Loads of 16 bytes that half a group takes; of int4 one serves the steps of two groups.
const uint LOADS = !IS_FLOAT ? 1 : SCHEME == F32 ? 4 : 2;
const uint SLOTS = IS_INT4 ? (AHEAD + 1) / 2 : AHEAD;
// Column tiles that are worked on at the same time, beside each other: they share weights in the cache, and rows share activations.
const uint BAND = 16;

const uint STAGE = (ROWS + COLUMNS) * STRIDE;
// 16 × 16 f32 with a stride of five 16 bytes, two for each subgroup: gate and up.
const uint SQUARE = SIDE * STRIDE;
const uint SQUARES = SUBGROUPS * 2 * SQUARE;
shared uvec4 staged[2 * STAGE > SQUARES ? 2 * STAGE : SQUARES];
shared bool last_to_arrive;

uvec4 words[SLOTS * HALVES * LOADS];
uvec4 eights[AHEAD * EIGHTS];
// Four scales a quad, and four minima behind them, of each half group's row.
uvec2 scales[HALVES * 2];
uvec2 next_scales[HALVES * 2];
coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums[ROW_TILES * COLUMN_TILES];

// Where a half group's strip starts, in quads, and its row of the strip and half. Eight neighbouring threads have eight rows of
// weights, and two columns of activations that are four apart: so what they store meets all banks, and they still load from two
// cache lines alone. (Eight columns store as well, but load from eight lines: 1.25 times the time of the whole.)
uint quad_base[HALVES];
uint strip_row;
uint half_index;
uint x_base[EIGHTS];

// The column of a tile, and the eight of its 32 values, that a thread brings as number i of its eights.
uint column_of(uint thread, uint i) {
    return i * (THREADS / 4) + thread / 32 * 8 + thread / 8 % 4 + thread / 4 % 2 * 4;
}

uint eight_of(uint thread) {
    return thread % 4;
}

// Loads what step number `step`, counted from `quad` on, needs: `step` is known to the compiler.
void load_weights(uint quad, uint last_quad, uint step) {
    if (IS_INT4 && step % 2 != 0) {
        return;
    }
    // Past the end the last is loaded again, and not used.
    uint at = min(quad + step / STEPS, last_quad);
    uint slot = (IS_INT4 ? step / 2 : step) % SLOTS;
    [[unroll]] for (uint i = 0; i < HALVES; i++) {
        [[unroll]] for (uint j = 0; j < LOADS; j++) {
            uint tile = (quad_base[i] + at) * TILES;
            uint index;
            if (IS_FLOAT) {
                // Half a group is one row of a tile, of f32 two rows of two tiles.
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

// One of four f16, times the unit of activations.
f16vec2 scaled(uvec2 four, uint i) {
    float16_t value = unpackFloat2x16(four[i / 2])[i % 2] * float16_t(F16_UNIT);
    return f16vec2(value, value);
}

// Four integers of a word, as f16: the first and third, the second and fourth.
uvec2 dequantized(uint word, bool high, f16vec2 d, f16vec2 m) {
    uvec2 both;
    float16_t zero;
    if (IS_INT4) {
        uint low_word = high ? word >> 4 : word;
        uvec2 nibbles = uvec2(low_word, low_word >> 8) & 0x000f000fu;
        both = nibbles ^ 0x64086408u;
        // With a minimum it is q + 8 that counts.
        zero = float16_t(HAS_MIN ? 1024.0 : 1032.0);
    } else {
        both = (uvec2(word, word >> 8) & 0x00ff00ffu) ^ 0x64806480u;
        zero = float16_t(1152.0);
    }
    f16vec2 first = unpackFloat2x16(both.x) - f16vec2(zero, zero);
    f16vec2 second = unpackFloat2x16(both.y) - f16vec2(zero, zero);
    if (HAS_MIN) {
        return uvec2(packFloat2x16(fma(first, d, m)), packFloat2x16(fma(second, d, m)));
    }
    return uvec2(packFloat2x16(first * d), packFloat2x16(second * d));
}

// Four floats, in the order of f16 activations.
uvec2 converted(vec4 four) {
    four *= F16_UNIT;
    return uvec2(packHalf2x16(four.xz), packHalf2x16(four.yw));
}

// Writes step number `step` to a stage; of a step that begins a quad the scales are those loaded last.
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
        staged[at] = uvec4(fours[0], fours[1]);
        staged[at + 1] = uvec4(fours[2], fours[3]);
    }
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
        uint column = column_of(thread, i);
        if (ALL_EIGHTS || column < COLUMNS) {
            staged[base + (ROWS + column) * STRIDE + eight_of(thread)] = eights[step % AHEAD * EIGHTS + i];
        }
    }
}

void multiply(uint stage, uint own_row, uint own_column) {
    uint w = stage * STAGE + own_row * STRIDE;
    uint x = stage * STAGE + (ROWS + own_column) * STRIDE;
    [[unroll]] for (uint k = 0; k < GROUP / SIDE; k++) {
        coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> a[ROW_TILES];
        [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
            coopMatLoad(a[i], staged, w + i * SIDE * STRIDE + k * 2, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
            coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> b;
            coopMatLoad(b, staged, x + j * SIDE * STRIDE + k * 2, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
                sums[i * COLUMN_TILES + j] = coopMatMulAdd(a[i], b, sums[i * COLUMN_TILES + j]);
            }
        }
    }
}

// Adds the sums of all parts of K in their order; false for all workgroups of a tile but the last.
bool join(uint tile, uint own_row, uint own_column) {
    const uint AREA = ROWS * COLUMNS;
    uint first = tile * SPLITS * AREA + own_column * ROWS + own_row;
    uint own = first + gl_WorkGroupID.y * AREA;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
            coopMatStore(sums[i * COLUMN_TILES + j], push.parts.data, own + j * SIDE * ROWS + i * SIDE, ROWS,
                         gl_CooperativeMatrixLayoutColumnMajor);
        }
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    if (gl_LocalInvocationIndex == 0) {
        uint before = atomicAdd(push.counters.data[tile], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                                gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
        last_to_arrive = before == SPLITS - 1;
        if (last_to_arrive) {
            push.counters.data[tile] = 0;
        }
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    if (!last_to_arrive) {
        return false;
    }
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
            uint at = first + j * SIDE * ROWS + i * SIDE;
            coopMatLoad(sums[i * COLUMN_TILES + j], push.parts.data, at, ROWS, gl_CooperativeMatrixLayoutColumnMajor);
            for (uint split = 1; split < SPLITS; split++) {
                coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> part;
                coopMatLoad(part, push.parts.data, at + split * AREA, ROWS, gl_CooperativeMatrixLayoutColumnMajor);
                sums[i * COLUMN_TILES + j] += part;
            }
        }
    }
    return true;
}

void write(uint column, uint row, vec4 four) {
    uint at = (column * push.y_stride + push.y_first + row) / 4;
    if (F16_OUTPUT) {
        Output2(push.y).data[at] = f16_activations(four);
    } else {
        push.y.data[at] = four;
    }
}

void main() {
    uint columns = min(push.columns, push.active_rows.rows);
    uint strips = (push.rows + STRIP - 1) / STRIP;
    uint quads = (push.k + QUAD - 1) / QUAD;
    // Tiles in bands of columns, in each band row by row.
    uint row_tiles = (push.rows + ROWS - 1) / ROWS;
    uint column_tiles = (push.columns + COLUMNS - 1) / COLUMNS;
    uint tile = gl_WorkGroupID.x;
    uint band = tile / (BAND * row_tiles);
    uint width = min(BAND, column_tiles - band * BAND);
    uint in_band = tile - band * BAND * row_tiles;
    uint first_column = (band * BAND + in_band % width) * COLUMNS;
    uint first_row = in_band / width * ROWS;
    if (first_column >= columns) {
        return;
    }
    uint thread = thread_index();
    uint own_row = gl_SubgroupID / SUBGROUP_COLUMNS * OWN_ROWS;
    uint own_column = gl_SubgroupID % SUBGROUP_COLUMNS * OWN_COLUMNS;
    uint per_split = (quads + SPLITS - 1) / SPLITS;
    uint first_quad = gl_WorkGroupID.y * per_split;
    uint end_quad = min(first_quad + per_split, quads);

    strip_row = thread % STRIP;
    half_index = thread / STRIP % 2;
    [[unroll]] for (uint i = 0; i < HALVES; i++) {
        quad_base[i] = min(first_row / STRIP + (thread + i * THREADS) / 32, strips - 1) * quads;
    }
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
        // Past the last column it is loaded again: nobody looks at what comes of it.
        uint column = min(first_column + column_of(thread, i), push.columns - 1);
        x_base[i] = column * quads * (QUAD / 8) + eight_of(thread);
    }
    [[unroll]] for (uint i = 0; i < ROW_TILES * COLUMN_TILES; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0.0);
    }

    // A split may have nothing to do where the others have rounded up.
    if (first_quad < end_quad) {
        uint last_quad = end_quad - 1;
        load_scales(first_quad);
        [[unroll]] for (uint step = 0; step < AHEAD; step++) {
            load_weights(first_quad, last_quad, step);
            load_x(first_quad, last_quad, step);
        }
        [[unroll]] for (uint i = 0; i < HALVES * 2; i++) {
            scales[i] = next_scales[i];
        }
        store(0, 0, thread);
        load_x(first_quad, last_quad, AHEAD);
        if (!IS_INT4) {
            load_weights(first_quad, last_quad, AHEAD);
        }
        barrier();
        for (uint quad = first_quad; quad < end_quad; quad++) {
            load_scales(min(quad + 1, last_quad));
            [[unroll]] for (uint step = 0; step < STEPS; step++) {
                if (step == STEPS - 1) {
                    [[unroll]] for (uint i = 0; i < HALVES * 2; i++) {
                        scales[i] = next_scales[i];
                    }
                }
                // First the loads of this step's operands from shared memory: what is stored after them can then happen while the
                // matrix units work.
                multiply(step % 2, own_row, own_column);
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
    if (SPLITS > 1 && !join(tile, own_row, own_column)) {
        return;
    }

    // The stages are no longer needed: sums go through squares whose places in memory are known.
    uint square = gl_SubgroupID * 2 * SQUARE;
    uint lane = gl_SubgroupInvocationID;
    const uint PAIR = EPILOGUE == 0 ? 1 : 2;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i += PAIR) {
        [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
            [[unroll]] for (uint which = 0; which < PAIR; which++) {
                coopMatStore(sums[(i + which) * COLUMN_TILES + j], staged, square + which * SQUARE, STRIDE,
                             gl_CooperativeMatrixLayoutColumnMajor);
            }
            controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
            uint column = first_column + own_column + j * SIDE + lane / 2;
            uint row = (first_row + own_row + i * SIDE) / PAIR + lane % 2 * 8;
            [[unroll]] for (uint four = 0; four < 2; four++) {
                uint at = square + lane / 2 * STRIDE + lane % 2 * 2 + four;
                vec4 values = uintBitsToFloat(staged[at]);
                if (EPILOGUE != 0) {
                    vec4 up = uintBitsToFloat(staged[at + SQUARE]);
                    [[unroll]] for (uint e = 0; e < 4; e++) {
                        values[e] = gated(values[e], up[e]);
                    }
                }
                if (column < columns && (row + four * 4) * PAIR < push.rows) {
                    write(column, row + four * 4, values);
                }
            }
            controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
        }
    }
}
