//! Generated from the shaders by the build script: push constants, specialisation constants, SPIR-V.

include!(concat!(env!("OUT_DIR"), "/shaders.rs"));
