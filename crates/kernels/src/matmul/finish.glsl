// What becomes of the sums of a product on matrix units. Needs sums.glsl; `units` must have room for SQUARES.
#if TIER >= 2
shared bool last_to_arrive;

// Adds the sums of all parts of K in their order; false for all workgroups of a tile but the last.
bool join(uint tile, uint split) {
    const uint AREA = ROWS * COLUMNS;
    uint first = tile * SPLITS * AREA + own_column() * ROWS + own_row();
    uint own = first + split * AREA;
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
            coopMatStore(sums[i * COLUMN_TILES + j], push.parts.data, own + j * SIDE_COLUMNS * ROWS + i * SIDE, ROWS,
                         gl_CooperativeMatrixLayoutColumnMajor);
        }
    }
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
    [[unroll]] for (uint i = 0; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0; j < COLUMN_TILES; j++) {
            uint at = first + j * SIDE_COLUMNS * ROWS + i * SIDE;
            coopMatLoad(sums[i * COLUMN_TILES + j], push.parts.data, at, ROWS, gl_CooperativeMatrixLayoutColumnMajor);
            for (uint other = 1; other < SPLITS; other++) {
                MatrixSums part;
                coopMatLoad(part, push.parts.data, at + other * AREA, ROWS, gl_CooperativeMatrixLayoutColumnMajor);
                sums[i * COLUMN_TILES + j] += part;
            }
        }
    }
    return true;
}
#else
// Without matrix units K is in one part, or its parts stay apart.
bool join(uint tile, uint split) {
    return true;
}
#endif

void write(uint part, uint column, uint row, vec4 four) {
    uint at = (part + column * push.y_stride + push.y_first + row) / 4;
    if (F16_OUTPUT) {
        Output2(push.y).data[at] = f16_activations(four);
    } else {
        push.y.data[at] = four;
    }
}

// Joins the parts of K and writes what comes of the sums. Shared memory is no longer needed: sums go through squares of it whose
// places in memory are known.
void finish(Tile tile) {
    if (SPLITS > 1 && !APART && tile.index >= push.whole && !join(tile.index - push.whole, tile.split)) {
        return;
    }
    uint part = APART ? tile.split * push.y_part : 0;
    uint square = gl_SubgroupID * 2 * SQUARE;
    const uint PAIR = EPILOGUE == 0 ? 1 : 2;
    unrolled for (uint i = 0; i < ROW_TILES; i += PAIR) {
        unrolled for (uint j = 0; j < COLUMN_TILES; j++) {
            unrolled for (uint which = 0; which < PAIR; which++) {
                matrix_store_sums_columns(sums[(i + which) * COLUMN_TILES + j], square + which * SQUARE, SQUARE_STRIDE);
            }
            subgroup_shared_barrier();
            // Halves of columns. The loop must have a number of rounds that the compiler knows, or those around it stay loops, and
            // sums go to memory.
            unrolled for (uint first = 0; first < 2 * SIDE_COLUMNS; first += LANES) {
                uint half_column = first + gl_SubgroupInvocationID;
                uint column = tile.first_column + own_column() + j * SIDE_COLUMNS + half_column / 2;
                uint row = (tile.first_row + own_row() + i * SIDE) / PAIR + half_column % 2 * 8;
                [[unroll]] for (uint four = 0; four < 2; four++) {
                    uint at = square + half_column / 2 * SQUARE_STRIDE + half_column % 2 * 2 + four;
                    vec4 values = uintBitsToFloat(units[at]);
                    if (EPILOGUE != 0) {
                        vec4 up = uintBitsToFloat(units[at + SQUARE]);
                        [[unroll]] for (uint e = 0; e < 4; e++) {
                            values[e] = gated(values[e], up[e]);
                        }
                    }
                    bool is_own = 2 * SIDE_COLUMNS >= LANES || half_column < 2 * SIDE_COLUMNS;
                    if (is_own && column < tile.columns && (row + four * 4) * PAIR < push.rows) {
                        write(part, column, row + four * 4, values);
                    }
                }
            }
            subgroup_shared_barrier();
        }
    }
}
