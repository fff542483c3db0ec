// Rows of several chunks in tiles, none of which has rows of two of them. A chunk is the rows of one sequence, which follow each other.

// A tile of a chunk.
struct Tile {
    // Rows of the chunk.
    uint first;
    uint end;
    // Which of its tiles.
    uint number;
};

// Tile `number` of the rows from `first` to before `end`, in tiles of `size` pairs, of which a row has `group`. `ends` says where each chunk
// ends, of which there are `most` or fewer. A tile past the last has no rows.
Tile tile_of_chunks(Numbers chunk_ends, uint most, uint first, uint end, uint group, uint size, uint number) {
    // Asked for before it is known whether there are rows: that much sooner the positions are known.
    uint next = chunk_ends.data[0];
    for (uint chunk = 1; first < end; chunk++) {
        uint chunk_end = clamp(next, first, end);
        uint tiles = ((chunk_end - first) * group + size - 1) / size;
        if (number < tiles) {
            return Tile(first, chunk_end, number);
        }
        if (chunk == most) {
            break;
        }
        next = chunk_ends.data[chunk];
        number -= tiles;
        first = chunk_end;
    }
    return Tile(end, end, 0);
}
