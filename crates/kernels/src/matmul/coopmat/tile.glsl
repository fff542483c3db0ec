// Shared by the shaders of products on cooperative matrices: operands, conversion of weights to f16, tile
// assignment and output.
#include "common.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#if TIER >= 2
#pragma use_vulkan_memory_model
#endif

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint SCHEME = 0;
layout(constant_id = 2) const uint EPILOGUE = 0;
layout(constant_id = 3) const bool F16_OUTPUT = false;
layout(constant_id = 4) const uint ROWS = 128;
layout(constant_id = 5) const uint COLUMNS = 128;
layout(constant_id = 6) const uint SUBGROUP_ROWS = 64;
layout(constant_id = 7) const uint SUBGROUP_COLUMNS = 64;
// Prefetch depth in K-steps: 1, 2 or 4.
layout(constant_id = 8) const uint PREFETCH_DEPTH = 1;
// Split-K factor.
layout(constant_id = 9) const uint SPLITS = 1;
// Threads per subgroup.
layout(constant_id = 10) const uint LANES = 32;
// Writes the partial sums of the splits consecutively within a column of y; the consumer adds them up.
layout(constant_id = 11) const bool PARTIAL_OUTPUT = false;
// Experts: a workgroup multiplies the columns of one group, COLUMNS of them. As many pairs of a row and an expert share
// a column of x. 0 where there are no experts.
layout(constant_id = 13) const uint PAIRS_PER_X = 0;
// What is added to every column, as Bias (policy.rs).
layout(constant_id = 14) const uint BIAS = 0;

#include "weights.glsl"
#include "gated.glsl"
#include "f16.glsl"
#include "experts.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words4 { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Words2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Bias4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Output4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Output2 { uvec2 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer Partials { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counters { uint data[]; };

layout(push_constant, scalar) uniform Push {
    Words4 values;
    Words2 scales;
    Words4 x;
    Active active_rows;
    // f32, or f16 activations.
    Output4 y;
    // Partial sums, [split tile][split][subgroup], in the layout of the accumulators, and per tile the
    // number of workgroups that have stored theirs: zero between calls.
    Partials partials;
    Counters counters;
    uint rows;
    uint k;
    // With experts, those of all groups.
    uint columns;
    // Start of this block of the matrix in y, and the column stride of y: multiples of 4.
    uint y_first;
    uint y_stride;
    // Stride of the partial sums within a column.
    uint y_partial_stride;
    // Number of leading tiles whose K is not split. The others are split, so that the device stays busy to
    // the end.
    uint unsplit;
    // Per group its expert, and per column of a group its pair.
    Words group_experts;
    Words group_pairs;
    // One value per row, in the rows' order in y.
    Bias4 bias;
} push;

// Rows of a cooperative matrix, and its size along K. The shader that includes this defines MATRIX_COLUMNS, its columns.
const uint SIDE = 16;
// K-steps per quad.
const uint K_STEPS = QUAD / GROUP;
const uint SUBGROUPS = THREADS / LANES;
const uint ROW_TILES = SUBGROUP_ROWS / SIDE;
const uint COLUMN_TILES = SUBGROUP_COLUMNS / MATRIX_COLUMNS;
// Subgroups side by side.
const uint COLUMN_SUBGROUPS = COLUMNS / SUBGROUP_COLUMNS;
// Column tiles that are processed concurrently, side by side: they share weights in the cache, and rows share
// activations.
const uint BAND = 16;

// Strips of rows that make one strip of the output: gate and up.
const uint STRIPS_PER_OUTPUT = EPILOGUE == 0 ? 1 : 2;

// The tile of a workgroup.
struct Tile {
    uint index;
    uint split;
    uint first_row;
    uint first_column;
    uint columns;
    uint expert;
    uint first_quad;
    uint end_quad;
};

// Tiles are ordered in bands of columns, and row by row within a band.
Tile workgroup_tile() {
    Tile tile;
    tile.columns = PAIRS_PER_X > 0 ? push.columns : min(push.columns, push.active_rows.rows);
    uint row_tiles = (push.rows + ROWS - 1) / ROWS;
    uint column_tiles = (push.columns + COLUMNS - 1) / COLUMNS;
    bool is_unsplit = SPLITS == 1 || gl_WorkGroupID.x < push.unsplit;
    uint split_tiles = row_tiles * column_tiles - push.unsplit;
    tile.index = gl_WorkGroupID.x;
    tile.split = 0;
    if (!is_unsplit) {
        uint rest = gl_WorkGroupID.x - push.unsplit;
        tile.index = push.unsplit + rest % split_tiles;
        tile.split = rest / split_tiles;
    }
    uint band = tile.index / (BAND * row_tiles);
    uint width = min(BAND, column_tiles - band * BAND);
    uint in_band = tile.index - band * BAND * row_tiles;
    tile.first_column = (band * BAND + in_band % width) * COLUMNS;
    tile.first_row = in_band / width * ROWS;
    tile.expert = PAIRS_PER_X > 0 ? push.group_experts.data[tile.first_column / COLUMNS] : 0;
    // A split may be empty where the others are rounded up.
    uint quads = (push.k + QUAD - 1) / QUAD;
    uint quads_per_split = is_unsplit ? quads : (quads + SPLITS - 1) / SPLITS;
    tile.first_quad = tile.split * quads_per_split;
    tile.end_quad = min(tile.first_quad + quads_per_split, quads);
    return tile;
}

// Whether a tile has nothing to do.
bool is_unused(Tile tile) {
    return tile.first_column >= tile.columns || tile.expert == NO_EXPERT;
}

// The column of x that belongs to a column of a tile.
uint x_column_of(Tile tile, uint column) {
    column += tile.first_column;
    if (PAIRS_PER_X > 0) {
        // Unused columns repeat the first, which is never unused; their results are discarded.
        uint pair = push.group_pairs.data[column];
        return (pair == NO_EXPERT ? push.group_pairs.data[tile.first_column] : pair) / PAIRS_PER_X;
    }
    // Columns past the last repeat it; their results are discarded.
    return min(column, push.columns - 1);
}

uint subgroup_row() {
    return gl_SubgroupID / COLUMN_SUBGROUPS * SUBGROUP_ROWS;
}

uint subgroup_column() {
    return gl_SubgroupID % COLUMN_SUBGROUPS * SUBGROUP_COLUMNS;
}

// One of four f16, times F16_UNIT.
f16vec2 scaled(uvec2 four, uint i) {
    float16_t value = unpackFloat2x16(four[i / 2])[i % 2] * float16_t(F16_UNIT);
    return f16vec2(value, value);
}

// Four integers of a word as f16: the first and third, the second and fourth.
uvec2 dequantized(uint word, bool high, f16vec2 d, f16vec2 m) {
    uvec2 both;
    float16_t zero;
    if (IS_INT4) {
        uint low_word = high ? word >> 4 : word;
        uvec2 nibbles = uvec2(low_word, low_word >> 8) & 0x000f000fu;
        both = nibbles ^ 0x64086408u;
        // With a minimum the stored integer is q + 8.
        zero = float16_t(HAS_MIN ? 1024.0 : 1032.0);
    } else {
        both = (uvec2(word, word >> 8) & 0x00ff00ffu) ^ 0x64806480u;
        zero = float16_t(1152.0);
    }
    f16vec2 first = unpackFloat2x16(both.x) - f16vec2(zero, zero);
    f16vec2 second = unpackFloat2x16(both.y) - f16vec2(zero, zero);
    if (HAS_MIN) {
        return uvec2(packFloat2x16(fma(first, d, m)), packFloat2x16(fma(second, d, m)));
    }
    return uvec2(packFloat2x16(first * d), packFloat2x16(second * d));
}

// Four f16, times F16_UNIT, in the order of f16 activations.
uvec2 converted_halves(uvec2 four) {
    f16vec2 low = unpackFloat2x16(four.x);
    f16vec2 high = unpackFloat2x16(four.y);
    const float16_t unit = float16_t(F16_UNIT);
    return uvec2(packFloat2x16(f16vec2(low.x, high.x) * unit), packFloat2x16(f16vec2(low.y, high.y) * unit));
}

// Four floats as f16, in the order of f16 activations.
uvec2 converted(vec4 four) {
    four *= F16_UNIT;
    return uvec2(packHalf2x16(four.xz), packHalf2x16(four.yw));
}

