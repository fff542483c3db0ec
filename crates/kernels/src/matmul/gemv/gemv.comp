#version 460
#pragma tiers(T0, T1, T2)
#extension GL_GOOGLE_include_directive : require
// y = W · x for 1 to 8 columns of x, W in the tiled layout (see `Layout` in crate tensor): strips of 16 rows,
// divided into quads of 4 groups of 32 along K.
//
// 32 threads, a slice, process a quad of STRIPS strips at a time: thread l holds row l/2 of each, half l%2
// of each group, so that one 16-byte load per thread covers a tile of 512 contiguous bytes. A row panel is
// STRIPS strips. The slices of a team share the quads of a panel; their sums are reduced in a fixed order
// at the end of the panel. The weights of the next K-step, also of the next panel, are in flight while
// those of this one are multiplied.
//
// With an epilogue, strips of gate and up alternate: a panel is a pair of them, combined into 16 values of
// the gated product: half a group, which has its own scale as int16.
//
// At T2 several columns are multiplied on cooperative matrices: a thread holds bytes of two rows, and x passes through
// shared memory. See columns_on_matrices.glsl.
#include "common.glsl"
#if TIER >= 2
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#pragma use_vulkan_memory_model
#endif

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint COLUMNS = 1;
layout(constant_id = 2) const uint SCHEME = 0;
// As Activations in vectors.rs: f32, int8 with a scale per group (int8 and int4 weights only), int16 with a
// scale per half group (no float weights).
layout(constant_id = 3) const uint ACTIVATIONS = 1;
// Quads per K-step: a slice loads them all before it uses any.
layout(constant_id = 4) const uint IN_FLIGHT = 1;
layout(constant_id = 5) const uint EPILOGUE = 0;
// Writes the gated product as int16; otherwise as f32.
layout(constant_id = 6) const bool INT16_OUTPUT = false;
// Strips per row panel: 2 with an epilogue.
layout(constant_id = 7) const uint STRIPS = 1;
// Quads of each column of x that are in shared memory from the start, as int16: see prologue.glsl. 0 if x is read from
// memory on demand, and at T2, which copies it per K-step.
layout(constant_id = 8) const uint SHARED_X_QUADS = 0;
// How they are obtained: 0 copies x; 1 norms the residual stream; 2 and 3 first add the sublayer output to
// the stream, 2 after its own norm; 4 takes x and its factors from memory, where gemv_norm left them.
layout(constant_id = 9) const uint PROLOGUE = 0;
// Split-K: workgroups that share a strip's quads. Each takes SPLIT_QUADS consecutive quads and writes
// its own partial sums, at a stride of y_low.
layout(constant_id = 10) const uint SPLITS = 1;
// Partial sums of the sublayer output that the prologue adds up.
layout(constant_id = 11) const uint SUBLAYER_PARTIALS = 1;
// Teams per workgroup; each team has its own panels.
layout(constant_id = 12) const uint TEAMS = 1;
// 32 consecutive threads share a subgroup: their values can be combined by shuffles.
layout(constant_id = 13) const bool WIDE_SUBGROUPS = false;
// Experts: a workgroup multiplies one pair of a row and an expert. As many pairs share a column of x. 0 where there are
// no experts.
layout(constant_id = 14) const uint PAIRS_PER_X = 0;
// The prologue multiplies the residual stream by a factor after adding to it.
layout(constant_id = 15) const bool RESIDUAL_SCALED = false;
// Experts whose products are added up, with weights: as many pairs share a column of y, and the quads of all their
// experts follow each other along K. x is in shared memory, multiplied by the weights. 0 where pairs have columns of
// their own.
layout(constant_id = 16) const uint PAIRS_PER_Y = 0;
// Quads per split; 0 where there is one.
layout(constant_id = 17) const uint SPLIT_QUADS = 0;

#include "weights.glsl"
#include "gated.glsl"
#include "int16.glsl"
#include "experts.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Words2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Stream { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer OutputWords { uint data[]; };

layout(push_constant, scalar) uniform Push {
    Words4 values;
    Words2 scales;
    Words4 x;
    Floats4 x_scales;
    Output y;
    Output y_scales;
    // Inputs of the prologue; `weight` may also hold the weights of pairs, or the factors of columns.
    Floats4 residual;
    Floats4 sublayer;
    Floats4 post_weight;
    Floats4 weight;
    Stream stream;
    uint rows;
    uint k;
    // Start of this block of the matrix in y, and the column stride of y.
    uint y_first;
    uint y_stride;
    // Words from the high bytes of int16 to the low ones, or values from the partial sums of one split to
    // those of the next.
    uint y_low;
    float epsilon;
    // The prologue writes the updated residual stream.
    uint writes_stream;
    // Columns of x.
    uint x_columns;
    // The expert of each pair; for a prologue, one float: the factor of the residual stream.
    Words experts;
} push;

// The first quad of the expert's matrix, and the first columns of x and of y.
uint expert_quad = 0;
uint x_first_column = 0;
uint y_first_column = 0;
// The first quad of x in memory: that of the split.
uint x_first_quad = 0;

// The prologue that takes factors from memory.
const uint FACTORS = 4;
const bool INT8_X = ACTIVATIONS == 1;
const bool INT16_X = ACTIVATIONS == 2;

const uint SLICE = 32;
// Per team.
const uint SLICES = THREADS / SLICE / TEAMS;
// Output values of a panel per column, and rows of a panel.
const uint OUTPUTS = EPILOGUE == 0 ? STRIP * STRIPS : STRIP;
const uint PANEL_ROWS = STRIP * STRIPS;

#if TIER >= 1
// Floats per row and column of a slice.
const uint PARTIAL_FLOATS = 1;
#else
const uint PARTIAL_FLOATS = 2;
#endif
const uint SLICE_PARTIALS = COLUMNS * PANEL_ROWS * PARTIAL_FLOATS;
// Double-buffered where that is cheap: one set is filled while the other is read.
const uint SETS = COLUMNS <= 2 ? 2 : 1;
// Per team.
const uint TEAM_PARTIALS = SLICES * SLICE_PARTIALS;
shared float partials[SETS * TEAMS * TEAM_PARTIALS];

#if TIER == 1
const bool X_IN_SHARED = SHARED_X_QUADS > 0;
shared uvec4 x_high[X_IN_SHARED ? COLUMNS * SHARED_X_QUADS * 8 : 1];
shared uvec4 x_low[X_IN_SHARED ? COLUMNS * SHARED_X_QUADS * 8 : 1];
shared vec4 x_factors[X_IN_SHARED ? COLUMNS * SHARED_X_QUADS * 2 : 1];
#include "prologue.glsl"
#else
const bool X_IN_SHARED = false;
#endif

// Loads the weights of a K-step while those of the previous one are multiplied. Float weights would need
// too many registers: they are loaded on demand.
#if TIER >= 1
const bool PREFETCH_WEIGHTS = !IS_FLOAT;
#else
const bool PREFETCH_WEIGHTS = false;
#endif

#if TIER >= 2
#include "columns_on_matrices.glsl"
#else
// Accumulators per thread.
const uint ACCUMULATORS = STRIPS * COLUMNS;

#define Scales uvec2

// A thread's weights of a tile.
uvec4 weights_of(uint tile, uint lane) {
    return push.values.data[tile * SLICE + lane];
}

// The scales of a thread's row of a quad; with `part` 1 the minima.
Scales scales_of(uint quad, uint lane, uint part) {
    return push.scales.data[(quad * STRIP + lane / 2) * (HAS_MIN ? 2 : 1) + part];
}
#endif

// The data that a slice loads for a K-step.
struct KStep {
    uvec4 weights[IN_FLIGHT * STRIPS * TILES];
    Scales scales[IN_FLIGHT * STRIPS];
    Scales minima[IN_FLIGHT * STRIPS];
};

// The first quad of an expert's matrix.
uint first_quad_of(uint expert, uint quads) {
    return expert * ((push.rows + STRIP - 1) / STRIP) * quads;
}

// A quad of a panel, clamped to the last strip where a panel of two has only one: nothing past the end is
// read.
uint clamped_quad(uint quad, uint quads) {
    return STRIPS > 1 && EPILOGUE == 0 ? min(quad, (push.rows + STRIP - 1) / STRIP * quads - 1) : quad;
}

// `from` is the first quad of this workgroup in the panel.
void load(out KStep k_step, uint from, uint first, uint quads, uint split_quads, uint lane) {
    [[unroll]] for (uint i = 0; i < IN_FLIGHT * STRIPS; i++) {
        // Past the end the last quad is loaded again and not used: no branch before the loads.
        uint quad = min(first + i / STRIPS * SLICES, split_quads - 1);
        uint expert_first = expert_quad;
        if (PAIRS_PER_Y > 0) {
            expert_first = first_quad_of(push.experts.data[x_first_column + quad / quads], quads);
            quad %= quads;
        }
        quad = expert_first + clamped_quad(from + i % STRIPS * quads + quad, quads);
        [[unroll]] for (uint tile = 0; tile < TILES; tile++) {
            k_step.weights[i * TILES + tile] = weights_of(quad * TILES + tile, lane);
        }
        if (!IS_FLOAT) {
            k_step.scales[i] = scales_of(quad, lane, 0);
        }
        if (HAS_MIN) {
            k_step.minima[i] = scales_of(quad, lane, 1);
        }
    }
}

void copy(out KStep to, KStep from) {
    [[unroll]] for (uint i = 0; i < IN_FLIGHT * STRIPS; i++) {
        [[unroll]] for (uint tile = 0; tile < TILES; tile++) {
            to.weights[i * TILES + tile] = from.weights[i * TILES + tile];
        }
        to.scales[i] = from.scales[i];
        to.minima[i] = from.minima[i];
    }
}

#if TIER >= 2
#include "add_columns_on_matrices.glsl"
#else
vec4 x_at(uint at) {
    return uintBitsToFloat(push.x.data[at]);
}

// 16 values of x: integers in one or two planes of bytes, or floats.
struct X {
    uvec4 high;
    uvec4 low;
    vec4 floats[4];
};

void load_x(out X x, uint quads, uint group, uint half_index, uint column) {
#if TIER >= 1
    if (X_IN_SHARED) {
        uint at = (column * SHARED_X_QUADS * QUAD + group * GROUP) / 16 + half_index;
        x.high = x_high[at];
        x.low = x_low[at];
        return;
    }
#endif
    uint at = (((x_first_column + column) * quads + x_first_quad) * QUAD + group * GROUP) / 16 + half_index;
    if (INT8_X) {
        x.high = push.x.data[at];
    } else if (INT16_X) {
        x.high = push.x.data[at];
        x.low = push.x.data[at + push.x_columns * quads * (QUAD / 16)];
    } else {
        [[unroll]] for (uint i = 0; i < 4; i++) {
            x.floats[i] = x_at(at * 4 + i);
        }
    }
}

// Dot product of 16 bytes and 16 int16 values: exact, since 16 · 128 · 32639 is far below 2³¹.
int dot16_int16(uvec4 bytes, X x) {
    return (dot16(bytes, x.high) << 8) + dot16(bytes, x.low);
}

// a · b + sum, in an order that no compiler chooses: a column must get the same bits with any number of columns beside
// it.
float dot_fma(vec4 a, vec4 b, float sum) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
        sum = fma(a[i], b[i], sum);
    }
    return sum;
}

// Dot product of 16 weights of one group, as stored (int4 as 16 · q), and x.
float product(uvec4 weights, X x) {
    if (INT8_X) {
        return float(dot16(weights, x.high));
    }
    if (INT16_X) {
        return float(dot16_int16(weights, x));
    }
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        sum = dot_fma(bytes_to_floats(weights[i]), x.floats[i], sum);
    }
    return sum;
}

float sum_of(X x) {
    if (INT16_X) {
        return float(dot16_int16(uvec4(0x01010101u), x));
    }
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        sum += (x.floats[i].x + x.floats[i].y) + (x.floats[i].z + x.floats[i].w);
    }
    return sum;
}

// Dot product of a thread's 16 bytes of floats in one tile and x.
float float_product(uvec4 weights, uint quads, uint quad, uint tile, uint half_index, uint column) {
    uint at = ((x_first_column + column) * quads + x_first_quad + quad) * (QUAD / 4);
    if (SCHEME == F32) {
        return dot_fma(uintBitsToFloat(weights), x_at(at + tile * 2 + half_index), 0.0);
    }
    at += tile * 4 + half_index * 2;
    vec4 first = vec4(halves_to_floats(weights.x), halves_to_floats(weights.y));
    vec4 second = vec4(halves_to_floats(weights.z), halves_to_floats(weights.w));
    return dot_fma(second, x_at(at + 1), dot_fma(first, x_at(at), 0.0));
}

// Adds one quad of each of a panel's strips to the accumulators of one column.
void add_quad(inout float accumulators[ACCUMULATORS], KStep k_step, uint i, uint from, uint quads, uint quad, uint lane, uint column) {
    uint half_index = lane % 2;
    if (IS_FLOAT) {
        [[unroll]] for (uint s = 0; s < STRIPS; s++) {
            [[unroll]] for (uint tile = 0; tile < TILES; tile++) {
                uint clamped = expert_quad + clamped_quad(from + s * quads + quad, quads);
                uvec4 floats = push.values.data[(clamped * TILES + tile) * SLICE + lane];
                accumulators[s * COLUMNS + column] += float_product(floats, quads, quad, tile, half_index, column);
            }
        }
        return;
    }
    vec4 x_scales = vec4(1.0);
#if TIER >= 1
    if (X_IN_SHARED) {
        x_scales = x_factors[(column * SHARED_X_QUADS + quad) * 2 + half_index];
    } else
#endif
    if (INT8_X) {
        x_scales = push.x_scales.data[(x_first_column + column) * quads + x_first_quad + quad];
    } else if (INT16_X) {
        x_scales = push.x_scales.data[((x_first_column + column) * quads + x_first_quad + quad) * 2 + half_index];
    }
    vec4 scales[STRIPS];
    vec4 minima[STRIPS];
    [[unroll]] for (uint s = 0; s < STRIPS; s++) {
        uvec2 halves = k_step.scales[i * STRIPS + s];
        scales[s] = vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y));
        if (HAS_MIN) {
            halves = k_step.minima[i * STRIPS + s];
            minima[s] = vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y));
            [[unroll]] for (uint group = 0; group < 4; group++) {
                vec2 both = scale_of(scales[s][group], minima[s][group]);
                scales[s][group] = both.x;
                minima[s][group] = both.y;
            }
            minima[s] *= x_scales;
        }
        scales[s] *= x_scales;
    }
    [[unroll]] for (uint group = 0; group < 4; group++) {
        X x;
        load_x(x, quads, quad * 4 + group, half_index, column);
        float x_sum = HAS_MIN ? sum_of(x) : 0.0;
        [[unroll]] for (uint s = 0; s < STRIPS; s++) {
            uvec4 bytes;
            if (!IS_INT4) {
                bytes = k_step.weights[(i * STRIPS + s) * TILES + group];
            } else {
                uvec4 nibbles = k_step.weights[(i * STRIPS + s) * TILES + group / 2];
                bytes = group % 2 == 0 ? low_nibbles(nibbles) : high_nibbles(nibbles);
            }
            uint at = s * COLUMNS + column;
            accumulators[at] = fma(product(bytes, x), scales[s][group], accumulators[at]);
            if (HAS_MIN) {
                accumulators[at] = fma(x_sum, minima[s][group], accumulators[at]);
            }
        }
    }
}
#endif

// The sum over all slices for a row of a panel; its partial sums start at `from`.
float reduced(uint from, uint column, uint row) {
    float sum = 0.0;
    [[unroll]] for (uint slice = 0; slice < SLICES; slice++) {
        uint at = from + slice * SLICE_PARTIALS + (column * PANEL_ROWS + row) * PARTIAL_FLOATS;
#if TIER >= 1
        sum += partials[at];
#else
        sum += partials[at] + partials[at + 1];
#endif
    }
    return sum;
}

#if TIER >= 1
// 16 consecutive threads hold the 16 gated values of a half group, one each.
void write_shuffled(uint first, uint i, float value) {
    uint largest = magnitude(value);
    [[unroll]] for (uint mask = 1; mask < STRIP; mask *= 2) {
        largest = max(largest, subgroupShuffleXor(largest, mask));
    }
    uvec2 both = int16_shuffled_words(int16_of(value, int16_factor(largest)), i);
    OutputWords words = OutputWords(push.y);
    if (i % 4 == 0) {
        words.data[(first + i) / 4] = both.x;
        words.data[push.y_low + (first + i) / 4] = both.y;
    }
    if (i == 0) {
        push.y_scales.data[int16_scale_at(first / STRIP)] = int16_scale(largest);
    }
}
#endif

// Writes one of the four words of 16 gated values in each plane, and the scale if it is the first word.
// The values start at partials[from].
void write_quarter(uint first, uint quarter, uint from) {
    uint largest = 0;
    for (uint i = 0; i < STRIP; i++) {
        largest = max(largest, magnitude(partials[from + i * PARTIAL_FLOATS]));
    }
    vec4 values;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        values[i] = partials[from + (quarter * 4 + i) * PARTIAL_FLOATS];
    }
    ivec4 q = int16_of(values, int16_factor(largest));
    OutputWords words = OutputWords(push.y);
    words.data[first / 4 + quarter] = high_bytes(q);
    words.data[push.y_low + first / 4 + quarter] = low_bytes(q);
    if (quarter == 0) {
        push.y_scales.data[int16_scale_at(first / STRIP)] = int16_scale(largest);
    }
}

// The factor of a column, without indexing: an array that is indexed at run time would be in memory.
float factor_of(float factors[COLUMNS], uint column) {
    float factor = factors[0];
    [[unroll]] for (uint i = 1; i < COLUMNS; i++) {
        factor = i == column ? factors[i] : factor;
    }
    return factor;
}

// Reduces the partial sums of each team's panel and writes the results.
void finish(uint first_panel, uint panels, uint set, float factors[COLUMNS], uint split_first) {
    uint thread = thread_index();
    for (uint n = thread; n < TEAMS * OUTPUTS * COLUMNS; n += THREADS) {
        uint team = n / (OUTPUTS * COLUMNS);
        uint column = n / OUTPUTS % COLUMNS;
        uint row = n % OUTPUTS;
        uint panel = first_panel + team;
        uint from = (set * TEAMS + team) * TEAM_PARTIALS;
        if (panel >= panels) {
            continue;
        }
        uint first = (y_first_column + column) * push.y_stride + push.y_first + panel * OUTPUTS;
        float factor = factor_of(factors, column);
        // Not contracted with what follows: the bits of a column must not depend on the others.
        precise float sum = reduced(from, column, row) * factor;
        if (EPILOGUE == 0) {
            if (panel * OUTPUTS + row < push.rows) {
                push.y.data[split_first + first + row] = sum;
            }
            continue;
        }
        precise float up = reduced(from, column, row + STRIP) * factor;
        float value = gated(sum, up);
        if (!INT16_OUTPUT) {
            push.y.data[first + row] = value;
            continue;
        }
#if TIER >= 1
        if (WIDE_SUBGROUPS) {
            write_shuffled(first, row, value);
            continue;
        }
#endif
        // Only this thread has read the previous value.
        partials[from + (column * PANEL_ROWS + row) * PARTIAL_FLOATS] = value;
    }
    if (EPILOGUE != 0 && INT16_OUTPUT && !(TIER >= 1 && WIDE_SUBGROUPS)) {
        barrier();
        for (uint n = thread; n < TEAMS * COLUMNS * 4; n += THREADS) {
            uint team = n / (COLUMNS * 4);
            uint column = n / 4 % COLUMNS;
            uint panel = first_panel + team;
            if (panel < panels) {
                uint first = (y_first_column + column) * push.y_stride + push.y_first + panel * OUTPUTS;
                write_quarter(first, n % 4, (set * TEAMS + team) * TEAM_PARTIALS + column * PANEL_ROWS * PARTIAL_FLOATS);
            }
        }
    }
}

void main() {
    uint thread = thread_index();
    uint lane = thread % SLICE;
    uint team = thread / SLICE / SLICES;
    uint slice = thread / SLICE % SLICES;
    uint half_index = lane % 2;
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint panels = (push.rows + PANEL_ROWS - 1) / PANEL_ROWS;
    uint split = gl_WorkGroupID.x % SPLITS;
    uint stride = gl_NumWorkGroups.x / SPLITS * TEAMS;
    uint first_quad = SPLITS > 1 ? split * SPLIT_QUADS : 0;
    x_first_quad = first_quad;
    uint split_quads = SPLITS > 1 ? min(quads - first_quad, SPLIT_QUADS) : quads * max(PAIRS_PER_Y, 1);
    uint k_steps = (split_quads + SLICES * IN_FLIGHT - 1) / (SLICES * IN_FLIGHT);

    if (PAIRS_PER_X > 0) {
        uint expert = push.experts.data[gl_WorkGroupID.y];
        if (expert == NO_EXPERT) {
            return;
        }
        expert_quad = first_quad_of(expert, quads);
        x_first_column = gl_WorkGroupID.y / PAIRS_PER_X;
        y_first_column = gl_WorkGroupID.y;
    }
    if (PAIRS_PER_Y > 0) {
        y_first_column = gl_WorkGroupID.y;
        x_first_column = y_first_column * PAIRS_PER_Y;
        // Of an inactive row none has an expert.
        if (push.experts.data[x_first_column] == NO_EXPERT) {
            return;
        }
    }
    KStep k_step;
    uint first_panel = gl_WorkGroupID.x / SPLITS * TEAMS;
    uint panel = first_panel + team;
    if (PREFETCH_WEIGHTS) {
        // Before anything else: the weights do not depend on x.
        load(k_step, min(panel, panels - 1) * STRIPS * quads + first_quad, slice, quads, split_quads, lane);
    }
    float factors[COLUMNS];
    [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
        factors[i] = PROLOGUE == FACTORS ? uintBitsToFloat(Words(push.weight).data[i]) : 1.0;
    }
#if TIER == 1
    if (X_IN_SHARED) {
        make_x(factors, first_quad, split_quads);
    }
#endif
#if TIER >= 2
    PendingX pending_x;
    load_x(pending_x, team, quads, min(slice, split_quads - 1), lane);
    uint buffer_index = 1;
#endif
    for (uint set = 0; first_panel < panels; set = (set + 1) % SETS) {
        float accumulators[ACCUMULATORS];
        [[unroll]] for (uint i = 0; i < ACCUMULATORS; i++) {
            accumulators[i] = 0.0;
        }
        uint next_panel = panel + stride;
        for (uint n = 0; n < k_steps; n++) {
            uint first = slice + n * SLICES * IN_FLIGHT;
            uint panel_quad = min(panel, panels - 1) * STRIPS * quads + first_quad;
            KStep next;
            bool last = n + 1 == k_steps;
            uint loaded_panel = last ? next_panel : panel;
#if TIER >= 2
            // Two K-steps ago all slices had read it: they have met at a barrier since.
            buffer_index = 1 - buffer_index;
            store_x(pending_x, team, buffer_index * SLICES + slice, lane);
            barrier();
            load_x(pending_x, team, quads, min(last ? slice : first + SLICES, split_quads - 1), lane);
#endif
            if (PREFETCH_WEIGHTS && loaded_panel < panels) {
                uint from = loaded_panel * STRIPS * quads + first_quad;
                load(next, from, last ? slice : first + SLICES * IN_FLIGHT, quads, split_quads, lane);
            }
            if (!PREFETCH_WEIGHTS && !IS_FLOAT) {
                load(k_step, panel_quad, first, quads, split_quads, lane);
            }
            [[unroll]] for (uint i = 0; i < IN_FLIGHT; i++) {
                uint quad = first + i * SLICES;
                if (quad >= split_quads) {
                    break;
                }
#if TIER >= 2
                add_quad_of_columns(accumulators, k_step, i, buffer_index * SLICES + slice, lane);
#else
                [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
                    add_quad(accumulators, k_step, i, panel_quad, quads, quad, lane, column);
                }
#endif
            }
            if (PREFETCH_WEIGHTS) {
                copy(k_step, next);
            }
        }

        // Reduce the halves of a row, then the slices.
#if TIER >= 2
        write_partials(accumulators, (set * TEAMS + team) * TEAM_PARTIALS + slice * SLICE_PARTIALS, lane);
#else
        [[unroll]] for (uint i = 0; i < ACCUMULATORS; i++) {
            float sum = SCHEME == INT4 ? accumulators[i] * 0.0625 : accumulators[i];
            uint row = i / COLUMNS * STRIP + lane / 2;
            uint at = (set * TEAMS + team) * TEAM_PARTIALS + slice * SLICE_PARTIALS
                    + (i % COLUMNS * PANEL_ROWS + row) * PARTIAL_FLOATS;
#if TIER >= 1
            sum += subgroupShuffleXor(sum, 1);
            if (half_index == 0) {
                partials[at] = sum;
            }
#else
            partials[at + half_index] = sum;
#endif
        }
#endif
        barrier();
        finish(first_panel, panels, set, factors, split * push.y_low);
        if (SETS == 1) {
            barrier();
        }
        first_panel += stride;
        panel = next_panel;
    }
}
