// Writing outputs of a product on cooperative matrices. Needs tile.glsl.

const uint BIAS_GELU = 2;

// GELU by tanh, as `gated` computes it.
float gelu(float x) {
    precise float z = 1.5957691216 * (x + 0.044715 * x * x * x);
    precise float value = x * sigmoid(z);
    return value;
}

// Writes four neighbouring rows of a column, after what the product adds to it; nothing outside of the product. Rows and
// columns are those of the output.
void write_four(Tile tile, uint column, uint row, vec4 values) {
    if (BIAS != 0) {
        // Past the end, the last four are loaded again and not used.
        values += push.bias.data[min(row, push.rows - 4) / 4];
        [[unroll]] for (uint e = 0; e < 4; e++) {
            values[e] = BIAS == BIAS_GELU ? gelu(values[e]) : values[e];
        }
    }
    if (column >= tile.columns || row * STRIPS_PER_OUTPUT >= push.rows) {
        return;
    }
    uint y_column = PAIRS_PER_X > 0 ? push.group_pairs.data[column] : column;
    if (PAIRS_PER_X > 0 && y_column == NO_EXPERT) {
        return;
    }
    uint split_first = PARTIAL_OUTPUT ? tile.split * push.y_partial_stride : 0;
    uint at = (split_first + y_column * push.y_stride + push.y_first + row) / 4;
    if (F16_OUTPUT) {
        Output2(push.y).data[at] = f16_activations(values);
    } else {
        push.y.data[at] = values;
    }
}
