// Tiles over the rows of several prefill chunks, such that no tile spans two chunks. A chunk is a run of rows
// of one sequence.

// A tile of a chunk.
struct Tile {
    // Rows of the chunk.
    uint first;
    uint end;
    // Index of the tile within the chunk.
    uint number;
};

// Tile `number` of the rows first..end, in tiles of `size` pairs of a row and one of its `group` query
// heads. `chunk_ends` holds the end of each chunk; there are at most `max_chunks`. A tile past the last
// has no rows.
Tile tile_of_chunks(Numbers chunk_ends, uint max_chunks, uint first, uint end, uint group, uint size, uint number) {
    // Loaded before it is known whether there are rows, so that the positions can be loaded sooner.
    uint next = chunk_ends.data[0];
    for (uint chunk = 1; first < end; chunk++) {
        uint chunk_end = clamp(next, first, end);
        uint tiles = ((chunk_end - first) * group + size - 1) / size;
        if (number < tiles) {
            return Tile(first, chunk_end, number);
        }
        if (chunk == max_chunks) {
            break;
        }
        next = chunk_ends.data[chunk];
        number -= tiles;
        first = chunk_end;
    }
    return Tile(end, end, 0);
}
