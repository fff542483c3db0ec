#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// y = W · x for 1 to 8 columns of x, W in the tiled layout (see layout.rs): strips of 16 rows, cut into quads of 4 groups
// of 32 along K.
//
// 32 threads, a slice, take a quad of STRIPS strips at a time: thread l holds row l/2 of each, half l%2 of each group, so that a
// load of 16 bytes a thread covers a tile of 512 contiguous bytes. The slices of a workgroup share the quads of a unit of STRIPS
// strips; their sums are joined in a fixed order at the end of it. The weights of the next step, of the next unit too, are
// under way while those of this one are multiplied.
//
// With an epilogue, strips of gate and up alternate: a unit is a pair of them, joined into 16 values of the gated product: half
// a group, so that as int16 they have a scale of their own.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint COLUMNS = 1;
layout(constant_id = 2) const uint SCHEME = 0;
// As Activations in vectors.rs: f32, int8 with a scale per group (int8 and int4 weights only), int16 with a scale per half
// group (no floats).
layout(constant_id = 3) const uint ACTIVATIONS = 1;
// Quads of a step: a slice loads them all before it uses any.
layout(constant_id = 4) const uint IN_FLIGHT = 1;
layout(constant_id = 5) const uint EPILOGUE = 0;
// The gated product as int16, else as f32.
layout(constant_id = 6) const bool INT16_OUTPUT = false;
// Strips of a unit: 2 with an epilogue.
layout(constant_id = 7) const uint STRIPS = 1;
// Quads of x that the workgroup keeps in shared memory, as int16, one column; 0: x is read as it is needed. See prologue.glsl.
layout(constant_id = 8) const uint OWN_QUADS = 0;
// Where they come from: copied, normed, or normed after the norm of a sublayer's output was added to the residual stream.
layout(constant_id = 9) const uint PROLOGUE = 0;
// Workgroups that share a strip's quads: each takes a run of OWN_QUADS and writes sums of its own, y_split apart.
layout(constant_id = 10) const uint SPLITS = 1;
// Sums of a sublayer's output that the prologue adds up.
layout(constant_id = 11) const uint SUBLAYER_PARTIALS = 1;
// Teams of slices, each with units of its own.
layout(constant_id = 12) const uint TEAMS = 1;
// 16 threads that follow each other share a subgroup: what they have can be joined by shuffles.
layout(constant_id = 13) const bool WIDE = false;

#include "weights.glsl"
#include "gated.glsl"
#include "int16.glsl"

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
    // Of the prologue.
    Floats4 residual;
    Floats4 sublayer;
    Floats4 post_weight;
    Floats4 weight;
    Stream stream;
    uint rows;
    uint k;
    // Where this part of the matrix starts in y, and how far apart the columns of y are.
    uint y_first;
    uint y_stride;
    // Words of y from the high bytes of int16 to the low ones, or values from the sums of one split to those of the next.
    uint y_low;
    float epsilon;
    // The prologue writes the stream that it has made.
    uint writes_stream;
} push;

const bool INT8_X = ACTIVATIONS == 1;
const bool INT16_X = ACTIVATIONS == 2;

const uint SLICE = 32;
// Of a team.
const uint SLICES = THREADS / SLICE / TEAMS;
// Values of a unit's output, of one column and in all.
const uint OUTPUTS = EPILOGUE == 0 ? STRIP * STRIPS : STRIP;
const uint UNIT_ROWS = STRIP * STRIPS;

#if TIER >= 1
// Floats of a row and column of a slice.
const uint PART = 1;
#else
const uint PART = 2;
#endif
// Sums of a thread.
const uint SUMS = STRIPS * COLUMNS;
const uint SLICE_PARTS = COLUMNS * UNIT_ROWS * PART;
// Two sets, one filled while the other is read, where that is cheap.
const uint SETS = COLUMNS <= 2 ? 2 : 1;
// Of a team.
const uint TEAM_PARTS = SLICES * SLICE_PARTS;
shared float parts[SETS * TEAMS * TEAM_PARTS];

#if TIER >= 1
const bool OWN_X = OWN_QUADS > 0;
shared uvec4 x_high[OWN_X ? OWN_QUADS * 8 : 1];
shared uvec4 x_low[OWN_X ? OWN_QUADS * 8 : 1];
shared vec4 x_factors[OWN_X ? OWN_QUADS * 2 : 1];
#include "prologue.glsl"
#else
const bool OWN_X = false;
#endif

// The weights of a step are under way while those of the one before are multiplied. Floats are too many for that: they are read as
// they are needed.
#if TIER >= 1
const bool AHEAD = !IS_FLOAT;
#else
const bool AHEAD = false;
#endif

// What a slice has loaded of a step.
struct Step {
    uvec4 weights[IN_FLIGHT * STRIPS * TILES];
    uvec2 scales[IN_FLIGHT * STRIPS];
    uvec2 minima[IN_FLIGHT * STRIPS];
};

// A quad of a unit, or of the last strip where a unit of two has only one: what is not there is not read.
uint quad_there(uint quad, uint quads) {
    return STRIPS > 1 && EPILOGUE == 0 ? min(quad, (push.rows + STRIP - 1) / STRIP * quads - 1) : quad;
}

// `from` is the first quad of this workgroup's in the unit.
void load(out Step step, uint from, uint first, uint quads, uint own_quads, uint lane) {
    [[unroll]] for (uint i = 0; i < IN_FLIGHT * STRIPS; i++) {
        // Past the end the last quad is loaded again and not used: no branch stands before the loads.
        uint quad = from + i % STRIPS * quads + min(first + i / STRIPS * SLICES, own_quads - 1);
        quad = quad_there(quad, quads);
        [[unroll]] for (uint tile = 0; tile < TILES; tile++) {
            step.weights[i * TILES + tile] = push.values.data[(quad * TILES + tile) * SLICE + lane];
        }
        if (HAS_MIN) {
            step.scales[i] = push.scales.data[(quad * STRIP + lane / 2) * 2];
            step.minima[i] = push.scales.data[(quad * STRIP + lane / 2) * 2 + 1];
        } else if (!IS_FLOAT) {
            step.scales[i] = push.scales.data[quad * STRIP + lane / 2];
        }
    }
}

void move(out Step to, Step from) {
    [[unroll]] for (uint i = 0; i < IN_FLIGHT * STRIPS; i++) {
        [[unroll]] for (uint tile = 0; tile < TILES; tile++) {
            to.weights[i * TILES + tile] = from.weights[i * TILES + tile];
        }
        to.scales[i] = from.scales[i];
        to.minima[i] = from.minima[i];
    }
}

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
    uint at = (column * quads * QUAD + group * GROUP) / 16 + half_index;
#if TIER >= 1
    if (OWN_X) {
        x.high = x_high[at];
        x.low = x_low[at];
        return;
    }
#endif
    if (INT8_X) {
        x.high = push.x.data[at];
    } else if (INT16_X) {
        x.high = push.x.data[at];
        x.low = push.x.data[at + COLUMNS * quads * (QUAD / 16)];
    } else {
        [[unroll]] for (uint i = 0; i < 4; i++) {
            x.floats[i] = x_at(at * 4 + i);
        }
    }
}

// 16 bytes times 16 values of int16, summed: exact, since 16 · 128 · 32639 is far below 2³¹.
int dot16_int16(uvec4 bytes, X x) {
    return (dot16(bytes, x.high) << 8) + dot16(bytes, x.low);
}

// The sum over 16 weights of one group, as stored (int4 comes as 16 · q), times x.
float product(uvec4 weights, X x) {
    if (INT8_X) {
        return float(dot16(weights, x.high));
    }
    if (INT16_X) {
        return float(dot16_int16(weights, x));
    }
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        sum += dot(bytes_to_floats(weights[i]), x.floats[i]);
    }
    return sum;
}

float sum_of(X x) {
    if (INT16_X) {
        return float(dot16_int16(uvec4(0x01010101u), x));
    }
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        sum += dot(x.floats[i], vec4(1.0));
    }
    return sum;
}

// The sum over a thread's 16 bytes of floats in one tile.
float float_product(uvec4 weights, uint quads, uint quad, uint tile, uint half_index, uint column) {
    uint at = (column * quads + quad) * (QUAD / 4);
    if (SCHEME == F32) {
        return dot(uintBitsToFloat(weights), x_at(at + tile * 2 + half_index));
    }
    at += tile * 4 + half_index * 2;
    vec4 first = vec4(halves_to_floats(weights.x), halves_to_floats(weights.y));
    vec4 second = vec4(halves_to_floats(weights.z), halves_to_floats(weights.w));
    return dot(first, x_at(at)) + dot(second, x_at(at + 1));
}

// Adds one quad of each of a unit's strips to the sums of one column.
void add_quad(inout float sums[SUMS], Step step, uint i, uint from, uint quads, uint quad, uint lane, uint column) {
    uint half_index = lane % 2;
    if (IS_FLOAT) {
        [[unroll]] for (uint s = 0; s < STRIPS; s++) {
            [[unroll]] for (uint tile = 0; tile < TILES; tile++) {
                uint there = quad_there(from + s * quads + quad, quads);
                uvec4 floats = push.values.data[(there * TILES + tile) * SLICE + lane];
                sums[s * COLUMNS + column] += float_product(floats, quads, quad, tile, half_index, column);
            }
        }
        return;
    }
    vec4 x_scales = vec4(1.0);
#if TIER >= 1
    if (OWN_X) {
        x_scales = x_factors[quad * 2 + half_index];
    } else
#endif
    if (INT8_X) {
        x_scales = push.x_scales.data[column * quads + quad];
    } else if (INT16_X) {
        x_scales = push.x_scales.data[(column * quads + quad) * 2 + half_index];
    }
    vec4 scales[STRIPS];
    vec4 minima[STRIPS];
    [[unroll]] for (uint s = 0; s < STRIPS; s++) {
        uvec2 halves = step.scales[i * STRIPS + s];
        scales[s] = vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y));
        if (HAS_MIN) {
            halves = step.minima[i * STRIPS + s];
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
                bytes = step.weights[(i * STRIPS + s) * TILES + group];
            } else {
                uvec4 nibbles = step.weights[(i * STRIPS + s) * TILES + group / 2];
                bytes = group % 2 == 0 ? low_nibbles(nibbles) : high_nibbles(nibbles);
            }
            sums[s * COLUMNS + column] += product(bytes, x) * scales[s][group];
            if (HAS_MIN) {
                sums[s * COLUMNS + column] += x_sum * minima[s][group];
            }
        }
    }
}

// The sum of all slices for a row of a unit, whose sums start at `from`.
float joined(uint from, uint column, uint row) {
    float sum = 0.0;
    [[unroll]] for (uint slice = 0; slice < SLICES; slice++) {
        uint at = from + slice * SLICE_PARTS + (column * UNIT_ROWS + row) * PART;
#if TIER >= 1
        sum += parts[at];
#else
        sum += parts[at] + parts[at + 1];
#endif
    }
    return sum;
}

#if TIER >= 1
// 16 threads that follow each other have the 16 gated values of a half group, one each.
void write_shuffled(uint first, uint i, float value) {
    uint largest = magnitude(value);
    [[unroll]] for (uint other = 1; other < STRIP; other *= 2) {
        largest = max(largest, subgroupShuffleXor(largest, other));
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

// One of the four words of 16 gated values in each plane, and for the first also their scale. The values start at parts[from].
void write_quarter(uint first, uint quarter, uint from) {
    uint largest = 0;
    for (uint i = 0; i < STRIP; i++) {
        largest = max(largest, magnitude(parts[from + i * PART]));
    }
    vec4 values;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        values[i] = parts[from + (quarter * 4 + i) * PART];
    }
    ivec4 q = int16_of(values, int16_factor(largest));
    OutputWords words = OutputWords(push.y);
    words.data[first / 4 + quarter] = high_bytes(q);
    words.data[push.y_low + first / 4 + quarter] = low_bytes(q);
    if (quarter == 0) {
        push.y_scales.data[int16_scale_at(first / STRIP)] = int16_scale(largest);
    }
}

// Joins what the slices have of the teams' units and writes it.
void finish(uint first_unit, uint units, uint set, float factor, uint split_first) {
    uint thread = thread_index();
    for (uint n = thread; n < TEAMS * OUTPUTS * COLUMNS; n += THREADS) {
        uint team = n / (OUTPUTS * COLUMNS);
        uint column = n / OUTPUTS % COLUMNS;
        uint row = n % OUTPUTS;
        uint unit = first_unit + team;
        uint from = (set * TEAMS + team) * TEAM_PARTS;
        if (unit >= units) {
            continue;
        }
        uint first = column * push.y_stride + push.y_first + unit * OUTPUTS;
        float sum = joined(from, column, row) * factor;
        if (EPILOGUE == 0) {
            if (unit * OUTPUTS + row < push.rows) {
                push.y.data[split_first + first + row] = sum;
            }
            continue;
        }
        float value = gated(sum, joined(from, column, row + STRIP) * factor);
        if (!INT16_OUTPUT) {
            push.y.data[first + row] = value;
            continue;
        }
#if TIER >= 1
        if (WIDE) {
            write_shuffled(first, row, value);
            continue;
        }
#endif
        // This thread alone has read what stood here.
        parts[from + (column * UNIT_ROWS + row) * PART] = value;
    }
    if (EPILOGUE != 0 && INT16_OUTPUT && !(TIER >= 1 && WIDE)) {
        barrier();
        for (uint n = thread; n < TEAMS * COLUMNS * 4; n += THREADS) {
            uint team = n / (COLUMNS * 4);
            uint column = n / 4 % COLUMNS;
            uint unit = first_unit + team;
            if (unit < units) {
                uint first = column * push.y_stride + push.y_first + unit * OUTPUTS;
                write_quarter(first, n % 4, (set * TEAMS + team) * TEAM_PARTS + column * UNIT_ROWS * PART);
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
    uint units = (push.rows + UNIT_ROWS - 1) / UNIT_ROWS;
    uint split = gl_WorkGroupID.x % SPLITS;
    uint stride = gl_NumWorkGroups.x / SPLITS * TEAMS;
    uint first_quad = split * OWN_QUADS;
    uint own_quads = SPLITS > 1 ? min(quads - first_quad, OWN_QUADS) : quads;
    uint steps = (own_quads + SLICES * IN_FLIGHT - 1) / (SLICES * IN_FLIGHT);

    Step step;
    uint first_unit = gl_WorkGroupID.x / SPLITS * TEAMS;
    uint unit = first_unit + team;
    if (AHEAD) {
        // Before anything else: weights wait for nothing.
        load(step, min(unit, units - 1) * STRIPS * quads + first_quad, slice, quads, own_quads, lane);
    }
    float factor = 1.0;
#if TIER >= 1
    if (OWN_X) {
        factor = make_x(first_quad, own_quads);
    }
#endif
    for (uint set = 0; first_unit < units; set = (set + 1) % SETS) {
        float sums[SUMS];
        [[unroll]] for (uint i = 0; i < SUMS; i++) {
            sums[i] = 0.0;
        }
        uint next_unit = unit + stride;
        for (uint n = 0; n < steps; n++) {
            uint first = slice + n * SLICES * IN_FLIGHT;
            uint here = min(unit, units - 1) * STRIPS * quads + first_quad;
            Step next;
            bool last = n + 1 == steps;
            uint from_unit = last ? next_unit : unit;
            if (AHEAD && from_unit < units) {
                uint from = from_unit * STRIPS * quads + first_quad;
                load(next, from, last ? slice : first + SLICES * IN_FLIGHT, quads, own_quads, lane);
            }
            if (!AHEAD && !IS_FLOAT) {
                load(step, here, first, quads, own_quads, lane);
            }
            [[unroll]] for (uint i = 0; i < IN_FLIGHT; i++) {
                uint quad = first + i * SLICES;
                if (quad >= own_quads) {
                    break;
                }
                [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
                    add_quad(sums, step, i, here, quads, quad, lane, column);
                }
            }
            if (AHEAD) {
                move(step, next);
            }
        }

        // Join the halves of a row, then the slices.
        [[unroll]] for (uint i = 0; i < SUMS; i++) {
            float sum = SCHEME == INT4 ? sums[i] * 0.0625 : sums[i];
            uint row = i / COLUMNS * STRIP + lane / 2;
            uint at = (set * TEAMS + team) * TEAM_PARTS + slice * SLICE_PARTS
                    + (i % COLUMNS * UNIT_ROWS + row) * PART;
#if TIER >= 1
            sum += subgroupShuffleXor(sum, 1);
            if (half_index == 0) {
                parts[at] = sum;
            }
#else
            parts[at + half_index] = sum;
#endif
        }
        barrier();
        finish(first_unit, units, set, factor, split * push.y_low);
        if (SETS == 1) {
            barrier();
        }
        first_unit += stride;
        unit = next_unit;
    }
}
