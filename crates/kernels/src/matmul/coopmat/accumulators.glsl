// The accumulators of a product on cooperative matrices. Needs tile.glsl, and shared memory `units`.
#include "matrix.glsl"

MatrixSums accumulators[ROW_TILES * COLUMN_TILES];

void clear_accumulators() {
    unrolled for (uint i = 0; i < ROW_TILES * COLUMN_TILES; i++) {
        matrix_zero(accumulators[i]);
    }
}
