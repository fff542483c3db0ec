// Computes x in shared memory: the norm of the residual stream. A sublayer's output may be added to the
// stream first, with or without its own norm, and the stream then multiplied by a factor. Every workgroup repeats the work: that is cheaper than a
// separate dispatch and the barrier after it.
//
// The factor of the last norm is common to all values, so it is left out of x and applied to the sums at the
// end: x is ready one reduction earlier.

// Quarters (four values) of x, padding included, and quarters per thread: at least one, so that arrays are
// not empty.
const uint QUARTERS = SHARED_X_QUADS * (QUAD / 4);
const uint PER_THREAD = QUARTERS == 0 ? 1 : (QUARTERS + THREADS - 1) / THREADS;
// A subgroup has at least 4 threads on every device that has tier T1.
const uint SUBGROUPS = (THREADS + 3) / 4;
shared float squares_of_sublayer[SUBGROUPS];
shared float squares_of_stream[SUBGROUPS];

float subgroup_squares(vec4 values[PER_THREAD]) {
    float sum = 0.0;
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        sum += dot(values[j], values[j]);
    }
    return subgroupAdd(sum);
}

// Each thread reads one partial sum, instead of every thread reading all.
#define REDUCE_SQUARES(partials, result)                                                                                       \
    result = 0.0;                                                                                                          \
    for (uint i = 0; i < gl_NumSubgroups; i += gl_SubgroupSize) {                                                          \
        uint subgroup = i + gl_SubgroupInvocationID;                                                                       \
        float square = partials[min(subgroup, gl_NumSubgroups - 1)];                                                          \
        result += subgroup < gl_NumSubgroups ? square : 0.0;                                                               \
    }                                                                                                                      \
    result = inversesqrt(subgroupAdd(result) / float(push.k) + push.epsilon)

// Copies x unchanged, or multiplied by the weights of its columns.
void copy_x(uint first_quad, uint split_quads) {
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint from = (x_first_column * quads + first_quad) * (QUAD / 16);
    [[unroll]] for (uint j = 0; j < (SHARED_X_QUADS * 8 + THREADS - 1) / THREADS; j++) {
        uint i = thread_index() + j * THREADS;
        if (i < split_quads * 8) {
            x_high[i] = push.x.data[from + i];
            x_low[i] = push.x.data[from + i + push.x_columns * quads * (QUAD / 16)];
        }
        if (i < split_quads * 2) {
            x_factors[i] = push.x_scales.data[(x_first_column * quads + first_quad) * 2 + i];
            if (PAIRS_PER_Y > 0) {
                x_factors[i] *= uintBitsToFloat(Words(push.weight).data[x_first_column + i / (2 * quads)]);
            }
        }
    }
    barrier();
}

// Fills x_high, x_low and x_factors; returns the factor still to be applied.
float make_x(uint first_quad, uint split_quads) {
    if (PROLOGUE == 0) {
        copy_x(first_quad, split_quads);
        return 1.0;
    }
    const bool POST_NORM = PROLOGUE == 2;
    const bool ADDS = PROLOGUE >= 2;
    uint thread = thread_index();
    // Without padding.
    uint k_quarters = push.k / 4;
    vec4 stream[PER_THREAD];
    vec4 weight[PER_THREAD];
    vec4 sublayer[PER_THREAD];
    vec4 post_weight[PER_THREAD];
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        // Past the end the last values are loaded again, without a branch, and not used.
        uint i = min(thread + j * THREADS, k_quarters - 1);
        stream[j] = push.residual.data[i];
        weight[j] = push.weight.data[i];
        if (ADDS) {
            sublayer[j] = push.sublayer.data[i];
            [[unroll]] for (uint split = 1; split < SUBLAYER_PARTIALS; split++) {
                sublayer[j] += push.sublayer.data[i + split * k_quarters];
            }
        }
        if (POST_NORM) {
            post_weight[j] = push.post_weight.data[i];
        }
    }
    float residual_scale = RESIDUAL_SCALED ? uintBitsToFloat(push.experts.data[0]) : 1.0;
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        if (thread + j * THREADS >= k_quarters) {
            stream[j] = vec4(0.0);
            sublayer[j] = vec4(0.0);
        }
    }
    if (POST_NORM) {
        float partial = subgroup_squares(sublayer);
        if (gl_SubgroupInvocationID == 0) {
            squares_of_sublayer[gl_SubgroupID] = partial;
        }
        barrier();
        float factor;
        REDUCE_SQUARES(squares_of_sublayer, factor);
        [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
            stream[j] += sublayer[j] * factor * post_weight[j];
        }
    } else if (ADDS) {
        [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
            stream[j] += sublayer[j];
        }
    }
    if (RESIDUAL_SCALED) {
        [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
            stream[j] *= residual_scale;
        }
    }
    float partial = subgroup_squares(stream);
    if (gl_SubgroupInvocationID == 0) {
        squares_of_stream[gl_SubgroupID] = partial;
    }
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        uint quarter = thread + j * THREADS;
        vec4 value = stream[j] * weight[j];
        uint largest = largest_magnitude(value);
        largest = max(largest, subgroupShuffleXor(largest, 1));
        largest = max(largest, subgroupShuffleXor(largest, 2));
        ivec4 q = int16_of(value, int16_factor(largest));
        if (quarter < QUARTERS) {
            x_high[quarter / 4][quarter % 4] = high_bytes(q);
            x_low[quarter / 4][quarter % 4] = low_bytes(q);
            if (quarter % 4 == 0) {
                uint at = int16_scale_at(quarter / 4);
                x_factors[at / 4][at % 4] = int16_scale(largest);
            }
        }
        // The stream is not updated in place: other workgroups may not have read it yet.
        if (ADDS && gl_WorkGroupID.x == 0 && push.writes_stream != 0 && quarter < k_quarters) {
            push.stream.data[quarter] = stream[j];
        }
    }
    barrier();
    float factor;
    REDUCE_SQUARES(squares_of_stream, factor);
    return factor;
}
