// A message of the conversation, as it is shown.

import type { Message, ToolCall } from "./conversation";
import { copyButton, h, icon, iconButton } from "./dom";
import { number, seconds } from "./format";
import { MarkdownView } from "./render";
import { splitThinking } from "./thinking";

export interface Actions {
  edit(message: Message, text: string): void;
  regenerate(message: Message): void;
  continue(message: Message): void;
  /** Shows another version: the one before (-1) or after (1). */
  version(message: Message, step: number): void;
  answerTools(message: Message, results: string[]): void;
}

/** What a view shows besides its message. */
export interface Context {
  streaming: boolean;
  /** The message is the last one. */
  last: boolean;
  /** No message can be changed while an answer is being generated. */
  busy: boolean;
  version: number;
  versions: number;
}

export class MessageView {
  readonly element = h("li");
  private readonly body = h("div", { class: "body" });
  private readonly footer = h("div", { class: "footer" });
  private readonly markdown = new MarkdownView();
  private readonly thought = new MarkdownView();
  private readonly thinking = h("details", { class: "fold", hidden: true }, h("summary"), this.thought.element);
  private readonly calls = h("div");
  private readonly notice = h("div");
  private callsShown = "";

  constructor(
    readonly message: Message,
    private readonly actions: Actions,
  ) {
    const user = message.role === "user";
    const author = user ? "You said" : message.role === "tool" ? "Result of a tool" : `${message.model ?? "Assistant"} answered`;
    this.element.className = message.role;
    this.element.append(
      h("article", { "aria-label": author }, h("h2", { class: "sr-only" }, author), this.body, this.notice, this.footer),
    );
    if (message.role === "assistant") {
      this.body.append(this.thinking, this.markdown.element, this.calls);
    } else {
      this.showPlain();
    }
  }

  private showPlain(): void {
    const { role, content, images } = this.message;
    const attached = (images ?? []).map((src) => h("img", { src, alt: "Attached image" }));
    const text = h("div", { class: "plain" }, content);
    this.body.replaceChildren(
      ...attached,
      role === "tool" ? h("details", { class: "fold" }, h("summary", {}, "Tool result"), h("pre", { tabindex: 0 }, content)) : text,
    );
  }

  update(context: Context): void {
    if (this.message.role === "assistant") this.showAnswer(context.streaming);
    this.element.classList.toggle("streaming", context.streaming);
    this.element.setAttribute("aria-busy", String(context.streaming));
    this.showNotice(context);
    this.showFooter(context);
  }

  /** What a chunk changes. */
  showAnswer(streaming: boolean): void {
    const { content, reasoning = "", toolCalls = [] } = this.message;
    const split = splitThinking(content);
    const thought = [reasoning, split.thinking].filter(Boolean).join("\n\n");
    const isThinking = streaming && split.answer === "" && toolCalls.length === 0 && (split.open || reasoning !== "");
    this.thinking.hidden = thought === "" && !isThinking;
    this.thinking.firstElementChild!.textContent = isThinking ? "Thinking…" : "Thought";
    this.thinking.classList.toggle("pulse", isThinking);
    this.thought.update(thought);
    this.markdown.update(split.answer);
    const calls = JSON.stringify(toolCalls);
    if (calls !== this.callsShown) {
      this.callsShown = calls;
      this.calls.replaceChildren(...toolCalls.map(renderCall));
    }
    this.element.classList.toggle("waiting", streaming && split.answer === "" && thought === "" && toolCalls.length === 0);
  }

  private showNotice({ streaming, last, busy }: Context): void {
    const { message } = this;
    this.notice.replaceChildren();
    if (message.role !== "assistant" || streaming) return;
    const text = message.failure?.message ?? cutNotice(message.finish);
    const canContinue = message.content !== "" && !message.toolCalls?.length && !message.reasoning && !splitThinking(message.content).thinking;
    if (text) {
      const notice = h("div", { class: message.failure ? "notice failure" : "notice", role: message.failure ? "alert" : null }, h("span", {}, text));
      if (last && !busy) {
        if (canContinue) notice.append(labelled("continue", "Continue", () => this.actions.continue(message)));
        if (!message.finish) notice.append(labelled("retry", "Try again", () => this.actions.regenerate(message)));
      }
      this.notice.append(notice);
    }
    if (message.toolCalls?.length && last && !busy && !message.failure) this.notice.append(this.toolForm(message.toolCalls));
  }

  private toolForm(calls: ToolCall[]): HTMLElement {
    const fields = calls.map(({ name }) => h("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: `Result of ${name}` }));
    const send = h("button", { type: "submit", class: "primary" }, calls.length > 1 ? "Send results" : "Send result");
    const onsubmit = (event: SubmitEvent) => {
      event.preventDefault();
      this.actions.answerTools(this.message, fields.map(({ value }) => value));
    };
    return h("form", { class: "tool-form", onsubmit }, ...fields, send);
  }

  private showFooter({ streaming, busy, version, versions }: Context): void {
    const { message, actions } = this;
    this.footer.replaceChildren();
    if (message.role === "tool") return;
    const tools = h("div", { class: "tools" });
    if (versions > 1 && !busy) {
      const step = (by: number, name: "left" | "right", label: string) => {
        const button = iconButton(name, label, () => actions.version(message, by));
        button.disabled = version + by < 1 || version + by > versions;
        return button;
      };
      tools.append(
        h("span", { class: "versions" }, step(-1, "left", "Version before"), `${version} / ${versions}`, step(1, "right", "Version after")),
      );
    }
    if (!streaming && message.content) tools.append(copyButton("Copy message", () => splitThinking(message.content).answer));
    if (!busy) {
      if (message.role === "user") tools.append(iconButton("edit", "Edit message", () => this.startEdit()));
      else tools.append(iconButton("retry", "Regenerate answer", () => actions.regenerate(message)));
    }
    this.footer.append(tools);
    this.showFigures();
  }

  showFigures(): void {
    const { figures } = this.message;
    if (!figures) return;
    const parts: string[] = [];
    if (figures.decodeRate != null) parts.push(number(figures.decodeRate, "tok/s"));
    if (figures.completionTokens != null) parts.push(tokens(figures.completionTokens));
    if (figures.firstToken != null) parts.push(`first token ${seconds(figures.firstToken)}`);
    if (figures.promptTokens != null) {
      const cached = figures.cachedTokens ? `, ${number(figures.cachedTokens)} cached` : "";
      parts.push(`prompt ${tokens(figures.promptTokens)}${cached}`);
    }
    if (figures.prefillRate != null) parts.push(`prefill ${number(figures.prefillRate, "tok/s")}`);
    let line = this.footer.querySelector(".figures");
    if (!line) this.footer.append((line = h("div", { class: "figures" })));
    line.replaceChildren(...parts.map((part) => h("span", {}, part)));
  }

  private startEdit(): void {
    const area = h("textarea", { "aria-label": "Edited message" });
    area.value = this.message.content;
    const finish = () => {
      this.element.classList.remove("editing");
      this.showPlain();
      this.footer.hidden = false;
    };
    const save = () => {
      finish();
      this.actions.edit(this.message, area.value);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        finish();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        save();
      }
    });
    this.element.classList.add("editing");
    this.footer.hidden = true;
    this.body.replaceChildren(
      area,
      h(
        "div",
        { class: "edit-actions" },
        h("button", { type: "button", onclick: finish }, "Cancel"),
        h("button", { type: "button", class: "primary", onclick: save }, "Send"),
      ),
    );
    area.style.height = `${Math.min(area.scrollHeight + 4, 400)}px`;
    area.focus();
  }
}

function tokens(count: number): string {
  return `${number(count)} ${count === 1 ? "token" : "tokens"}`;
}

/** Why an answer ended before its end; null if it did not. */
function cutNotice(finish: string | undefined): string | null {
  switch (finish) {
    case undefined:
      return "The page was closed before the answer was complete.";
    case "length":
      return "The answer reached the token limit.";
    case "stopped":
      return "Stopped.";
    default:
      return null;
  }
}

function renderCall({ name, arguments: text }: ToolCall): HTMLElement {
  let pretty = text;
  try {
    pretty = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Still arriving, or cut off.
  }
  return h("details", { class: "fold" }, h("summary", {}, "Tool call ", h("code", {}, name)), h("pre", { tabindex: 0 }, pretty));
}

function labelled(name: "continue" | "retry", label: string, onclick: () => void): HTMLButtonElement {
  return h("button", { type: "button", class: "small", onclick }, icon(name), label);
}
