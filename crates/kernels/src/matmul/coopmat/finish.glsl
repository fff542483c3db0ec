// Epilogue of a product on cooperative matrices: split-K reduction and output. Needs accumulators.glsl;
// `units` must have room for SQUARES.
#if TIER >= 2
shared bool last_to_arrive;

// Accumulators per subgroup, and values per accumulator.
const uint ACCUMULATORS = ROW_TILES * COLUMN_TILES;
const uint AREA = SIDE * COOPMAT_COLUMNS;
// Vectors of four values of an accumulator per thread. Which values these are depends on the driver: the
// same thread of another workgroup loads what a thread has stored.
const uint FOURS = AREA / LANES / 4;

// Offset of accumulator i of a subgroup; `partial` is the index of the tile's split.
uint partial_at(uint partial, uint i) {
    return (partial * SUBGROUPS * ACCUMULATORS + gl_SubgroupID * ACCUMULATORS + i) * AREA;
}

// Whether the driver divides accumulators among threads without padding.
bool accumulators_unpadded() {
    return accumulators[0].length() == FOURS * 4;
}

void store_partial(uint partial) {
    [[unroll]] for (uint i = 0; i < ACCUMULATORS; i++) {
        uint at = partial_at(partial, i);
        if (accumulators_unpadded()) {
            [[unroll]] for (uint four = 0; four < FOURS; four++) {
                vec4 values;
                [[unroll]] for (uint e = 0; e < 4; e++) {
                    values[e] = accumulators[i][four * 4 + e];
                }
                push.partials.data[at / 4 + four * LANES + gl_SubgroupInvocationID] = values;
            }
        } else {
            coopMatStore(accumulators[i], push.partials.data, at / 4, SIDE / 4, gl_CooperativeMatrixLayoutColumnMajor);
        }
    }
}

void load_partial(uint partial, inout MatrixSums sum, uint i) {
    uint at = partial_at(partial, i);
    if (accumulators_unpadded()) {
        [[unroll]] for (uint four = 0; four < FOURS; four++) {
            vec4 values = push.partials.data[at / 4 + four * LANES + gl_SubgroupInvocationID];
            [[unroll]] for (uint e = 0; e < 4; e++) {
                sum[four * 4 + e] = values[e];
            }
        }
    } else {
        coopMatLoad(sum, push.partials.data, at / 4, SIDE / 4, gl_CooperativeMatrixLayoutColumnMajor);
    }
}

// Adds the partial sums of all splits, in order. Returns false for all workgroups of a tile but the last
// to arrive.
bool reduce(uint tile, uint split) {
    store_partial(tile * SPLITS + split);
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    if (gl_LocalInvocationIndex == 0) {
        uint before = atomicAdd(push.counters.data[tile], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                                gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
        last_to_arrive = before == SPLITS - 1;
        if (last_to_arrive) {
            push.counters.data[tile] = 0;
        }
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    if (!last_to_arrive) {
        return false;
    }
    // All accumulators of a split are loaded together.
    [[unroll]] for (uint i = 0; i < ACCUMULATORS; i++) {
        load_partial(tile * SPLITS, accumulators[i], i);
    }
    [[dont_unroll]] for (uint other = 1; other < SPLITS; other++) {
        [[unroll]] for (uint i = 0; i < ACCUMULATORS; i++) {
            MatrixSums partial_sum;
            load_partial(tile * SPLITS + other, partial_sum, i);
            accumulators[i] += partial_sum;
        }
    }
    return true;
}
#else
// Without cooperative matrices K is not split, or its partial sums are not reduced here.
bool reduce(uint tile, uint split) {
    return true;
}
#endif

const uint BIAS_GELU = 2;

// GELU by tanh, as `gated` computes it.
float gelu(float x) {
    precise float z = 1.5957691216 * (x + 0.044715 * x * x * x);
    precise float value = x * sigmoid(z);
    return value;
}

void write(uint split_first, uint column, uint row, vec4 four) {
    uint at = (split_first + column * push.y_stride + push.y_first + row) / 4;
    if (F16_OUTPUT) {
        Output2(push.y).data[at] = f16_activations(four);
    } else {
        push.y.data[at] = four;
    }
}

// Reduces the splits of K and writes the output. Shared memory is free by now: accumulators pass through
// squares of 16 × 16 values in it, because their own memory layout is unknown.
void finish(Tile tile) {
    if (SPLITS > 1 && !PARTIAL_OUTPUT && tile.index >= push.unsplit && !reduce(tile.index - push.unsplit, tile.split)) {
        return;
    }
    uint split_first = PARTIAL_OUTPUT ? tile.split * push.y_partial_stride : 0;
    uint square = gl_SubgroupID * 2 * SQUARE;
    const uint PAIR = EPILOGUE == 0 ? 1 : 2;
    unrolled for (uint i = 0; i < ROW_TILES; i += PAIR) {
        unrolled for (uint j = 0; j < COLUMN_TILES; j++) {
            unrolled for (uint strip = 0; strip < PAIR; strip++) {
                matrix_store_sums_columns(accumulators[(i + strip) * COLUMN_TILES + j], square + strip * SQUARE, SQUARE_STRIDE);
            }
            subgroup_shared_barrier();
            // Halves of columns. The trip count must be a compile-time constant; otherwise the surrounding
            // loops are not unrolled, and accumulators spill to memory.
            unrolled for (uint first = 0; first < 2 * COOPMAT_COLUMNS; first += LANES) {
                uint half_column = first + gl_SubgroupInvocationID;
                uint column = tile.first_column + subgroup_column() + j * COOPMAT_COLUMNS + half_column / 2;
                uint row = (tile.first_row + subgroup_row() + i * SIDE) / PAIR + half_column % 2 * 8;
                [[unroll]] for (uint four = 0; four < 2; four++) {
                    uint at = square + half_column / 2 * SQUARE_STRIDE + half_column % 2 * 2 + four;
                    vec4 values = uintBitsToFloat(units[at]);
                    if (EPILOGUE != 0) {
                        vec4 up = uintBitsToFloat(units[at + SQUARE]);
                        [[unroll]] for (uint e = 0; e < 4; e++) {
                            values[e] = gated(values[e], up[e]);
                        }
                    }
                    if (BIAS != 0) {
                        // Past the end, the last four are loaded again and not used.
                        values += push.bias.data[min(row + four * 4, push.rows - 4) / 4];
                        [[unroll]] for (uint e = 0; e < 4; e++) {
                            values[e] = BIAS == BIAS_GELU ? gelu(values[e]) : values[e];
                        }
                    }
                    bool is_inside = 2 * COOPMAT_COLUMNS >= LANES || half_column < 2 * COOPMAT_COLUMNS;
                    if (is_inside && column < tile.columns && (row + four * 4) * PAIR < push.rows) {
                        uint y_column = PAIRS_PER_X > 0 ? push.group_pairs.data[column] : column;
                        if (PAIRS_PER_X == 0 || y_column != NO_EXPERT) {
                            write(split_first, y_column, row + four * 4, values);
                        }
                    }
                }
            }
            subgroup_shared_barrier();
        }
    }
}
