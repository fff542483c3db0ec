// The dashboard: the server's figures of the last two minutes, from `/stats/stream`.

import { ApiError, streamStats } from "./api";
import { h } from "./dom";
import { bytes, number, percent, seconds, UNKNOWN } from "./format";
import { askForKey } from "./key_dialog";
import { Plot } from "./plot";
import type { Heap, Percentiles, Stats } from "./stats";

const RETRY_MS = 2000;

/** The figures of a card: what it plots, and what it says. */
interface Figures {
  samples: (number | null | undefined)[];
  value: string;
  sub: string;
}

interface Source {
  title: string;
  /** Least upper edge of the plot. */
  top: number;
  /** The highest value of the plot, as text. */
  format(value: number): string;
  /** Names of the series, if there are several. */
  series?: string[];
  read(stats: Stats): Figures;
}

const SOURCES: Source[] = [
  {
    title: "Generation throughput",
    top: 10,
    format: (value) => number(value),
    read: ({ tokens, energy }) => ({
      samples: [tokens?.generated_per_second],
      value: number(tokens?.generated_per_second, "tok/s"),
      sub: `${number(tokens?.generated)} in all${energy?.joules_per_token != null ? `, ${number(energy.joules_per_token, "J")} per token` : ""}`,
    }),
  },
  {
    title: "Prompt throughput",
    top: 10,
    format: (value) => number(value),
    read: ({ tokens }) => ({
      samples: [tokens?.prompt_per_second],
      value: number(tokens?.prompt_per_second, "tok/s"),
      sub: `${number(tokens?.prompt)} in all, ${number(tokens?.cached)} cached`,
    }),
  },
  {
    title: "Requests",
    top: 4,
    format: (value) => number(value),
    series: ["running", "waiting"],
    read: ({ requests, batch }) => ({
      samples: [requests?.running, requests?.waiting],
      value: `${number(requests?.running)} running`,
      sub: `${number(requests?.waiting)} waiting, up to ${number(batch?.max_sequences)} at a time`,
    }),
  },
  {
    title: "KV cache",
    top: 1,
    format: percent,
    series: ["in use", "prefix cache"],
    read: ({ kv_cache: kv }) => {
      const share = (pages: number | null | undefined) => (kv?.pages && pages != null ? pages / kv.pages : null);
      return {
        samples: [share(kv?.used), share(kv?.cached)],
        value: percent(share(kv?.used)),
        sub: `${number(kv?.used)} of ${number(kv?.pages)} pages`,
      };
    },
  },
  {
    title: "GPU busy",
    top: 1,
    format: percent,
    read: (stats) => {
      const gpu = gpuOf(stats);
      const suspended = gpu?.suspended ? "suspended" : null;
      return { samples: [gpu?.busy], value: suspended ?? percent(gpu?.busy), sub: `clock ${hertz(gpu?.core_clock_hz)}` };
    },
  },
  {
    title: "Memory bandwidth",
    top: 1,
    format: percent,
    read: ({ bandwidth }) => ({
      samples: [bandwidth?.utilization],
      value: percent(bandwidth?.utilization),
      sub: `of ${rate(bandwidth?.peak_bytes_per_second)}`,
    }),
  },
  {
    title: "Power",
    top: 10,
    format: (value) => number(value, "W"),
    read: (stats) => {
      const gpu = gpuOf(stats);
      const throttle = gpu?.throttle == null ? UNKNOWN : gpu.throttle.join(", ") || "none";
      return { samples: [gpu?.power_watts], value: number(gpu?.power_watts, "W"), sub: `throttled by: ${throttle}` };
    },
  },
  {
    title: "Temperature",
    top: 60,
    format: (value) => number(value, "°C", 0),
    read: (stats) => {
      const gpu = gpuOf(stats);
      const cpu = stats.machine?.cpu;
      return {
        samples: [gpu?.temperature_celsius],
        value: number(gpu?.temperature_celsius, "°C", 0),
        sub: `CPU ${number(cpu?.temperature_celsius, "°C", 0)}`,
      };
    },
  },
];

/** The GPU that the model runs on; with several, the one of that name. */
function gpuOf(stats: Stats) {
  const gpus = stats.machine?.gpus ?? [];
  const device = stats.device?.name?.toLowerCase();
  // Vulkan's name has more words: "AMD Radeon 780M (RADV PHOENIX)".
  const found = gpus.find(({ name }) => device && name && device.includes(name.toLowerCase()));
  return found ?? (gpus.length === 1 ? gpus[0] : undefined);
}

function hertz(value: number | null | undefined): string {
  return value == null ? UNKNOWN : value >= 1e9 ? number(value / 1e9, "GHz") : number(value / 1e6, "MHz", 0);
}

function rate(value: number | null | undefined): string {
  return value == null ? `${UNKNOWN} peak` : `${number(value / 1e9, "GB/s")} peak`;
}

class Card {
  private readonly plot: Plot;
  private readonly value = h("div", { class: "value" }, "…");
  private readonly sub = h("div", { class: "sub" });
  private readonly highest = h("span");
  readonly element: HTMLElement;

  constructor(private readonly source: Source) {
    this.plot = new Plot(`${source.title}, the last two minutes`, source.series?.length ?? 1, source.top);
    this.element = h("section", { class: "card" }, h("h2", {}, source.title), h("div", { class: "now" }, this.value, this.highest), this.sub, this.plot.element);
    if (source.series) this.element.append(h("div", { class: "legend" }, ...source.series.map((name, index) => h("span", { class: `k${index + 1}` }, name))));
  }

  update(stats: Stats): void {
    const { samples, value, sub } = this.source.read(stats);
    this.plot.push(samples.map((sample) => sample ?? null));
    this.value.textContent = value;
    this.value.classList.toggle("unknown", value === UNKNOWN);
    this.sub.textContent = sub;
    const { highest } = this.plot;
    this.highest.textContent = highest === null ? "" : `max ${this.source.format(highest)}`;
  }

  clear(): void {
    this.plot.clear();
  }
}

const KINDS: [keyof Heap, string][] = [
  ["weights_bytes", "weights"],
  ["kv_cache_bytes", "KV cache"],
  ["scratch_bytes", "scratch"],
  ["other_processes_bytes", "other processes"],
  ["free_bytes", "free"],
];

function renderHeap(heap: Heap): HTMLElement {
  const bar = h("div", { class: "bar", "aria-hidden": "true" });
  const legend = h("div", { class: "legend" });
  let rest = heap.size_bytes ?? 0;
  KINDS.forEach(([kind, name], index) => {
    const value = heap[kind] as number | null | undefined;
    if (value) {
      const part = h("div", { class: `k${index + 1}` });
      part.style.flexGrow = String(value);
      bar.append(part);
      rest -= value;
    }
    legend.append(h("span", { class: `k${index + 1}` }, `${name} ${bytes(value)}`));
  });
  if (rest > 0) {
    const part = h("div", { class: "k6" });
    part.style.flexGrow = String(rest);
    bar.append(part);
    legend.append(h("span", { class: "k6" }, `not accounted for ${bytes(rest)}`));
  }
  // Parts without their whole would look like all of it.
  bar.hidden = heap.size_bytes == null;
  const place = heap.device_local ? "GPU memory" : "system memory";
  return h("div", {}, h("strong", {}, `Heap ${heap.heap}, ${place}`), ` ${bytes(heap.size_bytes)}, budget ${bytes(heap.budget_bytes)}`, bar, legend);
}

function table(head: string[], rows: string[][], empty: string): HTMLElement {
  if (rows.length === 0) return h("p", { class: "fine" }, empty);
  return h(
    "div",
    { class: "data", tabindex: 0, role: "region", "aria-label": head[0] ?? "Table" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...rows.map(([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first), ...cells.map((cell) => h("td", {}, cell))))),
    ),
  );
}

/** Figures without a plot. */
function facts(stats: Stats): [string, string][] {
  const { prefix_cache: prefix, batch, energy, machine, requests } = stats;
  const share = (part: number | null | undefined, whole: number | null | undefined) =>
    part != null && whole ? ` (${percent(part / whole)})` : "";
  const npus = machine?.npus ?? [];
  return [
    ["Prefix cache hits", `${number(prefix?.hits)} of ${number(prefix?.queries)}${share(prefix?.hits, prefix?.queries)}`],
    ["Rows, last step", number(batch?.last_step_rows)],
    ["Preemptions", number(requests?.preemptions)],
    ["Energy", energy ? `${number(energy.joules, "J")} (${energy.source ?? UNKNOWN})` : UNKNOWN],
    ["CPU busy", percent(machine?.cpu?.busy)],
    ["System memory available", `${bytes(machine?.memory?.available_bytes)} of ${bytes(machine?.memory?.total_bytes)}`],
    ["Memory of the server process", bytes(machine?.process?.resident_bytes)],
    ...npus.map(({ name, busy }): [string, string] => [`${name ?? "NPU"} busy`, percent(busy)]),
  ];
}

export class Dashboard {
  private readonly cards = SOURCES.map((source) => new Card(source));
  private readonly state = h("p", { class: "fine", role: "status" }, "Connecting…");
  private readonly machine = h("p", { class: "fine" });
  private readonly heaps = h("div", { class: "bars" });
  private readonly latency = h("div");
  private readonly inFlight = h("div");
  private readonly facts = h("dl", { class: "facts" });
  private controller: AbortController | null = null;

  constructor(root: HTMLElement) {
    const card = (title: string, body: HTMLElement) => h("section", { class: "card" }, h("h2", {}, title), body);
    root.append(
      h(
        "div",
        { class: "dash" },
        h("div", { class: "dash-head" }, h("h1", {}, "Dashboard"), this.state, this.machine),
        h("div", { class: "cards" }, ...this.cards.map(({ element }) => element)),
        card("Memory", this.heaps),
        h("div", { class: "pair" }, card("Latency, requests of the last minute", this.latency), card("Requests in flight", this.inFlight)),
        card("More", this.facts),
      ),
    );
  }

  /** Figures are streamed only while somebody looks at them. */
  setVisible(visible: boolean): void {
    if (visible && !this.controller) {
      this.controller = new AbortController();
      void this.follow(this.controller.signal);
    } else if (!visible) {
      this.controller?.abort();
      this.controller = null;
    }
  }

  private async follow(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        for await (const stats of streamStats(signal)) this.update(stats);
        this.lost("The connection ended; connecting again…");
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status === 401) {
          await askForKey(error.message);
          continue;
        }
        if (error instanceof ApiError && error.status === 404) {
          this.lost("This server has no figures: it has no /stats/stream.");
          return;
        }
        this.lost(`${error instanceof ApiError ? error.message : "The connection was cut."} Connecting again…`);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  private lost(text: string): void {
    this.state.textContent = text;
    for (const card of this.cards) card.clear();
  }

  private update(stats: Stats): void {
    const detail = stats.detail ? `: ${stats.detail}` : "";
    this.state.textContent = `${stats.state.replace("_", " ")}${detail}, up ${seconds(stats.uptime_seconds)}`;
    const { model, device, version } = stats;
    this.machine.textContent = [
      model && `${model.id}, context ${number(model.context_length)} tokens`,
      device && `${device.name ?? UNKNOWN} (${device.driver ?? UNKNOWN})`,
      version && `Indrik ${version}`,
    ]
      .filter(Boolean)
      .join(" · ");
    for (const card of this.cards) card.update(stats);
    const heaps = stats.memory ?? [];
    this.heaps.replaceChildren(...(heaps.length ? heaps.map(renderHeap) : [h("p", { class: "fine" }, UNKNOWN)]));
    this.latency.replaceChildren(renderLatency(stats));
    this.inFlight.replaceChildren(renderInFlight(stats));
    this.facts.replaceChildren(...facts(stats).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }
}

function renderLatency({ latency, requests }: Stats): HTMLElement {
  const row = (name: string, values: Percentiles | null | undefined) => [name, seconds(values?.p50), seconds(values?.p95), seconds(values?.p99)];
  const rows = [
    row("Time to first token", latency?.time_to_first_token),
    row("Inter-token", latency?.inter_token),
    row("Request", latency?.request),
  ];
  const totals = `${number(requests?.finished)} finished, ${number(requests?.failed)} failed, ${number(requests?.cancelled)} cancelled, ${number(requests?.rejected)} rejected`;
  return h("div", {}, table(["Latency", "p50", "p95", "p99"], rows, ""), h("p", { class: "fine" }, totals));
}

function renderInFlight({ in_flight: requests }: Stats): HTMLElement {
  const rows = (requests ?? []).map((request) => [
    // The first characters of the random part identify a request.
    request.id.replace(/^(chat)?cmpl-/, "").slice(0, 8),
    request.state === "prefilling" ? `prefilling ${number(request.prefilled_tokens)}` : request.state,
    number(request.prompt_tokens),
    `${number(request.generated_tokens)} / ${number(request.max_tokens)}`,
    number(request.tokens_per_second),
    seconds(request.elapsed_seconds),
  ]);
  return table(["Request", "State", "Prompt", "Generated", "tok/s", "Time"], rows, "None.");
}
