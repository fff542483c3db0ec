// The list of conversations.

import { contains, type Conversation } from "./conversation";
import { byId, h, icon, iconButton } from "./dom";

export interface SidebarEvents {
  create(): void;
  show(conversation: Conversation): void;
  rename(conversation: Conversation, title: string): void;
  remove(conversation: Conversation): void;
}

const DAY = 24 * 3600 * 1000;

export class Sidebar {
  private readonly search = byId<HTMLInputElement>("search");
  private readonly list = byId("conversations");
  private readonly menu: HTMLButtonElement;
  private conversations: Conversation[] = [];
  private shown: string | null = null;

  constructor(private readonly events: SidebarEvents) {
    const create = byId<HTMLButtonElement>("new-chat");
    create.append(icon("plus"), "New chat");
    create.addEventListener("click", () => {
      this.close();
      this.events.create();
    });
    this.search.addEventListener("input", () => this.render());
    this.menu = iconButton("menu", "Conversations", () => this.toggle(!this.isOpen), "menu");
    this.menu.setAttribute("aria-controls", "sidebar");
    byId("menu-slot").append(this.menu);
    byId("sidebar-actions").append(iconButton("close", "Close the list", () => this.close(), "menu"));
    byId("backdrop").addEventListener("click", () => this.close());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isOpen) this.close();
    });
    // A drawer that is out of sight must be out of the keyboard's way too.
    this.narrow.addEventListener("change", () => this.toggle(false));
    this.toggle(false);
  }

  private readonly narrow = matchMedia("(max-width: 800px)");

  private get isOpen(): boolean {
    return document.body.classList.contains("drawer");
  }

  private toggle(open: boolean): void {
    document.body.classList.toggle("drawer", open);
    this.menu.setAttribute("aria-expanded", String(open));
    byId("sidebar").inert = this.narrow.matches && !open;
    byId("main").inert = this.narrow.matches && open;
    if (open) byId("new-chat").focus();
  }

  close(): void {
    if (!this.isOpen) return;
    this.toggle(false);
    this.menu.focus();
  }

  update(conversations: Conversation[], shown: string | null): void {
    this.conversations = conversations;
    this.shown = shown;
    this.render();
  }

  private render(): void {
    const words = this.search.value.trim();
    const found = this.conversations
      // A new chat is in the list once it has a message.
      .filter((conversation) => conversation.messages.length > 0 && (!words || contains(conversation, words)))
      .sort((a, b) => b.updated - a.updated);
    const groups = new Map<string, Conversation[]>();
    for (const conversation of found) {
      const name = period(conversation.updated);
      groups.set(name, [...(groups.get(name) ?? []), conversation]);
    }
    this.list.replaceChildren();
    for (const [name, members] of groups) {
      this.list.append(h("h2", {}, name), h("ul", {}, ...members.map((conversation) => this.row(conversation))));
    }
    if (found.length === 0) this.list.append(h("p", { class: "fine" }, words ? "Nothing found." : "No conversations yet."));
  }

  private row(conversation: Conversation): HTMLLIElement {
    const current = conversation.id === this.shown;
    const show = () => {
      this.close();
      this.events.show(conversation);
    };
    const row: HTMLLIElement = h(
      "li",
      { class: current ? "current" : null },
      h("button", { type: "button", class: "title", "aria-current": current ? "true" : null, onclick: show }, conversation.title),
      iconButton("edit", `Rename ${conversation.title}`, () => this.startRename(row, conversation)),
      iconButton("trash", `Delete ${conversation.title}`, () => this.events.remove(conversation)),
    );
    return row;
  }

  private startRename(row: HTMLLIElement, conversation: Conversation): void {
    const input = h("input", { type: "text", "aria-label": "Title", maxlength: 200 });
    input.value = conversation.title;
    let done = false;
    const finish = (save: boolean) => {
      if (done) return;
      done = true;
      const title = input.value.trim();
      if (save && title) this.events.rename(conversation, title);
      else this.render();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) finish(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        finish(false);
      }
    });
    input.addEventListener("blur", () => finish(true));
    row.replaceChildren(input);
    input.select();
  }
}

function period(time: number): string {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY) return "Yesterday";
  return time >= midnight - 7 * DAY ? "Last 7 days" : "Earlier";
}
