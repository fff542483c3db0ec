//! Generated from the shaders by `make shaders`: push constants, specialisation constants, SPIR-V.

include!("../generated/shaders.rs");
