// Types of `/stats`. Null is "unknown on this machine", never 0.

type Unknown<T> = T | null | undefined;

export interface Percentiles {
  p50: Unknown<number>;
  p95: Unknown<number>;
  p99: Unknown<number>;
}

export interface Heap {
  heap: number;
  device_local: boolean;
  size_bytes: Unknown<number>;
  budget_bytes: Unknown<number>;
  weights_bytes: Unknown<number>;
  kv_cache_bytes: Unknown<number>;
  scratch_bytes: Unknown<number>;
  other_processes_bytes: Unknown<number>;
  free_bytes: Unknown<number>;
}

export interface Gpu {
  name: Unknown<string>;
  busy: Unknown<number>;
  memory_busy: Unknown<number>;
  vram_used_bytes: Unknown<number>;
  vram_total_bytes: Unknown<number>;
  gtt_used_bytes: Unknown<number>;
  gtt_total_bytes: Unknown<number>;
  core_clock_hz: Unknown<number>;
  memory_clock_hz: Unknown<number>;
  temperature_celsius: Unknown<number>;
  power_watts: Unknown<number>;
  throttle: Unknown<string[]>;
  suspended: Unknown<boolean>;
}

export interface RequestStats {
  id: string;
  state: string;
  prompt_tokens: Unknown<number>;
  cached_tokens: Unknown<number>;
  prefilled_tokens: Unknown<number>;
  generated_tokens: Unknown<number>;
  max_tokens: Unknown<number>;
  elapsed_seconds: Unknown<number>;
  tokens_per_second: Unknown<number>;
}

export interface Stats {
  time: number;
  version: Unknown<string>;
  uptime_seconds: Unknown<number>;
  state: string;
  detail: Unknown<string>;
  model: Unknown<{ id: string; context_length: Unknown<number> }>;
  device: Unknown<{ name: Unknown<string>; driver: Unknown<string>; tier: Unknown<string> }>;
  requests: Unknown<Record<"running" | "prefilling" | "decoding" | "waiting" | "finished" | "failed" | "cancelled" | "rejected" | "preemptions", Unknown<number>>>;
  tokens: Unknown<Record<"prompt" | "cached" | "generated" | "prompt_per_second" | "generated_per_second", Unknown<number>>>;
  latency: Unknown<Record<"time_to_first_token" | "inter_token" | "request", Unknown<Percentiles>>>;
  batch: Unknown<{ last_step_rows: Unknown<number>; max_sequences: Unknown<number> }>;
  kv_cache: Unknown<{ pages: Unknown<number>; used: Unknown<number>; cached: Unknown<number>; page_tokens: Unknown<number> }>;
  prefix_cache: Unknown<{ queries: Unknown<number>; hits: Unknown<number>; cached_tokens: Unknown<number> }>;
  bandwidth: Unknown<{ peak_bytes_per_second: Unknown<number>; utilization: Unknown<number>; bytes_per_token: Unknown<number> }>;
  energy: Unknown<{ source: Unknown<string>; joules: Unknown<number>; joules_per_token: Unknown<number> }>;
  memory: Unknown<Heap[]>;
  machine: Unknown<{
    gpus: Unknown<Gpu[]>;
    cpu: Unknown<{ busy: Unknown<number>; power_watts: Unknown<number>; temperature_celsius: Unknown<number> }>;
    npus: Unknown<{ name: Unknown<string>; busy: Unknown<number> }[]>;
    memory: Unknown<{ total_bytes: Unknown<number>; available_bytes: Unknown<number> }>;
    process: Unknown<{ resident_bytes: Unknown<number>; cpu_seconds: Unknown<number>; threads: Unknown<number> }>;
  }>;
  in_flight: Unknown<RequestStats[]>;
}
