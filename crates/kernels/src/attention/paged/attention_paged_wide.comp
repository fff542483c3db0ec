#version 460
#pragma tiers(T1)
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_ballot : require
// Attention over the pages of the cache for drivers that run 16 threads on the CPU as one vector: they shuffle it thread by
// thread, but broadcast a value in one instruction.
#define BROADCAST_SUMS
#include "attention_paged.glsl"
