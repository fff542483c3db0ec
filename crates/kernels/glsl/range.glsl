// Which positions a row attends to, and how they are shared among splits. Both follow from the row's position, the window and
// constants alone: a row gets the same sums in any batch.

// The first position that a row at `position` attends to.
uint first_position(uint position, uint window) {
    return window == 0 ? 0 : position + 1 - min(position + 1, window);
}

// Blocks that each split takes, of so many.
uint blocks_of_split(uint blocks, uint splits, uint least) {
    return max((blocks + splits - 1) / splits, least);
}
