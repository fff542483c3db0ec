// Figures as text. What is not known is said to be unknown.

export const UNKNOWN = "unknown";

type Figure = number | null | undefined;

export function number(value: Figure, unit = "", digits?: number): string {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  const places = digits ?? (size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2);
  const text = value.toLocaleString("en-US", { maximumFractionDigits: places, minimumFractionDigits: digits ?? 0 });
  return unit ? `${text} ${unit}` : text;
}

export function percent(value: Figure): string {
  return value == null ? UNKNOWN : `${number(value * 100, "", 0)}%`;
}

export function bytes(value: Figure): string {
  if (value == null) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [size, unit] = [value, 0];
  while (Math.abs(size) >= 1024 && unit < units.length - 1) [size, unit] = [size / 1024, unit + 1];
  return `${number(size, "", unit === 0 || size >= 100 ? 0 : 1)} ${units[unit]}`;
}

export function seconds(value: Figure): string {
  if (value == null) return UNKNOWN;
  if (value < 1) return number(value * 1000, "ms", value < 0.01 ? 1 : 0);
  if (value < 120) return number(value, "s", value < 10 ? 2 : 0);
  const minutes = Math.floor(value / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
