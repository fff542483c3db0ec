// The server's API.

import type { Failure } from "./conversation";
import { apiKey } from "./preferences";
import { events } from "./sse";
import type { Stats } from "./stats";

/** A failed request. `status` is 0 if there was no response. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }

  get failure(): Failure {
    return { code: this.code, message: this.message };
  }
}

export interface Model {
  id: string;
  /** OpenRouter's field: what the model reads, such as ["text", "image"]. Absent: text. */
  input_modalities?: string[];
}

/** Whether a model accepts images. Users can paste them only if so. */
export function acceptsImages(model: Model | null): boolean {
  return model?.input_modalities?.includes("image") ?? false;
}

async function request(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  const key = apiKey();
  if (key) headers.set("Authorization", `Bearer ${key}`);
  let response;
  try {
    // No cookies: the server has none, and another server on the same host might.
    response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text) as { error: { code?: string; message?: string } };
    return new ApiError(response.status, error.code ?? "", error.message ?? text);
  } catch {
    return new ApiError(response.status, "", text.slice(0, 500) || `The server answered with status ${response.status}.`);
  }
}

/** The served model. */
export async function fetchModel(): Promise<Model> {
  const list = (await (await request("/v1/models")).json()) as { data: Model[] };
  const model = list.data[0];
  if (!model) throw new ApiError(200, "", "The server lists no model.");
  return model;
}

/** Null if the server is ready; otherwise why it is not. */
export async function fetchReadiness(): Promise<ApiError | null> {
  try {
    await request("/ready");
    return null;
  } catch (error) {
    if (error instanceof ApiError) return error;
    throw error;
  }
}

export async function fetchStats(): Promise<Stats> {
  return (await (await request("/stats")).json()) as Stats;
}

/** A snapshot per second, until the signal aborts or the connection ends. */
export async function* streamStats(signal: AbortSignal): AsyncGenerator<Stats> {
  const response = await request("/stats/stream", { signal });
  for await (const data of events(response.body!)) yield JSON.parse(data) as Stats;
}

export interface Timings {
  prompt_per_second: number | null;
  predicted_per_second: number | null;
  predicted_n: number;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
}

export interface ToolCallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

/** A chunk of a streamed answer. */
export interface Chunk {
  choices: {
    delta: { content?: string | null; reasoning_content?: string | null; reasoning?: string | null; tool_calls?: ToolCallDelta[] };
    finish_reason: string | null;
  }[];
  usage?: Usage | null;
  timings?: Timings | null;
  error?: { code?: string; message: string };
}

/** The chunks of an answer. Throws an `ApiError` if it fails, or if it ends without its last event. */
export async function* streamChat(body: object, signal: AbortSignal): AsyncGenerator<Chunk> {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  try {
    for await (const data of events(response.body!)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) throw new ApiError(response.status, chunk.error.code ?? "", chunk.error.message);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
  }
  throw new ApiError(0, "connection_cut", "The connection was cut before the answer was complete.");
}
