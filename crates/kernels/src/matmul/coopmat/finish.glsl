// The end of a product on cooperative matrices: split-K reduction and output. Needs accumulators.glsl, and the shader's
// write_accumulators.
#if TIER >= 2
shared bool last_to_arrive;

// Accumulators per subgroup, and values per accumulator.
const uint ACCUMULATORS = ROW_TILES * COLUMN_TILES;
const uint AREA = SIDE * MATRIX_COLUMNS;
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

// Reduces the splits of K and writes the output.
void finish(Tile tile) {
    bool is_split = SPLITS > 1 && !PARTIAL_OUTPUT && tile.index >= push.unsplit;
    if (!is_split || reduce(tile.index - push.unsplit, tile.split)) {
        write_accumulators(tile);
    }
}
