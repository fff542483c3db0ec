#version 460
#pragma tiers(T0, T1)
#extension GL_GOOGLE_include_directive : require
// Attention over the pages of the cache.
#include "attention_paged.glsl"
