#version 460
#pragma tiers(T2)
#extension GL_GOOGLE_include_directive : require
// Reports which elements of 16 × 16 operands A and B, of an accumulator, and of 16 × 8 operand B and accumulator each thread
// of a subgroup holds: the value of each element is its own index.
#include "common.glsl"
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#pragma use_vulkan_memory_model

layout(local_size_x = 32) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Indices { uint data[]; };

layout(push_constant, scalar) uniform Push {
    // [A, B, accumulator, 16 × 8 B or accumulator][thread][element], 16 per thread: row · 16 + column, in B column · 16 +
    // row; elements that a thread does not hold are left unchanged.
    Indices indices;
} push;

shared float16_t numbers[256];
shared float sums[256];

void main() {
    for (uint i = gl_SubgroupInvocationID; i < 256; i += gl_SubgroupSize) {
        numbers[i] = float16_t(i);
        sums[i] = float(i);
    }
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a;
    coopMatLoad(a, numbers, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    for (uint i = 0; i < min(a.length(), 16); i++) {
        push.indices.data[gl_SubgroupInvocationID * 16 + i] = uint(a[i]);
    }
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
    coopMatLoad(b, numbers, 0, 16, gl_CooperativeMatrixLayoutColumnMajor);
    for (uint i = 0; i < min(b.length(), 16); i++) {
        push.indices.data[(32 + gl_SubgroupInvocationID) * 16 + i] = uint(b[i]);
    }
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> c;
    coopMatLoad(c, sums, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    for (uint i = 0; i < min(c.length(), 16); i++) {
        push.indices.data[(64 + gl_SubgroupInvocationID) * 16 + i] = uint(c[i]);
    }
    coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB> narrow;
    coopMatLoad(narrow, numbers, 0, 16, gl_CooperativeMatrixLayoutColumnMajor);
    for (uint i = 0; i < min(narrow.length(), 16); i++) {
        push.indices.data[(96 + gl_SubgroupInvocationID) * 16 + i] = uint(narrow[i]);
    }
    coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator> narrow_sums;
    coopMatLoad(narrow_sums, sums, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    for (uint i = 0; i < min(narrow_sums.length(), 16); i++) {
        push.indices.data[(128 + gl_SubgroupInvocationID) * 16 + i] = uint(narrow_sums[i]);
    }
}
