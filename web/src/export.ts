// Conversations as files.

import { path, type Conversation, type Message } from "./conversation";
import { splitThinking } from "./thinking";

/** Conversations with all versions of their messages, to be imported again. */
export function toJson(conversations: Conversation[]): string {
  return JSON.stringify({ format: "indrik-conversations", version: 1, conversations }, null, 2);
}

/** The conversations of such a file. Throws if it is not one. */
export function fromJson(text: string): Conversation[] {
  const parsed = JSON.parse(text) as { format?: unknown; conversations?: unknown };
  if (parsed?.format !== "indrik-conversations" || !Array.isArray(parsed.conversations)) {
    throw new Error("this file was not exported from this page");
  }
  return parsed.conversations.map(checked);
}

/** A conversation of which only the known fields are kept, with the types that the page relies on. */
function checked(value: Partial<Conversation>): Conversation {
  const text = (field: unknown) => (typeof field === "string" ? field : "");
  const time = (field: unknown) => (typeof field === "number" ? field : Date.now());
  if (!text(value?.id) || !Array.isArray(value.messages)) throw new Error("a conversation has no id or no messages");
  const messages = value.messages.map((message): Message => {
    if (!["user", "assistant", "tool"].includes(message.role) || !text(message.id)) throw new Error("a message has no role or no id");
    return { ...message, content: text(message.content), parent: message.parent ?? null, created: time(message.created) };
  });
  return {
    id: text(value.id),
    title: text(value.title) || "Imported chat",
    named: value.named === true,
    created: time(value.created),
    updated: time(value.updated),
    system: text(value.system),
    sampling: value.sampling ?? {},
    tools: text(value.tools),
    messages,
    leaf: value.leaf ?? messages[messages.length - 1]?.id ?? null,
  };
}

/** The branch that is shown, to be read. */
export function toMarkdown(conversation: Conversation): string {
  const parts = [`# ${conversation.title}`];
  if (conversation.system.trim()) parts.push(`## System\n\n${conversation.system.trim()}`);
  for (const message of path(conversation)) parts.push(section(message));
  return parts.join("\n\n") + "\n";
}

function section(message: Message): string {
  if (message.role === "user") return `## You\n\n${message.content}`;
  if (message.role === "tool") return `## Tool result\n\n${fence(message.content)}`;
  const { thinking, answer } = splitThinking(message.content);
  const thought = message.reasoning || thinking;
  const parts = [`## ${message.model ?? "Assistant"}`];
  if (thought) parts.push(`<details><summary>Thinking</summary>\n\n${thought}\n\n</details>`);
  if (answer) parts.push(answer);
  for (const call of message.toolCalls ?? []) parts.push(`Call of \`${call.name}\`:\n\n${fence(call.arguments, "json")}`);
  return parts.join("\n\n");
}

/** A code block whose fence is longer than any in the text. */
function fence(text: string, language = ""): string {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const mark = "`".repeat(longest + 1);
  return `${mark}${language}\n${text}\n${mark}`;
}

/** A file name from a title. */
export function fileName(title: string, extension: string): string {
  const name = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 50);
  return `${name || "chat"}.${extension}`;
}
