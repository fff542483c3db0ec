#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// The computation of norm.comp for rows that fit the registers of a workgroup: every thread loads all its
// data at once, so that one row costs the latency of one load and two reductions. Groups of quantised values
// are in neighbouring threads and are combined by shuffles: int8 and int16 need T1.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const bool POST_NORM = false;
layout(constant_id = 2) const bool RESIDUAL = false;
// As Activations (vectors.rs).
layout(constant_id = 3) const uint OUTPUT = 0;
layout(constant_id = 4) const bool GATHER = false;
// Quarters (four values) per thread.
layout(constant_id = 5) const uint PER_THREAD = 1;
// Split-K partial sums of x, consecutive within a row.
layout(constant_id = 6) const uint PARTIALS = 1;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Rows { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Residual4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Scales { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Bytes { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats4 x;
    Floats4 post_weight;
    Residual4 residual;
    Floats4 weight;
    Output4 y;
    // Bytes of int8 and int16, or f16.
    Bytes y_bytes;
    Scales y_scales;
    // Active output rows.
    Active in_use;
    Rows rows;
    uint n;
    float epsilon;
    // Words of the plane of high bytes, after which the low bytes start.
    uint plane_words;
} push;

#include "int16.glsl"
#include "f16.glsl"

const bool INT16 = OUTPUT == 2;
const bool F16 = OUTPUT == 3;
const bool QUANTIZE = OUTPUT == 1 || INT16;
const uint QUAD = 128;

// Two sums, each in its own memory: no barrier is needed between reading the first and writing the second.
#if TIER >= 1
// A subgroup has at least 4 threads on every device that has tier T1.
const uint PER_PART = 4;
#else
const uint PER_PART = 1;
#endif
const uint PARTS = (THREADS + PER_PART - 1) / PER_PART;
shared float parts[2 * PARTS];

float workgroup_sum(uint first, float value) {
#if TIER >= 1
    value = subgroupAdd(value);
    if (gl_SubgroupInvocationID == 0) {
        parts[first + gl_SubgroupID] = value;
    }
    barrier();
    // Each thread reads one partial sum, instead of every thread reading all: with many subgroups that would
    // take longer than the rest.
    float sum = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i += gl_SubgroupSize) {
        uint part = i + gl_SubgroupInvocationID;
        value = parts[first + min(part, gl_NumSubgroups - 1)];
        sum += part < gl_NumSubgroups ? value : 0.0;
    }
    return subgroupAdd(sum);
#else
    uint thread = gl_LocalInvocationIndex;
    parts[first + thread] = value;
    barrier();
    // THREADS is a power of two at T0, which the policy guarantees.
    for (uint half_way = THREADS / 2; half_way > 0; half_way /= 2) {
        if (thread < half_way) {
            parts[first + thread] += parts[first + thread + half_way];
        }
        barrier();
    }
    return parts[first];
#endif
}

float inverse_rms(float sum_of_squares) {
    return inversesqrt(sum_of_squares / float(push.n) + push.epsilon);
}

#if TIER >= 1
// Every thread of a subgroup must call this.
void write_quantized(uint row, uint quads, uint quarter, bool held, vec4 value) {
    uint largest = largest_magnitude(value);
    largest = max(largest, subgroupShuffleXor(largest, 1));
    largest = max(largest, subgroupShuffleXor(largest, 2));
    uint word = row * quads * (QUAD / 4) + quarter;
    if (INT16) {
        ivec4 q = int16_of(value, int16_factor(largest));
        if (held) {
            push.y_bytes.data[word] = high_bytes(q);
            push.y_bytes.data[push.plane_words + word] = low_bytes(q);
            if (quarter % 4 == 0) {
                push.y_scales.data[row * quads * INT16_SCALES + int16_scale_at(quarter / 4)] = int16_scale(largest);
            }
        }
    } else {
        largest = max(largest, subgroupShuffleXor(largest, 4));
        float factor = largest > 0 ? 127.0 / uintBitsToFloat(largest) : 0.0;
        if (held) {
            push.y_bytes.data[word] = pack_bytes(ivec4(roundEven(value * factor)));
            if (quarter % 8 == 0) {
                push.y_scales.data[row * quads * 4 + quarter / 8] = uintBitsToFloat(largest) / 127.0;
            }
        }
    }
}

// The scales of the padding are zero, so that its bytes add nothing. They are fewer than the threads of a
// workgroup.
void write_padding(uint row, uint quads, uint thread) {
    uint scales = quads * (INT16 ? INT16_SCALES : 4);
    uint i = push.n / (INT16 ? 16 : 32) + thread;
    if (i < scales) {
        push.y_scales.data[row * scales + (INT16 ? int16_scale_at(i) : i)] = 0.0;
    }
}
#endif

void main() {
    uint thread = thread_index();
    uint row = gl_WorkGroupID.x;
    uint in_use = push.in_use.rows;
    uint from = GATHER ? push.rows.data[row] : row;
    uint quarters = push.n / 4;
    uint quads = (push.n + QUAD - 1) / QUAD;

    vec4 weight[PER_THREAD];
    vec4 post_weight[PER_THREAD];
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        // Past the end the last values are loaded again, without a branch, and not used.
        uint i = min(thread + j * THREADS, quarters - 1);
        weight[j] = push.weight.data[i];
        if (POST_NORM) {
            post_weight[j] = push.post_weight.data[i];
        }
    }
    // The list entry of an inactive row may be no valid row.
    if (GATHER && row >= in_use) {
        return;
    }
    vec4 value[PER_THREAD];
    vec4 before[PER_THREAD];
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        uint quarter = min(thread + j * THREADS, quarters - 1);
        uint first = from * PARTIALS * quarters + quarter;
        value[j] = push.x.data[first];
        [[unroll]] for (uint sum = 1; sum < PARTIALS; sum++) {
            value[j] += push.x.data[first + sum * quarters];
        }
        uint i = from * quarters + quarter;
        if (RESIDUAL) {
            before[j] = push.residual.data[i];
        }
    }
    // Only after the loads: otherwise they would wait for the number of active rows.
    if (row >= in_use) {
        return;
    }
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        if (thread + j * THREADS >= quarters) {
            value[j] = vec4(0.0);
            before[j] = vec4(0.0);
        }
    }

    if (POST_NORM) {
        float squares = 0.0;
        [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
            squares += dot(value[j], value[j]);
        }
        float post_scale = inverse_rms(workgroup_sum(0, squares));
        [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
            value[j] = value[j] * post_scale * post_weight[j];
        }
    }
    float squares = 0.0;
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        if (RESIDUAL) {
            value[j] += before[j];
        }
        squares += dot(value[j], value[j]);
    }
    float scale = inverse_rms(workgroup_sum(PARTS, squares));

    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        uint quarter = thread + j * THREADS;
        bool held = quarter < quarters;
        if (RESIDUAL && held) {
            push.residual.data[from * quarters + quarter] = value[j];
        }
        vec4 normed = value[j] * scale * weight[j];
#if TIER >= 1
        if (QUANTIZE) {
            write_quantized(row, quads, quarter, held, normed);
            continue;
        }
#endif
        uint at = row * quads * (QUAD / 4) + quarter;
        if (F16 && held) {
            Words2(push.y_bytes).data[at] = f16_activations(normed);
        } else if (held) {
            push.y.data[at] = normed;
        }
    }
#if TIER >= 1
    if (QUANTIZE) {
        write_padding(row, quads, thread);
    }
#endif
}
