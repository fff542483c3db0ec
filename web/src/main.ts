// The page of an Indrik server: a chat and a dashboard.

import { Chat } from "./chat";
import { Dashboard } from "./dashboard";
import { byId } from "./dom";
import { Store } from "./store";
import { themeButton } from "./theme";

async function main(): Promise<void> {
  byId("sidebar-actions").append(themeButton());
  const dashboard = new Dashboard(byId("dashboard"));
  const showView = () => {
    const name = location.hash === "#dashboard" ? "dashboard" : "chat";
    for (const view of ["chat", "dashboard"]) {
      byId(view).hidden = view !== name;
      if (view === name) byId(`tab-${view}`).setAttribute("aria-current", "page");
      else byId(`tab-${view}`).removeAttribute("aria-current");
    }
    document.body.dataset["view"] = name;
    dashboard.setVisible(name === "dashboard" && !document.hidden);
  };
  addEventListener("hashchange", showView);
  document.addEventListener("visibilitychange", showView);
  showView();
  await new Chat(await Store.open()).start();
}

void main();
