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
layout(constant_id = 5) const uint VEC4S_PER_THREAD = 1;
// Split-K partial sums of x, consecutive within a row.
layout(constant_id = 6) const uint PARTIALS = 1;
// Partial sums are multiplied by weights of their own: the outputs of a row's experts.
layout(constant_id = 7) const bool WEIGHTED = false;
// The residual stream is multiplied by a factor after the add.
layout(constant_id = 8) const bool SCALED = false;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
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

#include "int16.glsl"
#include "f16.glsl"

const bool INT16 = OUTPUT == 2;
const bool F16 = OUTPUT == 3;
const bool QUANTIZE = OUTPUT == 1 || INT16;
const uint QUAD = 128;

// Two sums, each in its own memory: no barrier is needed between reading the first and writing the second.
#if TIER >= 1
// A subgroup has at least 4 threads on every device that has tier T1.
const uint THREADS_PER_PARTIAL = 4;
#else
const uint THREADS_PER_PARTIAL = 1;
#endif
const uint WORKGROUP_PARTIALS = (THREADS + THREADS_PER_PARTIAL - 1) / THREADS_PER_PARTIAL;
shared float workgroup_partials[2 * WORKGROUP_PARTIALS];

float workgroup_sum(uint first, float value) {
#if TIER >= 1
    value = subgroupAdd(value);
    if (gl_SubgroupInvocationID == 0) {
        workgroup_partials[first + gl_SubgroupID] = value;
    }
    barrier();
    // Each thread reads one partial sum, instead of every thread reading all: with many subgroups that would
    // take longer than the rest.
    float sum = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i += gl_SubgroupSize) {
        uint partial = i + gl_SubgroupInvocationID;
        value = workgroup_partials[first + min(partial, gl_NumSubgroups - 1)];
        sum += partial < gl_NumSubgroups ? value : 0.0;
    }
    return subgroupAdd(sum);
#else
    uint thread = gl_LocalInvocationIndex;
    workgroup_partials[first + thread] = value;
    barrier();
    // THREADS is a power of two at T0, which the policy guarantees.
    for (uint stride = THREADS / 2; stride > 0; stride /= 2) {
        if (thread < stride) {
            workgroup_partials[first + thread] += workgroup_partials[first + thread + stride];
        }
        barrier();
    }
    return workgroup_partials[first];
#endif
}

float inverse_rms(float sum_of_squares) {
    return inversesqrt(sum_of_squares / float(push.n) + push.epsilon);
}

#if TIER >= 1
// Every thread of a subgroup must call this.
void write_quantized(uint row, uint quads, uint vec4_index, bool in_row, vec4 value) {
    uint largest = largest_magnitude(value);
    largest = max(largest, subgroupShuffleXor(largest, 1));
    largest = max(largest, subgroupShuffleXor(largest, 2));
    uint word = row * quads * (QUAD / 4) + vec4_index;
    if (INT16) {
        ivec4 q = int16_of(value, int16_factor(largest));
        if (in_row) {
            push.y_bytes.data[word] = high_bytes(q);
            push.y_bytes.data[push.plane_words + word] = low_bytes(q);
            if (vec4_index % 4 == 0) {
                push.y_scales.data[row * quads * INT16_SCALES + int16_scale_at(vec4_index / 4)] = int16_scale(largest);
            }
        }
    } else {
        largest = max(largest, subgroupShuffleXor(largest, 4));
        float factor = largest > 0 ? 127.0 / uintBitsToFloat(largest) : 0.0;
        if (in_row) {
            push.y_bytes.data[word] = pack_bytes(ivec4(roundEven(value * factor)));
            if (vec4_index % 8 == 0) {
                push.y_scales.data[row * quads * 4 + vec4_index / 8] = uintBitsToFloat(largest) / 127.0;
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
    uint active_rows = push.active_rows.rows;
    uint from = GATHER ? push.rows.data[row] : row;
    uint vec4s = push.n / 4;
    uint quads = (push.n + QUAD - 1) / QUAD;

    vec4 weight[VEC4S_PER_THREAD];
    vec4 post_weight[VEC4S_PER_THREAD];
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        // Past the end, the last vec4 is loaded again and not used: this needs no branch.
        uint i = min(thread + j * THREADS, vec4s - 1);
        weight[j] = push.weight.data[i];
        if (POST_NORM) {
            post_weight[j] = push.post_weight.data[i];
        }
    }
    float residual_scale = SCALED ? push.residual_scale.data[0] : 1.0;
    // The list entry of an inactive row need not be a valid index.
    if (GATHER && row >= active_rows) {
        return;
    }
    vec4 value[VEC4S_PER_THREAD];
    vec4 before[VEC4S_PER_THREAD];
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        uint vec4_index = min(thread + j * THREADS, vec4s - 1);
        uint first = from * PARTIALS * vec4s + vec4_index;
        value[j] = vec4(0.0);
        [[unroll]] for (uint sum = 0; sum < PARTIALS; sum++) {
            float weight = WEIGHTED ? push.partial_weights.data[from * PARTIALS + sum] : 1.0;
            value[j] += push.x.data[first + sum * vec4s] * weight;
        }
        uint i = from * vec4s + vec4_index;
        if (RESIDUAL) {
            before[j] = push.residual.data[i];
        }
    }
    // Only after the loads: otherwise they would wait for the number of active rows.
    if (row >= active_rows) {
        return;
    }
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        if (thread + j * THREADS >= vec4s) {
            value[j] = vec4(0.0);
            before[j] = vec4(0.0);
        }
    }

    if (POST_NORM) {
        float squares = 0.0;
        [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
            squares += dot(value[j], value[j]);
        }
        float post_scale = inverse_rms(workgroup_sum(0, squares));
        [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
            value[j] = value[j] * post_scale * post_weight[j];
        }
    }
    float squares = 0.0;
    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        if (RESIDUAL) {
            value[j] += before[j];
            if (SCALED) {
                value[j] *= residual_scale;
            }
        }
        squares += dot(value[j], value[j]);
    }
    float scale = inverse_rms(workgroup_sum(WORKGROUP_PARTIALS, squares));

    [[unroll]] for (uint j = 0; j < VEC4S_PER_THREAD; j++) {
        uint vec4_index = thread + j * THREADS;
        bool in_row = vec4_index < vec4s;
        if (RESIDUAL && in_row) {
            push.residual.data[from * vec4s + vec4_index] = value[j];
        }
        vec4 normed = value[j] * scale * weight[j];
#if TIER >= 1
        if (QUANTIZE) {
            write_quantized(row, quads, vec4_index, in_row, normed);
            continue;
        }
#endif
        uint at = row * quads * (QUAD / 4) + vec4_index;
        if (F16 && in_row) {
            Words2(push.y_bytes).data[at] = f16_activations(normed);
        } else if (in_row) {
            push.y.data[at] = normed;
        }
    }
#if TIER >= 1
    if (QUANTIZE) {
        write_padding(row, quads, thread);
    }
#endif
}
