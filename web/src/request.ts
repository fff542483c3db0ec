// The body of a chat request.

import type { Conversation, Message } from "./conversation";
import { splitThinking } from "./thinking";

/** A request for the answer to `messages`; with `continued`, the last of them is an answer that goes on. */
export function chatRequest(conversation: Conversation, messages: Message[], model: string, continued: boolean): object {
  const system = conversation.system.trim();
  const tools = parseTools(conversation.tools ?? "");
  return {
    model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages.map(apiMessage)],
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    ...(tools.length > 0 ? { tools } : {}),
    ...(continued ? { continue_final_message: true, add_generation_prompt: false } : {}),
    // What is not set is left to the server, which takes the model's defaults.
    ...Object.fromEntries(Object.entries(conversation.sampling).filter(([, value]) => value !== undefined)),
  };
}

function apiMessage(message: Message): object {
  switch (message.role) {
    case "user":
      if (!message.images?.length) return { role: "user", content: message.content };
      return {
        role: "user",
        content: [
          ...message.images.map((url) => ({ type: "image_url", image_url: { url } })),
          ...(message.content ? [{ type: "text", text: message.content }] : []),
        ],
      };
    case "assistant": {
      // Models are trained not to see the thinking of earlier turns.
      const content = splitThinking(message.content).answer;
      if (!message.toolCalls?.length) return { role: "assistant", content };
      return {
        role: "assistant",
        content: content || null,
        tool_calls: message.toolCalls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } })),
      };
    }
    case "tool":
      return { role: "tool", tool_call_id: message.toolCallId, content: message.content };
  }
}

/** Tool definitions: a JSON list of OpenAI's tools, or of bare functions. Throws if it is neither. */
export function parseTools(text: string): object[] {
  if (!text.trim()) return [];
  const parsed: unknown = JSON.parse(text);
  if (!Array.isArray(parsed)) throw new Error("a list is expected: [{\"name\": …, \"parameters\": …}]");
  return parsed.map((tool: Record<string, unknown>) => (tool["type"] === "function" ? tool : { type: "function", function: tool }));
}
