// f16 activations, for matrix units: see VectorData::F16.

// What 1.0 stands for.
const float F16_UNIT = 16.0;
const float F16_LARGEST = 65504.0;

// Four neighbours of a column, in the order in which they are stored. What is too large becomes the largest number there is, not
// infinity; what is no number stays none.
uvec2 f16_activations(vec4 values) {
    vec4 scaled = values * (1.0 / F16_UNIT);
    vec4 held = mix(clamp(scaled, -F16_LARGEST, F16_LARGEST), scaled, isnan(scaled));
    return uvec2(packHalf2x16(held.xz), packHalf2x16(held.yw));
}
