// Settings of a conversation, and what is kept in this browser.

import type { Conversation, Sampling } from "./conversation";
import { byId, h, iconButton } from "./dom";
import { apiKey, preferences, savePreferences, setApiKey } from "./preferences";
import { parseTools } from "./request";
import { toast } from "./toast";

interface Field {
  name: keyof Sampling;
  label: string;
  help: string;
  min: number;
  max?: number;
  step: number | "any";
}

const FIELDS: Field[] = [
  { name: "temperature", label: "Temperature", help: "0 always takes the most probable token", min: 0, max: 2, step: "any" },
  { name: "top_p", label: "Top p", help: "most probable tokens up to this sum", min: 0, max: 1, step: "any" },
  { name: "top_k", label: "Top k", help: "this many most probable tokens; 0: all", min: 0, step: 1 },
  { name: "min_p", label: "Min p", help: "relative to the most probable token", min: 0, max: 1, step: "any" },
  { name: "max_tokens", label: "Max tokens", help: "length of an answer", min: 1, step: 1 },
  { name: "seed", label: "Seed", help: "the same seed gives the same answer", min: 0, step: 1 },
];

export interface SettingsEvents {
  changed(): void;
  exportAll(): void;
  importFile(file: File): void;
  removeAll(): void;
}

export function showSettings(conversation: Conversation, events: SettingsEvents): void {
  const dialog = byId<HTMLDialogElement>("settings-dialog");
  const close = () => dialog.close();
  const section = (title: string, ...children: (Node | null)[]) => h("section", {}, h("h3", {}, title), ...children);

  const system = h("textarea", { id: "system", rows: 4, placeholder: "None: the model's own defaults" });
  system.value = conversation.system;
  system.addEventListener("input", () => {
    conversation.system = system.value;
    events.changed();
  });

  const tools = h("textarea", { id: "tools", rows: 4, spellcheck: "false", class: "mono", placeholder: '[{"name": "get_weather", "description": "…", "parameters": {…}}]', "aria-describedby": "tools-note" });
  const toolsNote = h("p", { id: "tools-note", class: "fine", role: "status" });
  const toolsHelp = "A JSON list of functions that the model may call. You enter the results yourself.";
  tools.value = conversation.tools ?? "";
  const checkTools = () => {
    try {
      parseTools(tools.value);
      conversation.tools = tools.value;
      toolsNote.textContent = toolsHelp;
      tools.removeAttribute("aria-invalid");
      events.changed();
    } catch (error) {
      toolsNote.textContent = `Not used yet: ${(error as Error).message}`;
      tools.setAttribute("aria-invalid", "true");
    }
  };
  toolsNote.textContent = toolsHelp;
  tools.addEventListener("input", checkTools);

  const saveDefaults = () => {
    preferences.system = conversation.system;
    preferences.sampling = { ...conversation.sampling };
    savePreferences();
    toast("New chats start with these settings.");
  };

  const file = h("input", { type: "file", accept: "application/json,.json" });
  file.addEventListener("change", () => {
    const chosen = file.files?.[0];
    if (chosen) events.importFile(chosen);
    close();
  });

  const forgetKey = h("button", { type: "button", disabled: apiKey() === null }, "Forget the API key");
  forgetKey.addEventListener("click", () => {
    setApiKey(null, false);
    location.reload();
  });

  const removeAll = h("button", { type: "button", class: "danger" }, "Delete all conversations");
  removeAll.addEventListener("click", () => {
    // The first click asks.
    if (removeAll.dataset["sure"]) {
      close();
      events.removeAll();
    } else {
      removeAll.dataset["sure"] = "true";
      removeAll.textContent = "Delete them all: click again";
    }
  });

  dialog.replaceChildren(
    h("div", { class: "dialog-head" }, h("h2", { id: "settings-title" }, "Settings"), iconButton("close", "Close settings", close)),
    section(
      "This chat",
      h("label", { for: "system" }, "System prompt"),
      system,
      h("div", { class: "fields" }, ...FIELDS.map((field) => samplingField(field, conversation.sampling, events.changed))),
      h("p", { class: "fine" }, "Empty fields are left to the server, which uses the model's defaults."),
      h("details", { class: "fold" }, h("summary", {}, "Tools"), h("label", { for: "tools" }, "Functions"), tools, toolsNote),
      h("div", { class: "row" }, h("button", { type: "button", onclick: saveDefaults }, "Use for new chats")),
    ),
    section(
      "This browser",
      h("p", { class: "fine" }, "Conversations are kept in this browser only. The server stores none."),
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", onclick: events.exportAll }, "Export all"),
        h("button", { type: "button", onclick: () => file.click() }, "Import"),
        forgetKey,
        removeAll,
      ),
    ),
  );
  // A click beside the dialog closes it.
  dialog.onclick = (event) => {
    if (event.target === dialog) close();
  };
  dialog.showModal();
}

function samplingField({ name, label, help, min, max, step }: Field, sampling: Sampling, changed: () => void): HTMLElement {
  const id = `sampling-${name}`;
  const input = h("input", { id, type: "number", inputmode: step === 1 ? "numeric" : "decimal", min, max, step, placeholder: "default", "aria-describedby": `${id}-help` });
  if (sampling[name] !== undefined) input.value = String(sampling[name]);
  input.addEventListener("input", () => {
    const valid = input.checkValidity();
    input.setAttribute("aria-invalid", String(!valid));
    if (!valid) return;
    if (input.value === "") delete sampling[name];
    else sampling[name] = Number(input.value);
    changed();
  });
  return h("div", {}, h("label", { for: id }, label), input, h("p", { id: `${id}-help`, class: "fine" }, help));
}
