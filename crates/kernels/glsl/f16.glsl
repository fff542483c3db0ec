// f16 activations for cooperative matrices: see VectorData::F16.

// The value that 1.0 represents.
const float F16_UNIT = 16.0;
const float F16_LARGEST = 65504.0;

// Four neighbours of a column, from storage order.
vec4 f16_activation_values(uvec2 halves) {
    vec2 even = unpackHalf2x16(halves.x);
    vec2 odd = unpackHalf2x16(halves.y);
    return vec4(even.x, odd.x, even.y, odd.y) * F16_UNIT;
}

// Four neighbours of a column, in storage order. Values out of range saturate at the largest finite f16; NaN
// stays NaN.
uvec2 f16_activations(vec4 values) {
    vec4 scaled = values * (1.0 / F16_UNIT);
    vec4 saturated = mix(clamp(scaled, -F16_LARGEST, F16_LARGEST), scaled, isnan(scaled));
    return uvec2(packHalf2x16(saturated.xz), packHalf2x16(saturated.yw));
}
