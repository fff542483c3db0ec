// Weights in the tiled layout (see `Layout` in crate tensor) as floats. Needs common.glsl and a constant
// SCHEME, numbered like `Scheme`.
const uint INT8 = 0;
const uint INT4 = 1;
const uint INT8_MIN = 2;
const uint INT4_MIN = 3;
const uint F16 = 4;
const uint BF16 = 5;
const uint F32 = 6;

const bool IS_FLOAT = SCHEME >= F16;
const bool IS_INT4 = SCHEME == INT4 || SCHEME == INT4_MIN;
const bool HAS_MIN = SCHEME == INT8_MIN || SCHEME == INT4_MIN;

const uint STRIP = 16;
const uint GROUP = 32;
const uint QUAD = 128;
// Tiles of 16 rows × 32 bytes in a quad.
const uint TILES = IS_INT4 ? 2 : !IS_FLOAT ? 4 : SCHEME == F32 ? 16 : 8;

// Two 16-bit floats.
vec2 halves_to_floats(uint word) {
    return SCHEME == F16 ? unpackHalf2x16(word) : uintBitsToFloat(uvec2(word << 16, word & 0xffff0000u));
}

// Nibbles are two's complement: shifted to the high half of a byte they are 16 · q.
uvec4 low_nibbles(uvec4 words) {
    return (words << 4) & 0xf0f0f0f0u;
}

uvec4 high_nibbles(uvec4 words) {
    return words & 0xf0f0f0f0u;
}

// Scale and minimum of a group as applied to the stored integers: bytes, or 16 · q for nibbles.
vec2 scale_of(float d, float m) {
    return SCHEME == INT4_MIN ? vec2(d * 0.0625, m + 8.0 * d) : SCHEME == INT4 ? vec2(d * 0.0625, 0.0) : vec2(d, m);
}
