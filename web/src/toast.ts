// A short message at the edge of the page, with an action at most.

import { byId, h } from "./dom";

const SHOWN_MS = 8000;
let timer = 0;

export function toast(text: string, action?: { label: string; run(): void }): void {
  const box = byId("toast");
  const hide = () => {
    box.hidden = true;
  };
  const run = () => {
    hide();
    action?.run();
  };
  box.replaceChildren(h("span", {}, text), ...(action ? [h("button", { type: "button", onclick: run }, action.label)] : []));
  box.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(hide, SHOWN_MS);
}
