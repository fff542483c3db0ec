#version 460
#pragma tiers(T0)
#extension GL_GOOGLE_include_directive : require
// gelu(gate) · up or silu(gate) · up of separately computed gate and up products: one value per loop
// iteration to f32, four to f16.
#include "common.glsl"
#include "f16.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint EPILOGUE = 1;
// As Activations (vectors.rs): f32 or f16.
layout(constant_id = 2) const uint OUTPUT = 0;

#include "gated.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Words2 { uvec2 data[]; };

layout(push_constant, scalar) uniform Push {
    Floats gate;
    Floats up;
    // f32 or f16.
    Output y;
    Active active_rows;
    uint n;
    uint y_stride;
} push;

const bool F16 = OUTPUT == 3;

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= push.active_rows.rows) {
        return;
    }
    uint stride = gl_NumWorkGroups.x * THREADS;
    if (F16) {
        for (uint i = gl_GlobalInvocationID.x; i < push.n / 4; i += stride) {
            vec4 gate = Floats4(push.gate).data[row * (push.n / 4) + i];
            vec4 up = Floats4(push.up).data[row * (push.n / 4) + i];
            vec4 value;
            [[unroll]] for (uint j = 0; j < 4; j++) {
                value[j] = gated(gate[j], up[j]);
            }
            Words2(push.y).data[row * (push.y_stride / 4) + i] = f16_activations(value);
        }
        return;
    }
    for (uint i = gl_GlobalInvocationID.x; i < push.n; i += stride) {
        push.y.data[row * push.y_stride + i] = gated(push.gate.data[row * push.n + i], push.up.data[row * push.n + i]);
    }
}
