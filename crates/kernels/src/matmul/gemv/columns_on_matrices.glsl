// Several columns at a time on cooperative matrices, for int16 activations. A slice is a subgroup. A matrix product adds
// up the 16 products of a half group: of weights and bytes of x, whose sum is an exact integer in f32, in whatever order
// it is computed. The rest is done in the order of gemv.comp without matrices: a column gets the same bits.
//
// Operand A is 16 rows of weights, B 16 columns: the high bytes of eight columns of x, then the low ones. Both are
// converted to f16 in registers. x is copied to shared memory first, since reads of it from memory would wait for those
// of weights. The layout of fragments is `Fragments::FourThreadsPerRow`; the order of the values along K does not matter,
// so thread t of four takes four neighbouring bytes of a half group, in the order of `bytes_to_halves`.
#define MatrixA coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MatrixB coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define MatrixSums coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// Accumulators per thread: [strip][row][half][column], of rows g and g + 8 and columns 2 t and 2 t + 1.
const uint ACCUMULATORS = STRIPS * 8;

#define Scales uvec4

// Four bytes of each half of rows g and g + 8.
uvec4 weights_of(uint tile, uint lane) {
    Words values = Words(push.values);
    uint at = tile * 128 + lane / 4 * 8 + lane % 4;
    return uvec4(values.data[at], values.data[at + 4], values.data[at + 64], values.data[at + 68]);
}

// The scales of rows g and g + 8; with `part` 1 the minima.
Scales scales_of(uint quad, uint lane, uint part) {
    uint parts = HAS_MIN ? 2 : 1;
    uint row = quad * STRIP + lane / 4;
    return uvec4(push.scales.data[row * parts + part], push.scales.data[(row + 8) * parts + part]);
}

// Four signed bytes as f16: the first and third, the second and fourth.
uvec2 bytes_to_halves(uint word) {
    uvec2 both = (uvec2(word, word >> 8) & 0x00ff00ffu) ^ 0x64806480u;
    f16vec2 zero = f16vec2(-1152.0hf);
    return uvec2(packFloat2x16(unpackFloat2x16(both.x) + zero), packFloat2x16(unpackFloat2x16(both.y) + zero));
}

// Four nibbles in the same way, as 16 · q.
uvec2 nibbles_to_halves(uint word, bool high) {
    uint low_word = high ? word >> 4 : word;
    uvec2 both = (uvec2(low_word, low_word >> 8) & 0x000f000fu) ^ 0x64086408u;
    f16vec2 factor = f16vec2(16.0hf);
    f16vec2 zero = f16vec2(-16512.0hf);
    return uvec2(packFloat2x16(fma(unpackFloat2x16(both.x), factor, zero)), packFloat2x16(fma(unpackFloat2x16(both.y), factor, zero)));
}

#define set_pair(operand, first, pair) { \
    f16vec2 both_ = unpackFloat2x16(pair); \
    operand[first] = both_.x; \
    operand[(first) + 1] = both_.y; }

#define set_operand(operand, first_line, second_line) { \
    set_pair(operand, 0, first_line.x); \
    set_pair(operand, 2, first_line.y); \
    set_pair(operand, 4, second_line.x); \
    set_pair(operand, 6, second_line.y); }

// Of row 0 or 1 of a thread. Rounded once, as an integer is when it is converted.
float sum_at(MatrixSums sums, uint row, uint column) {
    return fma(sums[row * 4 + column], 256.0, sums[row * 4 + 2 + column]);
}

// x in shared memory, for two K-steps: [K-step][slice][plane][8 columns][quad], with 16 bytes of padding per column, so that
// eight columns cover all banks. The teams of a workgroup share it.
const uint X_STRIDE = QUAD / 4 + 4;
const uint X_WORDS = 16 * X_STRIDE;
shared uint x_words[2 * SLICES * X_WORDS];
// [K-step][slice][column][half][group].
shared vec4 x_scales[2 * SLICES * 16];

// What a thread loads of it, 16 bytes at a time.
const uint X_LOADS = (4 + TEAMS - 1) / TEAMS;
struct PendingX {
    uvec4 values[X_LOADS];
    vec4 scales;
};

// Columns past the last repeat it; their sums are discarded.
uint x_quad_of(uint column, uint quads, uint quad) {
    return (x_first_column + min(column, COLUMNS - 1)) * quads + x_first_quad + quad;
}

void load_x(out PendingX x, uint team, uint quads, uint quad, uint lane) {
    [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
        uint n = min((i * TEAMS + team) * SLICE + lane, 127);
        uint plane = n / 64 * (push.x_columns * quads * (QUAD / 16));
        x.values[i] = push.x.data[x_quad_of(n / 8 % 8, quads, quad) * (QUAD / 16) + n % 8 + plane];
    }
    x.scales = push.x_scales.data[x_quad_of(lane / 2 % 8, quads, quad) * 2 + lane % 2];
}

void store_x(PendingX x, uint team, uint slice_buffer, uint lane) {
    [[unroll]] for (uint i = 0; i < X_LOADS; i++) {
        uint n = (i * TEAMS + team) * SLICE + lane;
        if (4 % TEAMS == 0 || n < 128) {
            uint at = slice_buffer * X_WORDS + n / 8 * X_STRIDE + n % 8 * 4;
            [[unroll]] for (uint word = 0; word < 4; word++) {
                x_words[at + word] = x.values[i][word];
            }
        }
    }
    if (team == 0 && lane < 16) {
        x_scales[slice_buffer * 16 + lane] = x.scales;
    }
}
