#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// y = W · x for 1 to 8 columns of x, W in the tiled layout (see layout.rs): strips of 16 rows, cut into quads of 4 groups
// of 32 along K.
//
// 32 threads, a slice, take one quad at a time: thread l holds row l/2, half l%2 of each group, so that a load of 16 bytes a
// thread covers a tile of 512 contiguous bytes. The slices of a workgroup share the quads of a strip; their sums are joined
// in a fixed order at the end of it.
//
// With an epilogue, strips of gate and up alternate: a workgroup takes a pair of them, every other slice one of the two, and
// joins them into 16 values of the gated product: half a group, so that as int16 they have a scale of their own.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint COLUMNS = 1;
layout(constant_id = 2) const uint SCHEME = 0;
// As Activations in vectors.rs: f32, int8 with a scale per group (int8 and int4 weights only), int16 with a scale per half
// group (no floats).
layout(constant_id = 3) const uint ACTIVATIONS = 1;
// Quads whose weights a slice loads before it uses any of them.
layout(constant_id = 4) const uint IN_FLIGHT = 1;
layout(constant_id = 5) const uint EPILOGUE = 0;
// The gated product as int16, else as f32.
layout(constant_id = 6) const bool INT16_OUTPUT = false;

#include "weights.glsl"
#include "gated.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Words2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer OutputWords { uint data[]; };

layout(push_constant, scalar) uniform Push {
    Words4 values;
    Words2 scales;
    Words4 x;
    Floats4 x_scales;
    Output y;
    Output y_scales;
    uint rows;
    uint k;
    // Where this part of the matrix starts in y, and how far apart the columns of y are.
    uint y_first;
    uint y_stride;
    // Words of y from the high bytes of int16 to the low ones.
    uint y_low;
} push;

const bool INT8_X = ACTIVATIONS == 1;
const bool INT16_X = ACTIVATIONS == 2;

const uint SLICE = 32;
const uint SLICES = THREADS / SLICE;
// Strips that a workgroup works on at once, and the slices that share one.
const uint STRIPS = EPILOGUE == 0 ? 1 : 2;
const uint SHARERS = SLICES / STRIPS;

#if TIER >= 1
shared float parts[THREADS / 2 * COLUMNS];
// Floats of a row and column of a slice.
const uint PART = 1;
#else
shared float parts[THREADS * COLUMNS];
const uint PART = 2;
#endif

vec4 x_at(uint at) {
    return uintBitsToFloat(push.x.data[at]);
}

// 16 bytes times 16 values of int16, summed: exact, since 16 · 128 · 32639 is far below 2³¹.
int dot16_int16(uvec4 bytes, uvec4 high, uvec4 low) {
    return (dot16(bytes, high) << 8) + dot16(bytes, low);
}

// The sum over 16 weights of one group, as stored (int4 comes as 16 · q), times one column; and the sum of these x where
// the scheme has minima.
float product(uvec4 weights, uint quads, uint group, uint half_index, uint column, out float x_sum) {
    x_sum = 0.0;
    if (INT8_X) {
        uint at = (column * quads * QUAD + group * GROUP) / 16 + half_index;
        return float(dot16(weights, push.x.data[at]));
    }
    if (INT16_X) {
        uint at = (column * quads * QUAD + group * GROUP) / 16 + half_index;
        uvec4 high = push.x.data[at];
        uvec4 low = push.x.data[at + COLUMNS * quads * (QUAD / 16)];
        if (HAS_MIN) {
            x_sum = float(dot16_int16(uvec4(0x01010101u), high, low));
        }
        return float(dot16_int16(weights, high, low));
    }
    uint at = (column * quads * QUAD + group * GROUP) / 4 + half_index * 4;
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        vec4 x = x_at(at + i);
        sum += dot(bytes_to_floats(weights[i]), x);
        if (HAS_MIN) {
            x_sum += dot(x, vec4(1.0));
        }
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

// One of the four words of 16 gated values in each plane, and for the first also their scale.
void write_int16(uint unit, uint column, uint quarter) {
    // As integers, magnitudes are in order with what is not a number above all: it ends up in the scale and is not lost.
    uint largest = 0;
    for (uint i = 0; i < STRIP; i++) {
        largest = max(largest, floatBitsToUint(parts[(column * STRIP + i) * PART]) & 0x7fffffffu);
    }
    // Scales below the smallest normal float are 0 to some drivers.
    bool nothing = largest < floatBitsToUint(1e-30);
    float scale = nothing ? 0.0 : uintBitsToFloat(largest) / 32639.0;
    ivec4 high;
    ivec4 low;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        float value = parts[(column * STRIP + quarter * 4 + i) * PART];
        int q = nothing ? 0 : clamp(int(round(value / scale)), -32639, 32639);
        low[i] = ((q + 128) & 255) - 128;
        high[i] = (q - low[i]) >> 8;
    }
    uint first = column * push.y_stride + push.y_first + unit * STRIP;
    OutputWords words = OutputWords(push.y);
    words.data[first / 4 + quarter] = pack_bytes(high);
    words.data[push.y_low + first / 4 + quarter] = pack_bytes(low);
    if (quarter == 0) {
        // As int16_scale_at (vectors.rs).
        uint half_group = first / STRIP;
        push.y_scales.data[half_group / 8 * 8 + half_group % 2 * 4 + half_group % 8 / 2] = scale;
    }
}

void main() {
    uint thread = thread_index();
    uint lane = thread % SLICE;
    uint slice = thread / SLICE;
    uint row = lane / 2;
    uint half_index = lane % 2;
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint units = (push.rows + STRIP * STRIPS - 1) / (STRIP * STRIPS);

    for (uint unit = gl_WorkGroupID.x; unit < units; unit += gl_NumWorkGroups.x) {
        uint strip = unit * STRIPS + slice % STRIPS;
        float sums[COLUMNS];
        [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
            sums[column] = 0.0;
        }
        for (uint first = slice / STRIPS; first < quads; first += SHARERS * IN_FLIGHT) {
            uvec4 weights[IN_FLIGHT * TILES];
            uvec2 halves[IN_FLIGHT];
            uvec2 min_halves[IN_FLIGHT];
            [[unroll]] for (uint i = 0; i < IN_FLIGHT; i++) {
                // Past the end the last quad is loaded again and not used: no branch stands before the loads.
                uint quad = strip * quads + min(first + i * SHARERS, quads - 1);
                [[unroll]] for (uint tile = 0; tile < TILES; tile++) {
                    weights[i * TILES + tile] = push.values.data[(quad * TILES + tile) * SLICE + lane];
                }
                if (HAS_MIN) {
                    halves[i] = push.scales.data[(quad * STRIP + row) * 2];
                    min_halves[i] = push.scales.data[(quad * STRIP + row) * 2 + 1];
                } else if (!IS_FLOAT) {
                    halves[i] = push.scales.data[quad * STRIP + row];
                }
            }
            [[unroll]] for (uint i = 0; i < IN_FLIGHT; i++) {
                uint quad = first + i * SHARERS;
                if (quad >= quads) {
                    break;
                }
                if (IS_FLOAT) {
                    [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
                        [[unroll]] for (uint tile = 0; tile < TILES; tile++) {
                            uvec4 floats = weights[i * TILES + tile];
                            sums[column] += float_product(floats, quads, quad, tile, half_index, column);
                        }
                    }
                    continue;
                }
                vec4 scales = vec4(unpackHalf2x16(halves[i].x), unpackHalf2x16(halves[i].y));
                vec4 minima = vec4(0.0);
                if (HAS_MIN) {
                    minima = vec4(unpackHalf2x16(min_halves[i].x), unpackHalf2x16(min_halves[i].y));
                    [[unroll]] for (uint group = 0; group < 4; group++) {
                        vec2 both = scale_of(scales[group], minima[group]);
                        scales[group] = both.x;
                        minima[group] = both.y;
                    }
                }
                [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
                    vec4 both = scales;
                    vec4 both_minima = minima;
                    if (INT8_X) {
                        both *= push.x_scales.data[column * quads + quad];
                    }
                    if (INT16_X) {
                        vec4 x_scales = push.x_scales.data[(column * quads + quad) * 2 + half_index];
                        both *= x_scales;
                        both_minima *= x_scales;
                    }
                    [[unroll]] for (uint group = 0; group < 4; group++) {
                        uvec4 bytes;
                        if (!IS_INT4) {
                            bytes = weights[i * TILES + group];
                        } else {
                            uvec4 nibbles = weights[i * TILES + group / 2];
                            bytes = group % 2 == 0 ? low_nibbles(nibbles) : high_nibbles(nibbles);
                        }
                        float x_sum;
                        sums[column] +=
                            product(bytes, quads, quad * 4 + group, half_index, column, x_sum) * both[group];
                        if (HAS_MIN) {
                            sums[column] += x_sum * both_minima[group];
                        }
                    }
                }
            }
        }

        // Join the halves of a row, then the slices.
        [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
            float sum = SCHEME == INT4 ? sums[column] * 0.0625 : sums[column];
#if TIER >= 1
            sum += subgroupShuffleXor(sum, 1);
            if (half_index == 0) {
                parts[(slice * COLUMNS + column) * STRIP + row] = sum;
            }
#else
            parts[((slice * COLUMNS + column) * STRIP + row) * 2 + half_index] = sum;
#endif
        }
        barrier();
        for (uint i = thread; i < STRIP * COLUMNS; i += THREADS) {
            float joined[STRIPS];
            [[unroll]] for (uint s = 0; s < STRIPS; s++) {
                float sum = 0.0;
                for (uint other = s; other < SLICES; other += STRIPS) {
#if TIER >= 1
                    sum += parts[other * COLUMNS * STRIP + i];
#else
                    uint pair = (other * COLUMNS * STRIP + i) * 2;
                    sum += parts[pair] + parts[pair + 1];
#endif
                }
                joined[s] = sum;
            }
            uint at = i / STRIP * push.y_stride + push.y_first + unit * STRIP + i % STRIP;
            if (EPILOGUE != 0 && INT16_OUTPUT) {
                // This thread alone has read what stood here.
                parts[i * PART] = gated(joined[0], joined[STRIPS - 1]);
            } else if (EPILOGUE != 0) {
                push.y.data[at] = gated(joined[0], joined[STRIPS - 1]);
            } else if (unit * STRIP + i % STRIP < push.rows) {
                push.y.data[at] = joined[0];
            }
        }
        if (EPILOGUE != 0 && INT16_OUTPUT) {
            barrier();
            if (thread < COLUMNS * 4) {
                write_int16(unit, thread / 4, thread % 4);
            }
        }
        barrier();
    }
}
