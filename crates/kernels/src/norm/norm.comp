#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// RMSNorm with residual add, one workgroup per output row:
//
//   t = POST_NORM ? rmsnorm(x) · post_weight : x
//   r = RESIDUAL  ? (residual + t) · s       : t      (written back to residual; s = 1 unless SCALED)
//   y = rmsnorm(r) · weight                           (f32, f16, int8 with 32 values per scale, int16 with 16)
//
// Neither: a plain norm. RESIDUAL alone: Llama. Both: Gemma 3, whose sublayers end with their own norm. SCALED:
// Gemma 4, whose layers end with a factor of their own.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const bool POST_NORM = false;
layout(constant_id = 2) const bool RESIDUAL = false;
// As Activations (vectors.rs).
layout(constant_id = 3) const uint OUTPUT = 0;
// Output row i is computed from row rows[i] of x and of the residual stream; otherwise from row i.
layout(constant_id = 4) const bool GATHER = false;
// Split-K partial sums of x, consecutive within a row.
layout(constant_id = 5) const uint PARTIALS = 1;
// Partial sums are multiplied by weights of their own: the outputs of a row's experts.
layout(constant_id = 6) const bool WEIGHTED = false;
// The residual stream is multiplied by a factor after the add.
layout(constant_id = 7) const bool SCALED = false;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Rows { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Residual { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Bytes { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats post_weight;
    Residual residual;
    Floats weight;
    Output y;
    // Bytes of int8 and int16, or f16.
    Bytes y_bytes;
    Output y_scales;
    // Active output rows.
    Active active_rows;
    Rows rows;
    uint n;
    float epsilon;
    // Words of the plane of high bytes, after which the low bytes start.
    uint plane_words;
    // Per row of x, the weights of its partial sums.
    Floats partial_weights;
    // One float.
    Floats residual_scale;
} push;

#include "reduce.glsl"
#include "int16.glsl"
#include "f16.glsl"

const bool INT16 = OUTPUT == 2;
const bool F16 = OUTPUT == 3;
const bool QUANTIZE = OUTPUT == 1 || INT16;
// Values that are written together: those that share a scale, or words.
const uint GROUP = F16 ? 4 : INT16 ? 16 : 32;
const uint QUAD = 128;
// Neighbouring values per thread: a whole group where one is written. All passes use the same mapping, so that
// each thread reads back only what it wrote.
const uint THREAD_VALUES = QUANTIZE || F16 ? GROUP : 1;

float x_at(uint from, uint i) {
    uint first = from * PARTIALS * push.n + i;
    float value = 0.0;
    for (uint sum = 0; sum < PARTIALS; sum++) {
        float weight = WEIGHTED ? push.partial_weights.data[from * PARTIALS + sum] : 1.0;
        value += push.x.data[first + sum * push.n] * weight;
    }
    return value;
}

float inverse_rms(float sum_of_squares) {
    return inversesqrt(sum_of_squares / float(push.n) + push.epsilon);
}

uint scale_at(uint group) {
    return INT16 ? int16_scale_at(group) : group;
}

void quantize(uint row, uint first, float values[GROUP]) {
    uint largest = 0;
    [[unroll]] for (uint j = 0; j < GROUP; j++) {
        largest = max(largest, magnitude(values[j]));
    }
    float factor = INT16 ? int16_factor(largest) : largest > 0 ? 127.0 / uintBitsToFloat(largest) : 0.0;
    uint quads = (push.n + QUAD - 1) / QUAD;
    uint word = (row * quads * QUAD + first) / 4;
    [[unroll]] for (uint j = 0; j < GROUP; j += 4) {
        ivec4 q = int16_of(vec4(values[j], values[j + 1], values[j + 2], values[j + 3]), factor);
        if (INT16) {
            push.y_bytes.data[word + j / 4] = high_bytes(q);
            push.y_bytes.data[push.plane_words + word + j / 4] = low_bytes(q);
        } else {
            push.y_bytes.data[word + j / 4] = pack_bytes(q);
        }
    }
    float scale = INT16 ? int16_scale(largest) : uintBitsToFloat(largest) / 127.0;
    push.y_scales.data[row * quads * (QUAD / GROUP) + scale_at(first / GROUP)] = scale;
}

void main() {
    uint thread = thread_index();
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows) {
        return;
    }
    uint from = GATHER ? push.rows.data[row] : row;
    uint base = from * push.n;
    uint stride = THREADS * THREAD_VALUES;
    uint quads = (push.n + QUAD - 1) / QUAD;

    float post_scale = 1.0;
    if (POST_NORM) {
        float squares = 0.0;
        for (uint first = thread * THREAD_VALUES; first < push.n; first += stride) {
            for (uint j = 0; j < THREAD_VALUES; j++) {
                float value = x_at(from, first + j);
                squares += value * value;
            }
        }
        post_scale = inverse_rms(workgroup_sum(squares));
    }

    float squares = 0.0;
    float residual_scale = SCALED ? push.residual_scale.data[0] : 1.0;
    for (uint first = thread * THREAD_VALUES; first < push.n; first += stride) {
        for (uint j = 0; j < THREAD_VALUES; j++) {
            uint i = first + j;
            float value = x_at(from, i);
            if (POST_NORM) {
                value = value * post_scale * push.post_weight.data[i];
            }
            if (RESIDUAL) {
                value += push.residual.data[base + i];
                if (SCALED) {
                    value *= residual_scale;
                }
                push.residual.data[base + i] = value;
            }
            squares += value * value;
        }
    }
    float scale = inverse_rms(workgroup_sum(squares));

    for (uint first = thread * THREAD_VALUES; first < push.n; first += stride) {
        float values[GROUP];
        for (uint j = 0; j < THREAD_VALUES; j++) {
            uint i = first + j;
            float value;
            if (RESIDUAL) {
                value = push.residual.data[base + i];
            } else {
                value = x_at(from, i);
                if (POST_NORM) {
                    value = value * post_scale * push.post_weight.data[i];
                }
            }
            value = value * scale * push.weight.data[i];
            if (QUANTIZE || F16) {
                values[j] = value;
            } else {
                push.y.data[row * quads * QUAD + i] = value;
            }
        }
        if (QUANTIZE) {
            quantize(row, first, values);
        } else if (F16) {
            vec4 values4;
            [[unroll]] for (uint j = 0; j < 4; j++) {
                values4[j] = values[j];
            }
            Words2(push.y_bytes).data[(row * quads * QUAD + first) / 4] = f16_activations(values4);
        }
    }
    if (QUANTIZE) {
        // The scales of the padding are zero, so that its bytes add nothing.
        uint groups = quads * (QUAD / GROUP);
        for (uint group = push.n / GROUP + thread; group < groups; group += THREADS) {
            push.y_scales.data[row * groups + scale_at(group)] = 0.0;
        }
    }
}
