#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// y = gelu(gate · rms(residual)) · inputs, one workgroup per row. The product that computed `gate` took the normed
// residual stream, whose values fit any format of activations: hence the factor.
#include "common.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 64;

const uint EPILOGUE = 1;
#include "gated.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Output { float data[]; };

layout(push_constant, scalar) uniform Push {
    Floats residual;
    Floats gate;
    Floats inputs;
    Output y;
    Active active_rows;
    uint hidden;
    uint width;
    uint y_stride;
    float epsilon;
} push;

#include "reduce.glsl"
#include "row_rms.glsl"

void main() {
    uint row = gl_WorkGroupID.x;
    if (row >= push.active_rows.rows) {
        return;
    }
    float rms = row_rms(push.residual, row, push.hidden, push.epsilon);
    for (uint i = gl_LocalInvocationIndex; i < push.width; i += THREADS) {
        float gate = push.gate.data[row * push.width + i] * rms;
        push.y.data[row * push.y_stride + i] = gated(gate, push.inputs.data[row * push.width + i]);
    }
}
