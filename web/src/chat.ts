// The chat: conversations, answers, and the state of the server as far as it concerns them.

import { ApiError, fetchModel, fetchReadiness, acceptsImages, type Model } from "./api";
import { Composer, type Draft } from "./composer";
import {
  addMessage,
  newConversation,
  path,
  showVersion,
  titleOf,
  versions,
  type Conversation,
  type Message,
} from "./conversation";
import { announce, byId, download, h, iconButton } from "./dom";
import { fileName, fromJson, toJson, toMarkdown } from "./export";
import { Generation } from "./generation";
import { askForKey } from "./key_dialog";
import { MessageView, type Actions, type Context } from "./message_view";
import { preferences, savePreferences } from "./preferences";
import { Follower } from "./scroll";
import { showSettings } from "./settings_dialog";
import { Sidebar } from "./sidebar";
import { setUnsaved, takeUnsaved, type Store } from "./store";
import { splitThinking } from "./thinking";
import { toast } from "./toast";

/** How often an answer that is being generated is saved, so that a reload loses little of it. */
const SAVE_INTERVAL_MS = 1000;
const READY_INTERVAL_MS = 1000;
/** Characters of an answer that a screen reader is given at its end. */
const ANNOUNCED = 500;

const SUGGESTIONS = [
  "Explain how a GPU runs a language model, step by step.",
  "Write a Python function that merges two sorted lists.",
  "Compare three ways to store energy at home, as a table.",
];

export class Chat implements Actions {
  private readonly list = byId("messages");
  private readonly views = new Map<string, MessageView>();
  private readonly generations = new Map<string, Generation>();
  private readonly composer: Composer;
  private readonly sidebar: Sidebar;
  private readonly follower: Follower;
  private conversations: Conversation[] = [];
  private current!: Conversation;
  private model: Model | null = null;
  private isPolling = false;
  private framePending = false;

  constructor(private readonly store: Store) {
    this.composer = new Composer({
      send: (draft) => this.send(draft),
      stop: () => this.stop(),
      imagesRejected: () => toast("This model does not accept images."),
    });
    this.sidebar = new Sidebar({
      create: () => this.open(this.emptyConversation()),
      show: (conversation) => this.open(conversation),
      rename: (conversation, title) => {
        conversation.title = title;
        conversation.named = true;
        void this.store.save(conversation);
        this.updateSidebar();
        this.updateTitle();
      },
      remove: (conversation) => this.remove(conversation),
    });
    const toEnd = iconButton("down", "Scroll to the end", () => this.follower.toEnd(), "to-end");
    toEnd.hidden = true;
    byId("to-end-slot").append(toEnd);
    this.follower = new Follower(byId("scroller"), (atEnd) => (toEnd.hidden = atEnd));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    // A reload or a closed tab must not lose what has been generated.
    addEventListener("pagehide", () => {
      setUnsaved([...this.generations.values()].map(({ conversation }) => conversation));
    });
    // Another tab may have changed conversations meanwhile.
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) void this.refresh();
    });
    this.addHeaderActions();
  }

  async start(): Promise<void> {
    for (const conversation of takeUnsaved()) await this.store.save(conversation);
    this.conversations = await this.store.all();
    if (!this.store.isPersistent) toast("This browser keeps no data for this page: conversations end with it.");
    const shown = this.conversations.find(({ id }) => id === preferences.shown);
    this.show(shown ?? this.emptyConversation());
    this.follower.toEnd();
    await this.connect();
  }

  // --- server -----------------------------------------------------------------------------------------------------------

  /** Finds the model, with a key if the server wants one, and shows whether it is ready. */
  private async connect(): Promise<void> {
    try {
      this.setModel(await fetchModel());
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401) this.setModel(await askForKey("The server's operator has it: see --api-key."));
      else if (error.status === 403) return this.banner(error.message);
    }
    await this.watch();
  }

  /** Polls until the server is ready. */
  private async watch(): Promise<void> {
    if (this.isPolling) return;
    this.isPolling = true;
    for (;;) {
      const error = await fetchReadiness();
      this.banner(error && error.message);
      if (!error) break;
      await new Promise((resolve) => setTimeout(resolve, READY_INTERVAL_MS));
    }
    this.isPolling = false;
    // It may have been restarted with another model.
    if (!this.model) await this.connect();
  }

  private banner(text: string | null): void {
    const banner = byId("banner");
    banner.hidden = text === null;
    if (text !== null && banner.textContent !== text) banner.textContent = text;
    document.body.classList.toggle("offline", text !== null);
  }

  private setModel(model: Model): void {
    this.model = model;
    const name = byId("model-name");
    name.textContent = model.id;
    name.title = model.id;
    this.composer.setAcceptsImages(acceptsImages(model));
    this.renderEmpty();
  }

  // --- conversations ----------------------------------------------------------------------------------------------------

  private emptyConversation(): Conversation {
    const empty = this.conversations.find(({ messages }) => messages.length === 0);
    if (empty) return empty;
    const created = newConversation(preferences);
    this.conversations.push(created);
    return created;
  }

  /** Reads the conversations again, unless this tab is changing them. */
  private async refresh(): Promise<void> {
    if (!this.store.isPersistent || this.generations.size > 0 || this.current.messages.length === 0) return;
    const stored = await this.store.all();
    if (this.generations.size > 0) return;
    this.conversations = stored;
    const current = stored.find(({ id }) => id === this.current.id);
    // A message that is being edited stays as it is.
    if (current && current.updated !== this.current.updated) this.show(current);
    else if (current) this.conversations = stored.map((other) => (other === current ? this.current : other));
    this.updateSidebar();
  }

  /** Shows a conversation, from the dashboard too. */
  private open(conversation: Conversation): void {
    location.hash = "#chat";
    this.show(conversation);
  }

  private show(conversation: Conversation): void {
    this.current = conversation;
    preferences.shown = conversation.id;
    savePreferences();
    this.render();
    this.follower.toEnd();
    this.composer.focus();
  }

  private remove(conversation: Conversation): void {
    this.generations.get(conversation.id)?.stop();
    this.conversations = this.conversations.filter((other) => other !== conversation);
    void this.store.remove(conversation.id);
    if (conversation === this.current) this.show(this.emptyConversation());
    this.updateSidebar();
    const restore = () => {
      this.conversations.push(conversation);
      void this.store.save(conversation);
      this.show(conversation);
    };
    toast(`Deleted “${conversation.title}”.`, { label: "Undo", run: restore });
  }

  private removeAll(): void {
    for (const generation of this.generations.values()) generation.stop();
    for (const { id } of this.conversations) void this.store.remove(id);
    this.conversations = [];
    this.show(this.emptyConversation());
  }

  private async importFile(file: File): Promise<void> {
    try {
      const imported = fromJson(await file.text());
      for (const conversation of imported) {
        this.conversations = [...this.conversations.filter(({ id }) => id !== conversation.id), conversation];
        await this.store.save(conversation);
      }
      if (imported[0]) this.show(imported[0]);
      toast(`Imported ${imported.length} conversations.`);
    } catch (error) {
      toast(`The file cannot be imported: ${(error as Error).message}`);
    }
  }

  private addHeaderActions(): void {
    const markdown = () => {
      if (this.current.messages.length) download(fileName(this.current.title, "md"), "text/markdown", toMarkdown(this.current));
    };
    const json = () => {
      if (this.current.messages.length) download(fileName(this.current.title, "json"), "application/json", toJson([this.current]));
    };
    const kept = () => this.conversations.filter(({ messages }) => messages.length > 0);
    const menu = h(
      "details",
      { class: "dropdown", id: "export" },
      h("summary", { "aria-label": "Export this chat", title: "Export this chat" }, iconButton("download", "", () => {}).firstChild!),
      h("div", {}, h("button", { type: "button", onclick: markdown }, "Markdown"), h("button", { type: "button", onclick: json }, "JSON")),
    );
    document.addEventListener("click", (event) => {
      if (!(event.target as Element).closest("#export summary")) menu.open = false;
    });
    const settings = () =>
      showSettings(this.current, {
        changed: () => {
          if (this.current.messages.length) void this.store.save(this.current);
        },
        exportAll: () => download("indrik-conversations.json", "application/json", toJson(kept())),
        importFile: (file) => void this.importFile(file),
        removeAll: () => this.removeAll(),
      });
    byId("header-actions").append(menu, iconButton("settings", "Settings", settings));
  }

  // --- messages ---------------------------------------------------------------------------------------------------------

  private send({ text, images }: Draft): boolean {
    const conversation = this.current;
    if (this.generations.has(conversation.id)) return false;
    addMessage(conversation, conversation.leaf, { role: "user", content: text, ...(images.length ? { images } : {}) });
    if (conversation.messages.length === 1 && !conversation.named) conversation.title = titleOf(text);
    void this.answer(conversation);
    return true;
  }

  edit(message: Message, text: string): void {
    const conversation = this.current;
    if (!text.trim() || this.generations.has(conversation.id)) return;
    const { images } = message;
    addMessage(conversation, message.parent, { role: "user", content: text.trim(), ...(images ? { images } : {}) });
    void this.answer(conversation);
  }

  regenerate(message: Message): void {
    if (this.generations.has(this.current.id)) return;
    this.current.leaf = message.parent;
    void this.answer(this.current);
  }

  continue(message: Message): void {
    if (!this.generations.has(this.current.id)) void this.answer(this.current, message);
  }

  version(message: Message, step: number): void {
    const all = versions(this.current, message);
    const other = all[all.indexOf(message) + step];
    if (!other) return;
    showVersion(this.current, other);
    void this.store.save(this.current);
    this.render();
  }

  answerTools(message: Message, results: string[]): void {
    const conversation = this.current;
    let parent = message.id;
    message.toolCalls?.forEach(({ id }, index) => {
      parent = addMessage(conversation, parent, { role: "tool", content: results[index] ?? "", toolCallId: id }).id;
    });
    void this.answer(conversation);
  }

  private stop(): void {
    this.generations.get(this.current.id)?.stop();
  }

  /** Generates an answer below the leaf, or the rest of one. */
  private async answer(conversation: Conversation, continued?: Message): Promise<void> {
    const message = continued ?? addMessage(conversation, conversation.leaf, { role: "assistant", content: "", model: this.model?.id });
    const generation = new Generation(conversation, message);
    this.generations.set(conversation.id, generation);
    void this.store.save(conversation);
    this.render();
    this.follower.toEnd();
    if (!this.model) await this.findModel();
    message.model = this.model?.id;
    let saved = performance.now();
    await generation.run(message.model ?? "", continued !== undefined, () => {
      this.scheduleFrame();
      if (performance.now() - saved > SAVE_INTERVAL_MS) {
        saved = performance.now();
        void this.store.save(conversation);
      }
    });
    this.generations.delete(conversation.id);
    conversation.updated = Date.now();
    if (this.conversations.includes(conversation)) void this.store.save(conversation);
    this.render();
    this.follower.contentChanged();
    this.finished(message);
  }

  private async findModel(): Promise<void> {
    try {
      this.setModel(await fetchModel());
    } catch {
      // The request that follows shows why.
    }
  }

  private finished({ failure, content, finish }: Message): void {
    if (!failure) {
      const text = splitThinking(content).answer.slice(0, ANNOUNCED);
      announce(finish === "stopped" ? "Stopped." : `Answer complete. ${text}`);
      return;
    }
    if (failure.code === "invalid_api_key") {
      void askForKey(failure.message).then((model) => this.setModel(model));
    } else if (failure.code === "model_not_found") {
      // The server was restarted with another one.
      void this.findModel();
    } else if (["not_ready", "device_lost", "unreachable", "connection_cut"].includes(failure.code)) {
      void this.watch();
    }
  }

  // --- view -------------------------------------------------------------------------------------------------------------

  /** Shows the conversation. Views of messages that stay are kept: an open fold stays open. */
  private render(): void {
    const messages = path(this.current);
    const busy = this.generations.has(this.current.id);
    const shown = new Set(messages.map(({ id }) => id));
    for (const [id, view] of this.views) {
      if (shown.has(id)) continue;
      view.element.remove();
      this.views.delete(id);
    }
    messages.forEach((message, index) => {
      let view = this.views.get(message.id);
      if (view?.message !== message) {
        view?.element.remove();
        view = new MessageView(message, this);
        this.views.set(message.id, view);
      }
      view.update(this.context(message, index === messages.length - 1, busy));
      if (this.list.children[index] !== view.element) this.list.insertBefore(view.element, this.list.children[index] ?? null);
    });
    this.composer.setBusy(busy);
    this.updateSidebar();
    this.updateTitle();
    this.renderEmpty();
  }

  private context(message: Message, last: boolean, busy: boolean): Context {
    const all = versions(this.current, message);
    const streaming = this.generations.get(this.current.id)?.message === message;
    return { streaming, last, busy, version: all.indexOf(message) + 1, versions: all.length };
  }

  /** Shows new chunks with the next frame. */
  private scheduleFrame(): void {
    if (this.framePending) return;
    this.framePending = true;
    requestAnimationFrame(() => {
      this.framePending = false;
      const generation = this.generations.get(this.current.id);
      const view = generation && this.views.get(generation.message.id);
      if (!view) return;
      view.showAnswer(true);
      view.showFigures();
      this.follower.contentChanged();
    });
  }

  private updateSidebar(): void {
    this.sidebar.update(this.conversations, this.current.id);
  }

  private updateTitle(): void {
    document.title = this.current.messages.length ? `${this.current.title} – Indrik` : "Indrik";
  }

  private renderEmpty(): void {
    const empty = byId("empty");
    empty.hidden = this.current.messages.length > 0;
    this.list.hidden = !empty.hidden;
    empty.replaceChildren(
      h("p", { class: "greeting" }, "What do you want to know?"),
      h("p", { class: "fine" }, this.model ? `${this.model.id} runs on this server. Conversations are kept in this browser only.` : ""),
      h(
        "div",
        { class: "suggestions" },
        ...SUGGESTIONS.map((text) => h("button", { type: "button", onclick: () => this.composer.set(text) }, text)),
      ),
    );
  }
}
