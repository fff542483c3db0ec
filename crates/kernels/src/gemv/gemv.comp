#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// y = W · x for 1 to 8 columns of x, W in the tiled layout (see layout.rs): strips of 16 rows, cut into quads of 4 groups
// of 32 along K.
//
// 32 threads, a slice, take one quad at a time: thread l holds row l/2, half l%2 of each group, so that a load of 16 bytes a
// thread covers a tile of 512 contiguous bytes. The slices of a workgroup share the quads of a strip; their sums are joined
// in a fixed order at the end of it.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint COLUMNS = 1;
// 8 or 4.
layout(constant_id = 2) const uint BITS = 8;
// Activations as int8 with a scale per group, else as f32.
layout(constant_id = 3) const bool INT8_ACTIVATIONS = true;
// Quads whose weights a slice loads before it uses any of them.
layout(constant_id = 4) const uint IN_FLIGHT = 1;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Words2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Words4 values;
    Words2 scales;
    Words4 x;
    Floats4 x_scales;
    Output y;
    uint rows;
    uint k;
    // Where this part of the matrix starts in y, and how far apart the columns of y are.
    uint y_first;
    uint y_stride;
} push;

const uint STRIP = 16;
const uint GROUP = 32;
const uint QUAD = 128;
const uint SLICE = 32;
const uint SLICES = THREADS / SLICE;
const uint TILES = BITS / 2;   // tiles of 512 bytes in a quad: 4 of int8, 2 of int4

#if TIER >= 1
shared float parts[THREADS / 2 * COLUMNS];
#else
shared float parts[THREADS * COLUMNS];
#endif

// The sum over 16 weights of one group, as stored (int4 comes as 16 · q), times one column.
float product(uvec4 weights, uint quads, uint group, uint half_index, uint column) {
    if (INT8_ACTIVATIONS) {
        uint at = (column * quads * QUAD + group * GROUP) / 16 + half_index;
        return float(dot16(weights, push.x.data[at]));
    }
    uint at = (column * quads * QUAD + group * GROUP) / 4 + half_index * 4;
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        sum += dot(bytes_to_floats(weights[i]), uintBitsToFloat(push.x.data[at + i]));
    }
    return sum;
}

void main() {
    uint thread = thread_index();
    uint lane = thread % SLICE;
    uint slice = thread / SLICE;
    uint row = lane / 2;
    uint half_index = lane % 2;
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint strips = (push.rows + STRIP - 1) / STRIP;

    for (uint strip = gl_WorkGroupID.x; strip < strips; strip += gl_NumWorkGroups.x) {
        float sums[COLUMNS];
        [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
            sums[column] = 0.0;
        }
        for (uint first = slice; first < quads; first += SLICES * IN_FLIGHT) {
            uvec4 weights[IN_FLIGHT * TILES];
            uvec2 halves[IN_FLIGHT];
            [[unroll]] for (uint i = 0; i < IN_FLIGHT; i++) {
                // Past the end the last quad is loaded again and not used: no branch stands before the loads.
                uint quad = strip * quads + min(first + i * SLICES, quads - 1);
                [[unroll]] for (uint tile = 0; tile < TILES; tile++) {
                    weights[i * TILES + tile] = push.values.data[(quad * TILES + tile) * SLICE + lane];
                }
                halves[i] = push.scales.data[quad * STRIP + row];
            }
            [[unroll]] for (uint i = 0; i < IN_FLIGHT; i++) {
                uint quad = first + i * SLICES;
                if (quad >= quads) {
                    break;
                }
                vec4 scales = vec4(unpackHalf2x16(halves[i].x), unpackHalf2x16(halves[i].y));
                [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
                    vec4 both = scales;
                    if (INT8_ACTIVATIONS) {
                        both *= push.x_scales.data[column * quads + quad];
                    }
                    [[unroll]] for (uint group = 0; group < 4; group++) {
                        uvec4 bytes;
                        if (BITS == 8) {
                            bytes = weights[i * TILES + group];
                        } else {
                            // Nibbles are two's complement: moved to the high half of a byte they are 16 · q.
                            uvec4 nibbles = weights[i * TILES + group / 2];
                            bytes = (group % 2 == 0 ? nibbles << 4 : nibbles) & 0xf0f0f0f0u;
                        }
                        sums[column] += product(bytes, quads, quad * 4 + group, half_index, column) * both[group];
                    }
                }
            }
        }

        // Join the halves of a row, then the slices.
        [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
            float sum = BITS == 8 ? sums[column] : sums[column] * 0.0625;
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
            float sum = 0.0;
            for (uint other = 0; other < SLICES; other++) {
#if TIER >= 1
                sum += parts[other * COLUMNS * STRIP + i];
#else
                uint pair = (other * COLUMNS * STRIP + i) * 2;
                sum += parts[pair] + parts[pair + 1];
#endif
            }
            uint y_row = strip * STRIP + i % STRIP;
            if (y_row < push.rows) {
                push.y.data[i / STRIP * push.y_stride + push.y_first + y_row] = sum;
            }
        }
        barrier();
    }
}
