// Rows of several sequences in tiles, none of which has rows of two of them. Rows of one sequence follow each other: a run.

// A tile of a run.
struct Tile {
    // Rows of the run.
    uint first;
    uint end;
    // Which of its tiles.
    uint number;
};

// Tile `number` of the rows from `first` to before `end`, in tiles of `size` pairs, of which a row has `group`. `ends` says where each run
// ends, of which there are `most` or fewer. A tile past the last has no rows.
Tile tile_of_runs(Numbers ends, uint most, uint first, uint end, uint group, uint size, uint number) {
    // Asked for before it is known whether there are rows: that much sooner the positions are known.
    uint next = ends.data[0];
    for (uint run = 1; first < end; run++) {
        uint run_end = clamp(next, first, end);
        uint tiles = ((run_end - first) * group + size - 1) / size;
        if (number < tiles) {
            return Tile(first, run_end, number);
        }
        if (run == most) {
            break;
        }
        next = ends.data[run];
        number -= tiles;
        first = run_end;
    }
    return Tile(end, end, 0);
}
