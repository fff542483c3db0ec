// A server with the API that the page uses, played by the test: answers and figures are sent when the test says so.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const PAGE = readFileSync(new URL("../../crates/server/webui/index.html", import.meta.url), "utf8");

/** The policy of crates/server/src/webui.rs, so that what it forbids fails here too. */
function policy() {
  const hash = (element) => {
    const content = PAGE.split(`<${element}>`)[1].split(`</${element}>`)[0];
    return `'sha256-${createHash("sha256").update(content).digest("base64")}'`;
  };
  return [
    "default-src 'none'",
    `script-src ${hash("script")}`,
    `style-src ${hash("style")}`,
    "connect-src 'self'",
    "img-src 'self' data: blob:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join("; ");
}

/** A chat request, and the stream that answers it. */
export class Exchange {
  #response;
  /** Resolves when the connection is closed, by either side. */
  closed;

  constructor(body, response) {
    this.body = body;
    this.#response = response;
    this.closed = new Promise((resolve) => response.on("close", resolve));
  }

  /** The texts of the request's messages. */
  get texts() {
    return this.body.messages.map(({ content }) => content);
  }

  open() {
    if (!this.#response.headersSent) this.#response.writeHead(200, { "Content-Type": "text/event-stream" });
  }

  raw(text) {
    this.open();
    this.#response.write(text);
  }

  delta(delta, finish_reason = null) {
    this.raw(`data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason }], usage: null, timings: this.timings() })}\n\n`);
  }

  text(content) {
    this.#tokens += 1;
    this.delta({ content });
  }

  #tokens = 0;
  timings() {
    const rate = this.#tokens > 1 ? 41.5 : null;
    return { prompt_per_second: 512, predicted_per_second: rate, predicted_n: this.#tokens };
  }

  finish(reason = "stop") {
    this.delta({}, reason);
    const usage = { prompt_tokens: 34, completion_tokens: this.#tokens, prompt_tokens_details: { cached_tokens: 12 } };
    this.raw(`data: ${JSON.stringify({ choices: [], usage, timings: this.timings() })}\n\n`);
    this.raw("data: [DONE]\n\n");
    this.#response.end();
  }

  answer(...pieces) {
    for (const piece of pieces) this.text(piece);
    this.finish();
  }

  /** An error in the middle of the stream. */
  failInStream(code, message) {
    this.raw(`data: ${JSON.stringify({ error: { code, message, type: "server_error", param: null } })}\n\n`);
    this.#response.end();
  }

  /** An error instead of a stream. */
  refuse(status, code, message) {
    json(this.#response, status, { error: { code, message, type: "server_error", param: null } });
  }

  cut() {
    this.#response.destroy();
  }
}

function json(response, status, body) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(body));
}

function error(response, status, code, message) {
  json(response, status, { error: { code, message, type: "", param: null } });
}

export class Mock {
  /** The key that requests need; null: none. */
  key = null;
  /** Why the server is not ready; null: it is. */
  notReady = null;
  model = { id: "gemma3:27b", object: "model" };
  hasStats = true;
  #waiting = [];
  #exchanges = [];
  #streams = new Set();
  #latest = null;

  static async start() {
    const mock = new Mock();
    mock.server = createServer((request, response) => mock.#handle(request, response));
    await new Promise((resolve) => mock.server.listen(0, "127.0.0.1", resolve));
    mock.url = `http://127.0.0.1:${mock.server.address().port}/`;
    return mock;
  }

  stop() {
    this.server.closeAllConnections();
    return new Promise((resolve) => this.server.close(resolve));
  }

  /** The next chat request, as soon as there is one. */
  chat() {
    const exchange = this.#exchanges.shift();
    return exchange ?? new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Sends a snapshot to all who watch, and to those who will. */
  stats(snapshot) {
    this.#latest = snapshot;
    for (const stream of this.#streams) stream.write(`data: ${JSON.stringify(snapshot)}\n\n`);
  }

  cutStats() {
    for (const stream of this.#streams) stream.destroy();
  }

  get watchers() {
    return this.#streams.size;
  }

  async #handle(request, response) {
    const path = request.url.split("?")[0];
    if (path === "/") {
      response.writeHead(200, { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy() });
      return response.end(PAGE);
    }
    if (path === "/ready") {
      if (this.notReady) return error(response, 503, "not_ready", `the server is not ready: ${this.notReady}`);
      return json(response, 200, { status: "ready" });
    }
    if (this.key && request.headers.authorization !== `Bearer ${this.key}`) {
      const message = "invalid or missing API key: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
      return error(response, 401, "invalid_api_key", message);
    }
    if (path === "/v1/models") return json(response, 200, { object: "list", data: [this.model] });
    if (path === "/stats/stream" && this.hasStats) {
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      response.write(": hello\n\n");
      this.#streams.add(response);
      response.on("close", () => this.#streams.delete(response));
      if (this.#latest) response.write(`data: ${JSON.stringify(this.#latest)}\n\n`);
      return;
    }
    if (path === "/v1/chat/completions") {
      let text = "";
      for await (const piece of request) text += piece;
      const exchange = new Exchange(JSON.parse(text), response);
      const next = this.#waiting.shift();
      if (next) next(exchange);
      else this.#exchanges.push(exchange);
      return;
    }
    error(response, 404, "unknown_url", `no such path: ${path}`);
  }
}

/** A snapshot of `/stats`, with all figures known. */
export function snapshot(changes = {}) {
  return {
    time: 1794884827.25,
    version: "0.2.0",
    uptime_seconds: 812.4,
    state: "ready",
    detail: null,
    model: { id: "gemma3:27b", context_length: 8192 },
    device: { name: "Radeon 780M", driver: "radv Mesa 25.0.7", tier: "T1" },
    requests: { running: 2, prefilling: 1, decoding: 1, waiting: 1, finished: 12, failed: 0, cancelled: 1, rejected: 0, preemptions: 0 },
    tokens: { prompt: 4096, cached: 512, generated: 900, prompt_per_second: 128, generated_per_second: 41.5 },
    latency: {
      time_to_first_token: { p50: 0.12, p95: 0.2, p99: 0.3 },
      inter_token: { p50: 0.02, p95: 0.03, p99: 0.04 },
      request: { p50: 2.1, p95: 4.0, p99: 4.2 },
    },
    batch: { last_step_rows: 2, max_sequences: 8 },
    kv_cache: { pages: 1024, used: 256, cached: 100, page_tokens: 64 },
    prefix_cache: { queries: 30, hits: 12, cached_tokens: 512 },
    bandwidth: { peak_bytes_per_second: 8.2e10, utilization: 0.71, bytes_per_token: 4.1e9 },
    energy: { source: "hwmon", joules: 1234.5, joules_per_token: 1.9 },
    memory: [
      { heap: 0, device_local: true, size_bytes: 34e9, budget_bytes: 32e9, weights_bytes: 15.2e9, kv_cache_bytes: 4e9, scratch_bytes: 1e9, other_processes_bytes: 2e9, free_bytes: 9.8e9 },
      { heap: 1, device_local: false, size_bytes: 16e9, budget_bytes: 15e9, weights_bytes: 0, kv_cache_bytes: 0, scratch_bytes: 1e8, other_processes_bytes: null, free_bytes: null },
    ],
    machine: {
      time: 1794884827.2,
      gpus: [
        {
          name: "Radeon 780M", pci_address: "0000:c1:00.0", vendor: "amd", busy: 0.97, memory_busy: null,
          vram_used_bytes: 1, vram_total_bytes: 2, gtt_used_bytes: 3, gtt_total_bytes: 4, core_clock_hz: 2.7e9, memory_clock_hz: 2.8e9,
          temperature_celsius: 71, power_watts: 38.2, energy_joules: null, throttle: ["power"], suspended: false,
        },
      ],
      cpu: { busy: 0.12, power_watts: null, energy_joules: null, temperature_celsius: null },
      npus: [{ name: "RyzenAI-npu1", busy: null, power_watts: null }],
      memory: { total_bytes: 67e9, available_bytes: 31e9 },
      process: { resident_bytes: 412e6, cpu_seconds: 2, threads: 9, open_files: 40 },
      pressure: { cpu: 0, memory: 0, io: 0.01 },
    },
    in_flight: [
      { id: "chatcmpl-89242d17aa", state: "decoding", prompt_tokens: 34, cached_tokens: 0, prefilled_tokens: 34, generated_tokens: 11, max_tokens: 512, elapsed_seconds: 1.2, tokens_per_second: 38 },
      { id: "chatcmpl-1f00e2b3cc", state: "prefilling", prompt_tokens: 2048, cached_tokens: 0, prefilled_tokens: 512, generated_tokens: 0, max_tokens: null, elapsed_seconds: 0.4, tokens_per_second: null },
    ],
    ...changes,
  };
}

/** The same on a machine that tells nothing. */
export function unknownSnapshot() {
  const nothing = (value) => (value !== null && typeof value === "object" ? Object.fromEntries(Object.keys(value).map((key) => [key, null])) : null);
  const all = snapshot();
  return {
    ...all,
    latency: null,
    bandwidth: null,
    energy: null,
    prefix_cache: null,
    device: null,
    tokens: nothing(all.tokens),
    kv_cache: nothing(all.kv_cache),
    memory: [{ ...nothing(all.memory[0]), heap: 0, device_local: true }],
    machine: { ...all.machine, gpus: [], cpu: nothing(all.machine.cpu) },
    in_flight: [],
  };
}
