// The sums of a product on matrix units. Needs tile.glsl, and shared memory `units`.
#define MATRIX_COLUMNS SIDE_COLUMNS
#include "matrix.glsl"

MatrixSums sums[ROW_TILES * COLUMN_TILES];

void clear_sums() {
    unrolled for (uint i = 0; i < ROW_TILES * COLUMN_TILES; i++) {
        matrix_zero(sums[i]);
    }
}
