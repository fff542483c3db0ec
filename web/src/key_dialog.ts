// Asks for the API key.

import { ApiError, fetchModel, type Model } from "./api";
import { byId, h } from "./dom";
import { setApiKey } from "./preferences";

let asked: Promise<Model> | null = null;

/** Asks until the server accepts the key; returns the model that it then shows. */
export function askForKey(message: string): Promise<Model> {
  asked ??= ask(message).finally(() => (asked = null));
  return asked;
}

function ask(message: string): Promise<Model> {
  const dialog = byId<HTMLDialogElement>("key-dialog");
  const key = h("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "key-message" });
  const remember = h("input", { type: "checkbox", id: "key-remember" });
  const note = h("p", { id: "key-message", role: "alert" }, message);
  const submit = h("button", { type: "submit", class: "primary" }, "Use this key");
  return new Promise((resolve) => {
    const onsubmit = async (event: SubmitEvent) => {
      event.preventDefault();
      submit.disabled = true;
      setApiKey(key.value.trim(), remember.checked);
      try {
        const model = await fetchModel();
        dialog.close();
        resolve(model);
      } catch (error) {
        const refused = error instanceof ApiError && error.status === 401;
        if (refused) setApiKey(null, false);
        note.className = "failure";
        note.textContent = error instanceof ApiError ? error.message : String(error);
        key.setAttribute("aria-invalid", "true");
        key.select();
      } finally {
        submit.disabled = false;
      }
    };
    dialog.replaceChildren(
      h("h2", { id: "key-title" }, "This server needs an API key"),
      note,
      h(
        "form",
        { onsubmit, novalidate: true },
        h("label", { for: "key" }, "API key"),
        key,
        h("label", { class: "check" }, remember, "Remember it in this browser; otherwise it is kept until the tab closes"),
        h("div", { class: "dialog-actions" }, submit),
      ),
    );
    // The page is of no use without a key.
    dialog.oncancel = (event) => event.preventDefault();
    dialog.showModal();
    key.focus();
  });
}
