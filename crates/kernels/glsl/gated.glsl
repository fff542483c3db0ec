// The gated activation: GELU or SiLU of the gate, times up. Nothing is contracted to an fma, as a compiler would do in one
// shader and not in another. Needs a constant EPILOGUE, numbered like Epilogue in matmul/common.
const uint GEGLU = 1;
const uint SWIGLU = 2;

// 1 / (1 + e⁻ˣ). Beyond ±80 it is 1, or too small to matter; e¹⁶⁰ would overflow.
float sigmoid(float x) {
    return 1.0 / (1.0 + exp(clamp(-x, -80.0, 80.0)));
}

// GELU by tanh, since ½ (1 + tanh z) = sigmoid(2 z), or SiLU; times up.
float gated(float gate, float up) {
    // 2 · √(2/π)
    precise float z = EPILOGUE == GEGLU ? 1.5957691216 * (gate + 0.044715 * gate * gate * gate) : gate;
    precise float value = gate * sigmoid(z) * up;
    return value;
}
