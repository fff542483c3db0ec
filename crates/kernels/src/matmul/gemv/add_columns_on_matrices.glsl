// Adds one quad of each of a panel's strips to the accumulators of all columns.
void add_quad_of_columns(inout float accumulators[ACCUMULATORS], KStep k_step, uint i, uint slice_buffer, uint lane) {
    uint x_at = slice_buffer * X_WORDS + lane / 4 * X_STRIDE + lane % 4;
    uint x_scale_at = slice_buffer * 16 + lane % 4 * 4;
    [[unroll]] for (uint group = 0; group < 4; group++) {
        // All products of a group before any of their sums is used: their latencies overlap.
        MatrixSums sums[2 * STRIPS];
        MatrixSums x_sums[2];
        [[unroll]] for (uint half_index = 0; half_index < 2; half_index++) {
            uint from = x_at + (group * 2 + half_index) * 4;
            uvec2 high = bytes_to_halves(x_words[from]);
            uvec2 low = bytes_to_halves(x_words[from + 8 * X_STRIDE]);
            MatrixB b;
            set_operand(b, high, low);
            if (HAS_MIN) {
                x_sums[half_index] = coopMatMulAdd(MatrixA(1.0hf), b, MatrixSums(0.0));
            }
            [[unroll]] for (uint s = 0; s < STRIPS; s++) {
                uvec2 above;
                uvec2 below;
                if (IS_INT4) {
                    uvec4 words = k_step.weights[(i * STRIPS + s) * TILES + group / 2];
                    above = nibbles_to_halves(words[half_index], group % 2 != 0);
                    below = nibbles_to_halves(words[2 + half_index], group % 2 != 0);
                } else {
                    uvec4 words = k_step.weights[(i * STRIPS + s) * TILES + group];
                    above = bytes_to_halves(words[half_index]);
                    below = bytes_to_halves(words[2 + half_index]);
                }
                MatrixA a;
                set_operand(a, above, below);
                sums[s * 2 + half_index] = coopMatMulAdd(a, b, MatrixSums(0.0));
            }
        }
        [[unroll]] for (uint s = 0; s < STRIPS; s++) {
            [[unroll]] for (uint row = 0; row < 2; row++) {
                uint word = row * 2 + group / 2;
                float scale = unpackHalf2x16(k_step.scales[i * STRIPS + s][word])[group % 2];
                float minimum = 0.0;
                if (HAS_MIN) {
                    vec2 both = scale_of(scale, unpackHalf2x16(k_step.minima[i * STRIPS + s][word])[group % 2]);
                    scale = both.x;
                    minimum = both.y;
                }
                [[unroll]] for (uint n = 0; n < 4; n++) {
                    uint half_index = n / 2;
                    uint column = n % 2;
                    uint at = (s * 2 + row) * 4 + n;
                    float x_scale = x_scales[x_scale_at + column * 2 + half_index][group];
                    float sum = sum_at(sums[s * 2 + half_index], row, column);
                    accumulators[at] = fma(sum, scale * x_scale, accumulators[at]);
                    if (HAS_MIN) {
                        float x_sum = sum_at(x_sums[half_index], 0, column);
                        accumulators[at] = fma(x_sum, minimum * x_scale, accumulators[at]);
                    }
                }
            }
        }
    }
}

// Adds up the halves of a panel's rows, and writes the sums of a slice, from `first` on.
void write_partials(float accumulators[ACCUMULATORS], uint first, uint lane) {
    [[unroll]] for (uint i = 0; i < STRIPS * 4; i++) {
        uint row = i / 4 * STRIP + i / 2 % 2 * 8 + lane / 4;
        uint column = lane % 4 * 2 + i % 2;
        uint of_row = i / 2 * 4 + i % 2;
        float unit = SCHEME == INT4 ? 0.0625 : 1.0;
        if (column < COLUMNS) {
            partials[first + column * PANEL_ROWS + row] = accumulators[of_row] * unit + accumulators[of_row + 2] * unit;
        }
    }
}
