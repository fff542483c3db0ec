// An answer that is being generated: applies the chunks of a stream to a message.

import { ApiError, streamChat, type Chunk } from "./api";
import { path, type Conversation, type Figures, type Message } from "./conversation";
import { chatRequest } from "./request";

export class Generation {
  private readonly controller = new AbortController();
  private readonly started = performance.now();

  constructor(
    readonly conversation: Conversation,
    readonly message: Message,
  ) {}

  stop(): void {
    this.controller.abort();
  }

  /** Runs to the end and never throws: the message holds the outcome. `changed` is called for each chunk. */
  async run(model: string, continued: boolean, changed: () => void): Promise<void> {
    const { message, conversation } = this;
    delete message.failure;
    delete message.finish;
    // With `continued` the answer so far is part of the prompt.
    const messages = path(conversation).slice(0, continued ? undefined : -1);
    const earlier = continued ? (message.figures?.completionTokens ?? null) : 0;
    message.figures = { promptTokens: null, cachedTokens: null, completionTokens: null, prefillRate: null, decodeRate: null, firstToken: null };
    try {
      const body = chatRequest(conversation, messages, model, continued);
      for await (const chunk of streamChat(body, this.controller.signal)) {
        this.apply(chunk, message.figures, earlier);
        changed();
      }
    } catch (error) {
      if (this.controller.signal.aborted) message.finish = "stopped";
      else if (error instanceof ApiError) message.failure = error.failure;
      else message.failure = { code: "page_error", message: `The page failed: ${String(error)}` };
    }
  }

  private apply(chunk: Chunk, figures: Figures, earlier: number | null): void {
    const { message } = this;
    for (const { delta, finish_reason } of chunk.choices ?? []) {
      const { content, tool_calls, reasoning_content, reasoning } = delta;
      const thought = reasoning_content ?? reasoning;
      if ((content || thought || tool_calls) && figures.firstToken === null) {
        figures.firstToken = (performance.now() - this.started) / 1000;
      }
      if (content) message.content += content;
      if (thought) message.reasoning = (message.reasoning ?? "") + thought;
      for (const { index, id, function: called } of tool_calls ?? []) {
        message.toolCalls ??= [];
        const call = (message.toolCalls[index] ??= { id: id ?? `call_${index}`, name: "", arguments: "" });
        call.name += called?.name ?? "";
        call.arguments += called?.arguments ?? "";
      }
      if (finish_reason) message.finish = finish_reason;
    }
    if (chunk.timings) {
      figures.prefillRate = chunk.timings.prompt_per_second;
      figures.decodeRate = chunk.timings.predicted_per_second;
      if (earlier !== null) figures.completionTokens = earlier + chunk.timings.predicted_n;
    }
    if (chunk.usage) {
      figures.promptTokens = chunk.usage.prompt_tokens;
      figures.cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens ?? null;
      if (earlier !== null) figures.completionTokens = earlier + chunk.usage.completion_tokens;
    }
  }
}
