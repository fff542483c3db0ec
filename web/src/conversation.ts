// Conversations: trees of messages. Editing a message or regenerating an answer adds a sibling; nothing is lost.

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Failure {
  code: string;
  message: string;
}

/** Speed figures of an answer. Null: the server did not say. */
export interface Figures {
  promptTokens: number | null;
  cachedTokens: number | null;
  completionTokens: number | null;
  /** Prefill and decode, tokens per second. */
  prefillRate: number | null;
  decodeRate: number | null;
  /** Seconds from sending the request to its first token, as the browser saw it. */
  firstToken: number | null;
}

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  created: number;
  /** Pictures of a user's message, as data: URLs. */
  images?: string[];
  /** Thinking that the server sent as `reasoning_content`. */
  reasoning?: string;
  toolCalls?: ToolCall[];
  /** The call that a tool's message answers. */
  toolCallId?: string;
  /** OpenAI's finish_reason, or "stopped" by the user. Absent: the answer was cut off. */
  finish?: string;
  failure?: Failure;
  figures?: Figures;
  model?: string;
}

export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  max_tokens?: number;
  seed?: number;
}

export interface Conversation {
  id: string;
  title: string;
  /** The user gave the title. */
  named?: boolean;
  created: number;
  updated: number;
  system: string;
  sampling: Sampling;
  /** Tools that the model may call, as JSON text. */
  tools?: string;
  messages: Message[];
  /** The last message of the branch that is shown. */
  leaf: string | null;
}

/** A random id. `crypto.randomUUID` needs https, and servers at home have none. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(defaults: Pick<Conversation, "system" | "sampling">): Conversation {
  const now = Date.now();
  const { system, sampling } = defaults;
  return { id: newId(), title: "New chat", created: now, updated: now, system, sampling: { ...sampling }, messages: [], leaf: null };
}

/** Adds a message below `parent` and shows its branch. */
export function addMessage(conversation: Conversation, parent: string | null, message: Omit<Message, "id" | "parent" | "created">): Message {
  const added: Message = { ...message, id: newId(), parent, created: Date.now() };
  conversation.messages.push(added);
  conversation.leaf = added.id;
  conversation.updated = added.created;
  return added;
}

/** The branch that is shown, oldest first. */
export function path(conversation: Conversation): Message[] {
  return pathTo(conversation, conversation.leaf);
}

/** The messages that lead to one, itself included. */
export function pathTo(conversation: Conversation, id: string | null): Message[] {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const found: Message[] = [];
  for (let message = byId.get(id ?? ""); message && !found.includes(message); message = byId.get(message.parent ?? "")) {
    found.push(message);
  }
  return found.reverse();
}

/** The versions of a message: those with the same parent. */
export function versions(conversation: Conversation, message: Message): Message[] {
  return conversation.messages.filter(({ parent }) => parent === message.parent);
}

/** Shows the branch of a version, down to its newest message. */
export function showVersion(conversation: Conversation, message: Message): void {
  let leaf = message;
  for (;;) {
    const children = conversation.messages.filter(({ parent }) => parent === leaf.id);
    if (children.length === 0) break;
    leaf = children[children.length - 1]!;
  }
  conversation.leaf = leaf.id;
}

/** A title from the first words of the conversation. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n")[0] ?? "";
  return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line || "New chat";
}

/** Whether a conversation contains the words, in its title or its messages. */
export function contains(conversation: Conversation, words: string): boolean {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [conversation.title, ...conversation.messages.map(({ content }) => content)].join("\n").toLowerCase();
  return wanted.every((word) => text.includes(word));
}
