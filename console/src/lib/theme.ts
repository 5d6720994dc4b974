// Light or dark: as the system says, unless the person has chosen.

import { Store } from "./store.ts";

export type Theme = "auto" | "light" | "dark";

const NAME = "windlass.theme";
const ORDER: Theme[] = ["auto", "light", "dark"];

export const theme = new Store<Theme>("auto");

export function startTheme(): void {
  const stored = localStorage.getItem(NAME);
  use(ORDER.find((known) => known === stored) ?? "auto");
}

export function nextTheme(): void {
  const next = ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length] ?? "auto";
  localStorage.setItem(NAME, next);
  use(next);
}

function use(chosen: Theme): void {
  theme.value = chosen;
  document.documentElement.dataset.theme = chosen;
}
