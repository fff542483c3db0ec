// Stands for the expert of an inactive row, and for the pair of an unused column.
const uint NO_EXPERT = 0xffffffffu;

const uint MAX_EXPERTS_PER_TOKEN = 16;
