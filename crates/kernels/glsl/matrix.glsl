// Products of 16 × 16 matrices by a whole subgroup: operands a and b in f16, accumulators in f32. Needs
// common.glsl, LANES (the subgroup size), and `shared uvec4 units[]`, which holds all matrices; uvec4, so
// that devices can load 16 bytes at a time. Offsets and strides are in elements of that array.
//
// From tier T2 on these are cooperative matrices. Below it, a and b are only offsets, and the products are
// computed element by element on demand: slow, but it lets a kernel's data flow be tested on devices without
// matrix units.
#extension GL_KHR_memory_scope_semantics : require

#if TIER >= 2
#extension GL_KHR_cooperative_matrix : require
#define MatrixA coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
// Columns of b and of the accumulator: 16 unless overridden.
#ifndef MATRIX_COLUMNS
#define MATRIX_COLUMNS 16
#endif
#define MatrixB coopmat<float16_t, gl_ScopeSubgroup, 16, MATRIX_COLUMNS, gl_MatrixUseB>
#define MatrixSums coopmat<float, gl_ScopeSubgroup, 16, MATRIX_COLUMNS, gl_MatrixUseAccumulator>

// Row r of a starts r strides after `at`.
#define matrix_load_a(a, at, stride) coopMatLoad(a, units, at, stride, gl_CooperativeMatrixLayoutRowMajor)
// Row r of b, or column c, starts r or c strides after `at`.
#define matrix_load_b_rows(b, at, stride) coopMatLoad(b, units, at, stride, gl_CooperativeMatrixLayoutRowMajor)
#define matrix_load_b_columns(b, at, stride) coopMatLoad(b, units, at, stride, gl_CooperativeMatrixLayoutColumnMajor)
#define matrix_load_sums(c, at, stride) coopMatLoad(c, units, at, stride, gl_CooperativeMatrixLayoutRowMajor)
#define matrix_store_sums(c, at, stride) coopMatStore(c, units, at, stride, gl_CooperativeMatrixLayoutRowMajor)
#define matrix_store_sums_columns(c, at, stride) coopMatStore(c, units, at, stride, gl_CooperativeMatrixLayoutColumnMajor)
#define matrix_ones(b) b = MatrixB(1.0hf)
#define matrix_zero(c) c = MatrixSums(0.0)
// c += a · b
#define matrix_multiply(a, b, c) c = coopMatMulAdd(a, b, c)
// Element by element.
#define matrix_scale(c, factors) c = c * factors
#define matrix_divide(c, divisors) c = c / divisors
#define matrix_add(c, terms) c = c + terms

// Unrolls loops only with cooperative matrices, where it pays.
#define unrolled [[unroll]]

// Makes one thread's shared-memory writes visible to the rest of the subgroup.
void subgroup_shared_barrier() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

#else

struct MatrixA { uint at; uint stride; };
// Column stride and row stride, in values.
struct MatrixB { uint at; uint column_stride; uint row_stride; bool ones; };
// Element i of a thread is element i · LANES + its lane, row-major. LANES is at least 4; an array size
// derived from LANES would make this a type that GLSL does not allow to be copied.
struct MatrixSums { float elements[64]; };

const uint MATRIX_ELEMENTS_PER_THREAD = 256 / LANES;

#define matrix_load_a(a, at, stride) a = MatrixA(at, stride)
#define matrix_load_b_rows(b, at, stride) b = MatrixB(at, 1, 8 * (stride), false)
#define matrix_load_b_columns(b, at, stride) b = MatrixB(at, 8 * (stride), 1, false)
#define matrix_ones(b) b = MatrixB(0, 0, 0, true)

float matrix_half(uint at, uint i) {
    return unpackHalf2x16(units[at + i / 8][i / 2 % 4])[i % 2];
}

// Accumulator element e: four per element of `units`.
#define matrix_element(e, at, stride) units[(at) + (e) / 16 * (stride) + (e) % 16 / 4][(e) % 4]

// Adds element e of a · b to `sum`.
float matrix_dot(MatrixA a, MatrixB b, uint e, float sum) {
    [[dont_unroll]] for (uint k = 0; k < 16; k += 2) {
        vec2 of_a = unpackHalf2x16(units[a.at + e / 16 * a.stride + k / 8][k / 2 % 4]);
        uint at = k * b.row_stride + e % 16 * b.column_stride;
        vec2 of_b = b.ones ? vec2(1.0) : vec2(matrix_half(b.at, at), matrix_half(b.at, at + b.row_stride));
        sum = fma(of_a.y, of_b.y, fma(of_a.x, of_b.x, sum));
    }
    return sum;
}

// Macros, because function parameters of this type would be copied element by element.
#define matrix_each(statement) [[dont_unroll]] for (uint i_ = 0; i_ < MATRIX_ELEMENTS_PER_THREAD; i_++) { \
    uint e_ = i_ * LANES + gl_SubgroupInvocationID; \
    statement; }
#define matrix_load_sums(c, at, stride) matrix_each(c.elements[i_] = uintBitsToFloat(matrix_element(e_, at, stride)))
#define matrix_store_sums(c, at, stride) matrix_each(matrix_element(e_, at, stride) = floatBitsToUint(c.elements[i_]))
#define matrix_store_sums_columns(c, at, stride) \
    matrix_each(matrix_element(e_ % 16 * 16 + e_ / 16, at, stride) = floatBitsToUint(c.elements[i_]))
#define matrix_zero(c) matrix_each(c.elements[i_] = 0.0)
#define matrix_scale(c, factors) matrix_each(c.elements[i_] *= factors.elements[i_])
#define matrix_divide(c, divisors) matrix_each(c.elements[i_] /= divisors.elements[i_])
#define matrix_add(c, terms) matrix_each(c.elements[i_] += terms.elements[i_])
#define matrix_multiply(a, b, c) matrix_each(c.elements[i_] = matrix_dot(a, b, e_, c.elements[i_]))

// Not unrolled: Mesa's CPU driver would take minutes to compile it.
#define unrolled [[dont_unroll]]

// That driver treats a barrier of any scope as a workgroup barrier, which not all subgroups reach; its
// subgroups are vectors and need none.
void subgroup_shared_barrier() {
    memoryBarrier(gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}
#endif
