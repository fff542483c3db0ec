// The positions that a row attends to, and how they are divided among KV splits. Both depend only on the
// row's position, its last visible position, the window and constants: a row gets the same sums in any batch.

// The first position that a row at `position` attends to.
uint first_position(uint position, uint window) {
    return window == 0 ? 0 : position + 1 - min(position + 1, window);
}

// Blocks per split.
uint blocks_per_split(uint blocks, uint splits, uint min_blocks) {
    return max((blocks + splits - 1) / splits, min_blocks);
}
