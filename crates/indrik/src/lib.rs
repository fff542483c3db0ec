//! Run language models on any Vulkan GPU.
