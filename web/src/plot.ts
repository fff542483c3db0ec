// Small plots of the last minutes, as SVG.

import { svg } from "./dom";

/** Samples in a plot: two minutes at one per second. */
export const SAMPLES = 120;

const HEIGHT = 40;

export type Sample = number | null;

/** A plot of one or two series. `top` is the least value of its upper edge; unknown samples leave gaps. */
export class Plot {
  readonly element: SVGSVGElement;
  private readonly series: Sample[][];

  constructor(
    label: string,
    count: number,
    private readonly top: number,
  ) {
    this.series = Array.from({ length: count }, () => []);
    this.element = svg("svg", { class: "plot", viewBox: `0 0 ${SAMPLES - 1} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  }

  push(samples: Sample[]): void {
    this.series.forEach((series, index) => {
      series.push(samples[index] ?? null);
      if (series.length > SAMPLES) series.shift();
    });
    this.draw();
  }

  /** A gap, where the connection was lost. */
  clear(): void {
    for (const series of this.series) series.length = 0;
    this.draw();
  }

  /** The highest known value; null if none is known. */
  get highest(): number | null {
    const known = this.series.flat().filter((value) => value !== null);
    return known.length ? Math.max(...known) : null;
  }

  private draw(): void {
    const top = Math.max(this.top, this.highest ?? 0);
    this.element.replaceChildren(svg("line", { class: "axis", x1: 0, x2: SAMPLES - 1, y1: HEIGHT, y2: HEIGHT }));
    this.series.forEach((series, index) => {
      for (const points of runs(series, top)) {
        // A single point is drawn as a short line.
        if (points.length === 1) points.unshift([points[0]![0] - 1, points[0]![1]]);
        const line = points.map(([x, y]) => `${x},${y}`).join(" ");
        const [first, last] = [points[0]!, points[points.length - 1]!];
        this.element.append(
          svg("polygon", { class: `s${index + 1}`, points: `${first[0]},${HEIGHT} ${line} ${last[0]},${HEIGHT}` }),
          svg("polyline", { class: `s${index + 1}`, points: line }),
        );
      }
    });
  }
}

/** The points of each run of known samples; the newest sample is at the right edge. */
export function runs(series: Sample[], top: number): [number, number][][] {
  const found: [number, number][][] = [];
  let run: [number, number][] = [];
  series.forEach((value, index) => {
    if (value === null) {
      run = [];
      return;
    }
    if (run.length === 0) found.push(run);
    const y = HEIGHT - 1 - (Math.max(value, 0) / top) * (HEIGHT - 2);
    run.push([SAMPLES - series.length + index, Math.round(y * 100) / 100]);
  });
  return found;
}
