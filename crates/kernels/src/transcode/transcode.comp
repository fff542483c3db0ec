#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// Transcodes rows of a tensor from a file's encoding to the tiled layout (see `Layout` in crate tensor). One
// thread takes one quad of one row.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;
// As ENCODINGS (mod.rs).
layout(constant_id = 1) const uint ENCODING = 0;

const uint F32 = 0;
const uint F16 = 1;
const uint BF16 = 2;
const uint Q8_0 = 3;
const uint Q4_0 = 4;
const uint Q4_1 = 5;
const uint Q5_0 = 6;
const uint Q5_1 = 7;
const uint Q4_K = 8;
const uint Q5_K = 9;
const uint Q6_K = 10;
// One byte per value, with scales in a separate tensor.
const uint INT8_SYMMETRIC = 11;
const uint INT4_GROUPED = 12;
const uint INT8_ASYMMETRIC = 13;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Tiles { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Scales { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Damage { uint row; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };

layout(push_constant, scalar) uniform Push {
    Words source;
    Tiles values;
    Scales scales;
    // Index of the first row of the tensor with a non-finite number or a value out of range; all ones if
    // there is none.
    Damage damage;
    // Scales from a separate tensor.
    Floats external_scales;
    // Byte offset of the first row in the source; any alignment.
    uint first_byte;
    uint row_bytes;
    uint rows;
    uint k;
    // Index in the tensor of the first row to transcode.
    uint first_row;
    // Strip s of the tensor goes to strip first_strip + s · strip_step of the matrix.
    uint first_strip;
    uint strip_step;
    // Index of the first of external_scales among the tensor's scales.
    uint first_scale;
} push;

const uint STRIP = 16;
const uint GROUP = 32;
const uint QUAD = 128;
// Columns per super-block of the K types.
const uint SUPER = 256;

// A group of 32: its values as 8 words of signed bytes, and the bits of its f16 scale and minimum.
struct Group {
    uint bytes[8];
    uint scale;
    uint minimum;
};

uint load32(uint at) {
    uint shift = (at & 3) * 8;
    uint low = push.source.data[at / 4];
    return shift == 0 ? low : low >> shift | push.source.data[at / 4 + 1] << (32 - shift);
}

uint load8(uint at) {
    return push.source.data[at / 4] >> ((at & 3) * 8) & 0xff;
}

uint load16(uint at) {
    return load32(at) & 0xffff;
}

float load_half(uint at) {
    return unpackHalf2x16(load16(at)).x;
}

// To the nearest f16, ties to even. Not packHalf2x16: Vulkan leaves its rounding and its subnormals to the
// device, and a file must become the same bytes everywhere.
uint half_bits(float value) {
    uint bits = floatBitsToUint(value);
    uint sign = bits >> 16 & 0x8000;
    uint magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return 0x7e00;
    }
    if (magnitude < 0x38800000) {
        return sign | uint(roundEven(uintBitsToFloat(magnitude) * 16777216.0));
    }
    uint rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return sign | min((rounded >> 13) - (112u << 10), 0x7c00);
}

// The value of an f16, subnormals included.
float packed_half(uint bits) {
    uint magnitude = bits & 0x7fff;
    float normal = uintBitsToFloat((magnitude << 13) + (112u << 23));
    float value = magnitude < 0x400 ? float(magnitude) * (1.0 / 16777216.0) : normal;
    return (bits & 0x8000) == 0 ? value : -value;
}

// Moves bit i of 0…3 to bit `to` of byte i.
uint spread(uint bits, uint to) {
    return ((bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21) << to;
}

// The 6-bit scale and minimum of sub-block `index` of a Q4_K or Q5_K super-block, whose 12 packed bytes start at `at`.
uvec2 sub_scales(uint at, uint index) {
    if (index < 4) {
        return uvec2(load8(at + index), load8(at + index + 4)) & 63u;
    }
    uint packed = load8(at + index + 4);
    return uvec2(packed & 15 | load8(at + index - 4) >> 6 << 4, packed >> 4 | load8(at + index) >> 6 << 4);
}

// Blocks of 32 with 4 or 5 bits: low nibbles are the first 16 values, high ones the last 16.
void legacy_nibbles(uint at, out uint bytes[8]) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint word = load32(at + 4 * i);
        bytes[i] = word & 0x0f0f0f0fu;
        bytes[i + 4] = word >> 4 & 0x0f0f0f0fu;
    }
}

void fifth_bits(uint high, inout uint bytes[8]) {
    [[unroll]] for (uint i = 0; i < 8; i++) {
        bytes[i] |= spread(high >> (4 * i), 4);
    }
}

// Subtracts 16 from bytes of 0…31, without borrows between them.
uint subtract16(uint bytes) {
    return ((bytes | 0x80808080u) - 0x10101010u) ^ 0x80808080u;
}

// Q6_K: the product of the sub-block's scale and the value, an exact integer; d is common to all.
int q6_product(uint block, uint half_index, uint index, uint i) {
    uint low_at = block + half_index * 64 + (index & 1) * 32 + i;
    uint low = load8(low_at) >> (index / 2 * 4) & 15;
    uint high = load8(block + 128 + half_index * 32 + i) >> (index * 2) & 3;
    uint scale = load8(block + 192 + half_index * 8 + index * 2 + i / 16);
    return (int(low | high << 4) - 32) * bitfieldExtract(int(scale), 0, 8);
}

// Two sub-blocks of 16 get one scale: f16, such that the largest value is 127 steps, and never so small that
// it would be flushed.
Group q6_group(uint block, uint half_index, uint index) {
    Group group;
    int largest = 0;
    for (uint i = 0; i < GROUP; i++) {
        largest = max(largest, abs(q6_product(block, half_index, index, i)));
    }
    float d = load_half(block + 208);
    float largest_value = abs(d) * float(largest);
    group.scale = half_bits(largest_value / 127.0);
    if (largest_value > 127.5 * packed_half(group.scale)) {
        group.scale++;
    }
    group.minimum = 0;
    float step = packed_half(group.scale);
    [[unroll]] for (uint word = 0; word < 8; word++) {
        ivec4 q;
        [[unroll]] for (uint j = 0; j < 4; j++) {
            float value = d * float(q6_product(block, half_index, index, word * 4 + j));
            float nearest = step == 0.0 ? 0.0 : roundEven(clamp(value / step, -127.0, 127.0));
            // A division may be off by a few ULP: what matters is the nearest integer.
            float remainder = value - nearest * step;
            if (abs(remainder) > 0.5 * step) {
                nearest += sign(remainder);
            }
            q[j] = int(clamp(nearest, -127.0, 127.0));
        }
        group.bytes[word] = pack_bytes(q);
    }
    return group;
}

// Set on a value that its encoding does not allow.
bool out_of_range = false;

Group layerwise_group(uint row_at, uint row, uint index) {
    Group group;
    group.minimum = 0;
    uint at = row_at + index * GROUP;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        group.bytes[i] = load32(at + 4 * i);
    }
    if (ENCODING == INT8_SYMMETRIC) {
        group.scale = half_bits(push.external_scales.data[0]);
    } else if (ENCODING == INT4_GROUPED) {
        // One scale per 128 values of the flattened tensor: four groups of 32, which may span the end of a
        // row.
        group.scale = half_bits(push.external_scales.data[(row * (push.k / GROUP) + index) / 4 - push.first_scale]);
        [[unroll]] for (uint i = 0; i < 8; i++) {
            // −8…7 plus 8 has no bit above the fourth; the sum is computed byte by byte.
            uint shifted = ((group.bytes[i] & 0x7f7f7f7fu) + 0x08080808u) ^ (group.bytes[i] & 0x80808080u);
            out_of_range = out_of_range || (shifted & 0xf0f0f0f0u) != 0;
            group.bytes[i] &= 0x0f0f0f0fu;
        }
    } else {
        int low = 255;
        int high = 0;
        for (uint i = 0; i < GROUP; i++) {
            int code = int(group.bytes[i / 4] >> (i % 4 * 8) & 255);
            low = min(low, code);
            high = max(high, code);
        }
        // The code that maps to zero: the zero point, or the nearest to it for which every code fits 8 bits.
        float scale = push.external_scales.data[0];
        float zero_point = push.external_scales.data[1];
        int base = clamp(int(clamp(round(zero_point), -1000.0, 1000.0)), high - 127, low + 128);
        [[unroll]] for (uint i = 0; i < 8; i++) {
            ivec4 codes = ivec4(group.bytes[i], group.bytes[i] >> 8, group.bytes[i] >> 16, group.bytes[i] >> 24) & 255;
            group.bytes[i] = pack_bytes(codes - base);
        }
        group.scale = half_bits(scale);
        group.minimum = half_bits((float(base) - zero_point) * scale);
    }
    return group;
}

Group load_group(uint row_at, uint row, uint index) {
    if (ENCODING >= INT8_SYMMETRIC) {
        return layerwise_group(row_at, row, index);
    }
    Group group;
    group.minimum = 0;
    if (ENCODING == Q8_0) {
        uint at = row_at + index * 34;
        group.scale = load16(at);
        [[unroll]] for (uint i = 0; i < 8; i++) {
            group.bytes[i] = load32(at + 2 + 4 * i);
        }
    } else if (ENCODING == Q4_0 || ENCODING == Q4_1) {
        uint at = row_at + index * (ENCODING == Q4_0 ? 18 : 20);
        group.scale = load16(at);
        if (ENCODING == Q4_1) {
            group.minimum = load16(at + 2);
        }
        legacy_nibbles(at + (ENCODING == Q4_0 ? 2 : 4), group.bytes);
        // u − 8 as a two's complement nibble is u with its highest bit flipped.
        [[unroll]] for (uint i = 0; i < 8; i++) {
            group.bytes[i] ^= 0x08080808u;
        }
    } else if (ENCODING == Q5_0 || ENCODING == Q5_1) {
        uint at = row_at + index * (ENCODING == Q5_0 ? 22 : 24);
        group.scale = load16(at);
        if (ENCODING == Q5_1) {
            group.minimum = load16(at + 2);
            at += 2;
        }
        legacy_nibbles(at + 6, group.bytes);
        fifth_bits(load32(at + 2), group.bytes);
        if (ENCODING == Q5_0) {
            [[unroll]] for (uint i = 0; i < 8; i++) {
                group.bytes[i] = subtract16(group.bytes[i]);
            }
        }
    } else if (ENCODING == Q4_K || ENCODING == Q5_K) {
        uint block = row_at + index / 8 * (ENCODING == Q4_K ? 144 : 176);
        uint sub = index % 8;
        uint nibbles = block + (ENCODING == Q4_K ? 16 : 48) + sub / 2 * 32;
        uint lowest = 31;
        [[unroll]] for (uint i = 0; i < 8; i++) {
            uint codes = load32(nibbles + 4 * i) >> (sub % 2 * 4) & 0x0f0f0f0fu;
            if (ENCODING == Q5_K) {
                codes |= (load32(block + 16 + 4 * i) >> sub & 0x01010101u) << 4;
            }
            group.bytes[i] = codes;
            lowest = min(lowest, min(min(codes & 255, codes >> 8 & 255), min(codes >> 16 & 255, codes >> 24)));
        }
        // Codes are shifted down so that the lowest in use is 0: the minimum is then a value of the group,
        // and its rounding to f16 no larger than theirs.
        [[unroll]] for (uint i = 0; i < 8; i++) {
            group.bytes[i] -= lowest * 0x01010101u;
            if (ENCODING == Q4_K) {
                group.bytes[i] ^= 0x08080808u;
            }
        }
        uvec2 scales = sub_scales(block + 4, sub);
        float scale = load_half(block) * float(scales.x);
        group.scale = half_bits(scale);
        group.minimum = half_bits(scale * float(lowest) - load_half(block + 2) * float(scales.y));
    } else {
        group = q6_group(row_at + index / 8 * 210, index / 4 % 2, index % 4);
    }
    return group;
}

void main() {
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint at = gl_GlobalInvocationID.x;
    if (at >= push.rows * quads) {
        return;
    }
    uint quad = at % quads;
    uint row_at = push.first_byte + at / quads * push.row_bytes;
    uint row = push.first_row + at / quads;
    uint strip = push.first_strip + row / STRIP * push.strip_step;
    uint strip_row = row % STRIP;
    uint strip_quad = strip * quads + quad;

    if (ENCODING <= BF16) {
        uint columns = ENCODING == F32 ? 8 : 16;
        uint tiles = QUAD / columns;
        for (uint tile = 0; tile < tiles; tile++) {
            uint target = ((strip_quad * tiles + tile) * STRIP + strip_row) * 2;
            uint from = row_at + (quad * tiles + tile) * 32;
            // Values of the row from this tile on: the next row follows them.
            int remaining = int(push.k) - int(quad * QUAD + tile * columns);
            [[unroll]] for (uint row_half = 0; row_half < 2; row_half++) {
                uvec4 words = uvec4(0);
                [[unroll]] for (uint i = 0; i < 4; i++) {
                    int values = remaining - int((row_half * 4 + i) * (columns / 8));
                    if (values > 0) {
                        words[i] = load32(from + (row_half * 4 + i) * 4);
                    }
                    if (columns == 16 && values == 1) {
                        words[i] &= 0xffffu;
                    }
                    // Infinity and NaN have an exponent of all ones.
                    const uint exponent = ENCODING == F32 ? 0x7f800000u : ENCODING == F16 ? 0x7c00u : 0x7f80u;
                    bool low_invalid = (words[i] & exponent) == exponent;
                    bool high_invalid = ENCODING != F32 && (words[i] >> 16 & exponent) == exponent;
                    if (low_invalid || high_invalid) {
                        atomicMin(push.damage.row, row);
                    }
                }
                push.values.data[target + row_half] = words;
            }
        }
        return;
    }

    const bool nibbles =
        ENCODING == Q4_0 || ENCODING == Q4_1 || ENCODING == Q4_K || ENCODING == INT4_GROUPED;
    const bool has_minimums = ENCODING == Q4_1 || ENCODING == Q5_1 || ENCODING == Q4_K || ENCODING == Q5_K
        || ENCODING == INT8_ASYMMETRIC;
    uint scales[4];
    uint minimums[4];
    Group low;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uint index = quad * 4 + i;
        Group group;
        if (index * GROUP < push.k) {
            group = load_group(row_at, row, index);
        } else {
            // Padding: zeros; for nibbles with a minimum, a scale and minimum of zero have the same effect.
            group.scale = 0;
            group.minimum = 0;
            [[unroll]] for (uint j = 0; j < 8; j++) {
                group.bytes[j] = 0;
            }
        }
        scales[i] = group.scale;
        minimums[i] = group.minimum;
        // An infinite or NaN f16 has an exponent of all ones.
        if (out_of_range || (group.scale & 0x7c00) == 0x7c00 || (group.minimum & 0x7c00) == 0x7c00) {
            atomicMin(push.damage.row, row);
        }
        if (!nibbles) {
            uint target = ((strip_quad * 4 + i) * STRIP + strip_row) * 2;
            push.values.data[target] = uvec4(group.bytes[0], group.bytes[1], group.bytes[2], group.bytes[3]);
            push.values.data[target + 1] = uvec4(group.bytes[4], group.bytes[5], group.bytes[6], group.bytes[7]);
        } else if (i % 2 == 0) {
            low = group;
        } else {
            uint target = ((strip_quad * 2 + i / 2) * STRIP + strip_row) * 2;
            [[unroll]] for (uint row_half = 0; row_half < 2; row_half++) {
                uvec4 words;
                [[unroll]] for (uint j = 0; j < 4; j++) {
                    words[j] = low.bytes[row_half * 4 + j] | group.bytes[row_half * 4 + j] << 4;
                }
                push.values.data[target + row_half] = words;
            }
        }
    }
    uint target = (strip_quad * STRIP + strip_row) * (has_minimums ? 4 : 2);
    push.scales.data[target] = scales[0] | scales[1] << 16;
    push.scales.data[target + 1] = scales[2] | scales[3] << 16;
    if (has_minimums) {
        push.scales.data[target + 2] = minimums[0] | minimums[1] << 16;
        push.scales.data[target + 3] = minimums[2] | minimums[3] << 16;
    }
}
