// Light, dark, or as the system says.

import { icon, iconButton } from "./dom";
import { preferences, savePreferences, type Theme } from "./preferences";

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const NAMES = { auto: "as the system", light: "light", dark: "dark" };
const ICONS = { auto: "auto", light: "sun", dark: "moon" } as const;

export function themeButton(): HTMLButtonElement {
  const button = iconButton("auto", "", () => {
    preferences.theme = NEXT[preferences.theme];
    savePreferences();
    apply();
  });
  const apply = () => {
    const { theme } = preferences;
    if (theme === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
    const label = `Theme: ${NAMES[theme]}`;
    button.setAttribute("aria-label", label);
    button.title = label;
    button.replaceChildren(icon(ICONS[theme]));
  };
  apply();
  return button;
}
