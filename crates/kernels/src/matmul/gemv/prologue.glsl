// Computes x in shared memory: the norm of the residual stream, row by row. A sublayer's output may be added to the
// stream first, with or without its own norm, and the stream then multiplied by a factor. Every workgroup repeats the work: that is cheaper than a
// separate dispatch and the barrier after it.
//
// The factor of the last norm is common to all values, so it is left out of x and applied to the sums at the
// end: x is ready one reduction earlier.

// Quarters (four values) of a column of x, padding included, and quarters per thread: at least one, so that arrays are
// not empty.
const uint QUARTERS = SHARED_X_QUADS * (QUAD / 4);
const uint PER_THREAD = QUARTERS == 0 ? 1 : (QUARTERS + THREADS - 1) / THREADS;
// Quarters of all columns per thread.
const uint QUARTERS_PER_THREAD = COLUMNS * PER_THREAD;
// Squares are added up in one order, whatever the number of threads and the size of subgroups: all products of a row get
// the same norm, and so does gemv_norm. BLOCK neighbouring threads, which share a subgroup, add up their quarters; then
// every BLOCK threads add up the sums of all blocks. A subgroup has at least 4 threads on every device that has tier T1.
const uint BLOCK = WIDE_SUBGROUPS ? 32 : 4;
const uint BLOCKS = QUARTERS == 0 ? 1 : QUARTERS / BLOCK;
shared float squares_of_sublayer[COLUMNS * BLOCKS];
shared float squares_of_stream[COLUMNS * BLOCKS];

float block_sum(float sum) {
    [[unroll]] for (uint mask = 1; mask < BLOCK; mask *= 2) {
        sum += subgroupShuffleXor(sum, mask);
    }
    return sum;
}

float block_squares(vec4 value) {
    float sum = value.x * value.x;
    sum = fma(value.y, value.y, sum);
    sum = fma(value.z, value.z, sum);
    return block_sum(fma(value.w, value.w, sum));
}

#define STORE_SQUARES(sums, column, values)                                                                            \
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {                                                                 \
        uint quarter = thread_index() + j * THREADS;                                                                   \
        float sum = block_squares(values[column * PER_THREAD + j]);                                                    \
        if (quarter % BLOCK == 0 && quarter < QUARTERS) {                                                              \
            sums[column * BLOCKS + quarter / BLOCK] = sum;                                                             \
        }                                                                                                              \
    }

#define REDUCE_SQUARES(sums, column, result)                                                                           \
    result = 0.0;                                                                                                      \
    for (uint i = thread_index() % BLOCK; i < BLOCKS; i += BLOCK) {                                                    \
        result += sums[column * BLOCKS + i];                                                                           \
    }                                                                                                                  \
    {                                                                                                                  \
        /* Not contracted: a compiler would do so in one shader and not in another. */                                 \
        precise float mean = block_sum(result) / float(push.k);                                                        \
        precise float shifted = mean + push.epsilon;                                                                   \
        result = inversesqrt(shifted);                                                                                 \
    }

#ifndef NORM_ONLY
// Copies x unchanged, or multiplied by the weights of its columns.
void copy_x(uint first_quad, uint split_quads) {
    uint quads = (push.k + QUAD - 1) / QUAD;
    const uint UNITS = SHARED_X_QUADS == 0 ? 1 : SHARED_X_QUADS * 8;
    [[unroll]] for (uint j = 0; j < (COLUMNS * UNITS + THREADS - 1) / THREADS; j++) {
        uint i = thread_index() + j * THREADS;
        uint column = i / UNITS;
        uint unit = i % UNITS;
        if (column < COLUMNS && unit < split_quads * 8) {
            uint from = ((x_first_column + column) * quads + first_quad) * (QUAD / 16) + unit;
            x_high[i] = push.x.data[from];
            x_low[i] = push.x.data[from + push.x_columns * quads * (QUAD / 16)];
        }
        const uint FACTORS = UNITS / 4;
        column = i / max(FACTORS, 1);
        uint factor = i % max(FACTORS, 1);
        if (column < COLUMNS && factor < split_quads * 2) {
            x_factors[i] = push.x_scales.data[((x_first_column + column) * quads + first_quad) * 2 + factor];
            if (PAIRS_PER_Y > 0) {
                x_factors[i] *= uintBitsToFloat(Words(push.weight).data[x_first_column + factor / (2 * quads)]);
            }
        }
    }
    barrier();
}
#endif

// Fills x_high, x_low and x_factors from the rows that start at `first_row`, and sets the factors still to be applied.
// One workgroup writes the stream.
void norm_x(inout float factors[COLUMNS], uint first_row, bool writes_stream) {
    const bool POST_NORM = PROLOGUE == 2;
    const bool ADDS = PROLOGUE >= 2;
    uint thread = thread_index();
    // Without padding.
    uint k_quarters = push.k / 4;
    // Of all rows before any is used: they wait for memory once.
    vec4 stream[QUARTERS_PER_THREAD];
    vec4 sublayer[QUARTERS_PER_THREAD];
    vec4 weight[PER_THREAD];
    vec4 post_weight[PER_THREAD];
    [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
        // Past the end the last values are loaded again, without a branch, and not used.
        uint i = min(thread + j * THREADS, k_quarters - 1);
        weight[j] = push.weight.data[i];
        if (POST_NORM) {
            post_weight[j] = push.post_weight.data[i];
        }
        [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
            uint at = column * PER_THREAD + j;
            stream[at] = push.residual.data[(first_row + column) * k_quarters + i];
            if (ADDS) {
                uint first = (first_row + column) * SUBLAYER_PARTIALS * k_quarters + i;
                sublayer[at] = push.sublayer.data[first];
                [[unroll]] for (uint split = 1; split < SUBLAYER_PARTIALS; split++) {
                    sublayer[at] += push.sublayer.data[first + split * k_quarters];
                }
            }
        }
    }
    float residual_scale = RESIDUAL_SCALED ? uintBitsToFloat(push.experts.data[0]) : 1.0;
    [[unroll]] for (uint i = 0; i < QUARTERS_PER_THREAD; i++) {
        if (thread + i % PER_THREAD * THREADS >= k_quarters) {
            stream[i] = vec4(0.0);
            sublayer[i] = vec4(0.0);
        }
    }
    if (POST_NORM) {
        [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
            STORE_SQUARES(squares_of_sublayer, column, sublayer)
        }
        barrier();
        [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
            float factor;
            REDUCE_SQUARES(squares_of_sublayer, column, factor)
            [[unroll]] for (uint j = 0; j < PER_THREAD; j++) {
                uint at = column * PER_THREAD + j;
                stream[at] = fma(sublayer[at] * factor, post_weight[j], stream[at]);
            }
        }
    } else if (ADDS) {
        [[unroll]] for (uint i = 0; i < QUARTERS_PER_THREAD; i++) {
            stream[i] += sublayer[i];
        }
    }
    if (RESIDUAL_SCALED) {
        [[unroll]] for (uint i = 0; i < QUARTERS_PER_THREAD; i++) {
            stream[i] *= residual_scale;
        }
    }
    [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
        STORE_SQUARES(squares_of_stream, column, stream)
    }
    [[unroll]] for (uint i = 0; i < QUARTERS_PER_THREAD; i++) {
        uint column = i / PER_THREAD;
        uint j = i % PER_THREAD;
        uint quarter = thread + j * THREADS;
        vec4 value = stream[i] * weight[j];
        uint largest = largest_magnitude(value);
        largest = max(largest, subgroupShuffleXor(largest, 1));
        largest = max(largest, subgroupShuffleXor(largest, 2));
        ivec4 q = int16_of(value, int16_factor(largest));
        if (quarter < QUARTERS) {
            uint unit = column * (QUARTERS / 4) + quarter / 4;
            x_high[unit][quarter % 4] = high_bytes(q);
            x_low[unit][quarter % 4] = low_bytes(q);
            if (quarter % 4 == 0) {
                uint at = column * SHARED_X_QUADS * 8 + int16_scale_at(quarter / 4);
                x_factors[at / 4][at % 4] = int16_scale(largest);
            }
        }
        // The stream is not updated in place: other workgroups may not have read it yet.
        if (ADDS && writes_stream && push.writes_stream != 0 && quarter < k_quarters) {
            push.stream.data[(first_row + column) * k_quarters + quarter] = stream[i];
        }
    }
    barrier();
    [[unroll]] for (uint column = 0; column < COLUMNS; column++) {
        REDUCE_SQUARES(squares_of_stream, column, factors[column])
    }
}

#ifndef NORM_ONLY
// Fills x_high, x_low and x_factors, and sets the factors still to be applied.
void make_x(inout float factors[COLUMNS], uint first_quad, uint split_quads) {
    if (PROLOGUE == 0 || PROLOGUE == FACTORS) {
        copy_x(first_quad, split_quads);
        return;
    }
    norm_x(factors, 0, gl_WorkGroupID.x == 0);
}
#endif
