// Shared by every kernel, at every tier. TIER is defined by the build: 0 is plain Vulkan 1.3, 1 adds fp16,
// int8, packed dot products and subgroup operations.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#if TIER >= 1
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_integer_dot_product : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

// Index of a thread within its workgroup, such that neighbours (0 and 1, 2 and 3, …) share a subgroup. The
// driver chooses how gl_LocalInvocationIndex maps to subgroups, so tiers with subgroup operations count by
// subgroup.
uint thread_index() {
#if TIER >= 1
    return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
#else
    return gl_LocalInvocationIndex;
#endif
}

// Dot product of four signed bytes.
int dot4(uint a, uint b) {
#if TIER >= 1
    return dotPacked4x8EXT(int(a), int(b));
#else
    int sum = 0;
    [[unroll]] for (int i = 0; i < 32; i += 8) {
        sum += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
    }
    return sum;
#endif
}

int dot16(uvec4 a, uvec4 b) {
    return dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w);
}

// Four signed bytes as floats.
vec4 bytes_to_floats(uint bytes) {
#if TIER >= 1
    return vec4(unpack8(int(bytes)));
#else
    int word = int(bytes);
    return vec4(bitfieldExtract(word, 0, 8), bitfieldExtract(word, 8, 8), bitfieldExtract(word, 16, 8), word >> 24);
#endif
}

// Four integers within −128…127 as one word of bytes.
uint pack_bytes(ivec4 values) {
    uvec4 bytes = uvec4(values) & 0xffu;
    return bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
}

// Magnitude of a float as bits: integers that order like the magnitudes, with NaN above all. The maximum of
// several is therefore NaN if one of them is, where max of floats would drop it.
uint magnitude(float value) {
    return floatBitsToUint(value) & 0x7fffffffu;
}

uint largest_magnitude(vec4 values) {
    uvec4 sizes = floatBitsToUint(values) & 0x7fffffffu;
    return max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
}
