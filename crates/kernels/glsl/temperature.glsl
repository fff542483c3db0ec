// Temperature of the queries (see QueryTemperature in rope/shape.rs). Needs TEMPERATURE_BETA and
// TEMPERATURE_ORIGINAL, which is 0 for none.
float query_temperature(uint position) {
    if (TEMPERATURE_ORIGINAL == 0) {
        return 1.0;
    }
    uint periods = position / TEMPERATURE_ORIGINAL;
    // Near 1, devices compute logarithms with an absolute error.
    return periods == 0 ? 1.0 : 1.0 + TEMPERATURE_BETA * log(float(1 + periods));
}
