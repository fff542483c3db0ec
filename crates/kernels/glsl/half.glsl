// f16 as the KV cache stores it, with the same bits on every device.

// To the nearest f16, ties to even; saturates at the largest finite f16. Not packHalf2x16: Vulkan leaves its
// rounding and its subnormals to the device.
uint half_bits(float value) {
    uint bits = floatBitsToUint(value);
    uint sign = bits >> 16 & 0x8000;
    uint magnitude = bits & 0x7fffffff;
    uint small = uint(roundEven(uintBitsToFloat(min(magnitude, 0x38800000)) * 16777216.0));
    uint normal = min((magnitude + 0xfff + (magnitude >> 13 & 1) >> 13) - (112u << 10), 0x7bff);
    // Selects instead of branches: 32 branches in a row take CPU drivers seconds to compile.
    return magnitude > 0x7f800000 ? 0x7e00 : sign | (magnitude < 0x38800000 ? small : normal);
}

// Four values as f16.
uvec2 half_words(vec4 values) {
    return uvec2(half_bits(values.x) | half_bits(values.y) << 16, half_bits(values.z) | half_bits(values.w) << 16);
}
