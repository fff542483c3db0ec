// The root mean square of a row, epsilon included: what a norm divides by. Needs Floats, THREADS and reduce.glsl.
float row_rms(Floats rows, uint row, uint length, float epsilon) {
    float squares = 0.0;
    for (uint i = gl_LocalInvocationIndex; i < length; i += THREADS) {
        float value = rows.data[row * length + i];
        squares += value * value;
    }
    return sqrt(workgroup_sum(squares) / float(length) + epsilon);
}
