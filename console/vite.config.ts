// Builds the console into the crate that embeds it. The same sources give the same bytes.

import { defineConfig } from "vite";

/** The licences of the libraries in the built scripts ask for this. */
const NOTICES = [
  ["preact", "/*! Contains Preact. Copyright (c) 2015-present Jason Miller. MIT License. */"],
  ["@xterm", "/*! Contains xterm.js. Copyright (c) 2017-2019, The xterm.js authors; 2014-2016, SourceLair Private Company; 2012-2013, Christopher Jeffrey; and parts of VS Code, Copyright (c) Microsoft Corporation. MIT License. */"],
] as const;

function notices(chunk: { moduleIds: readonly string[] }): string {
  const used = NOTICES.filter(([library]) => chunk.moduleIds.some((id) => id.includes(`node_modules/${library}/`)));
  return used.map(([, notice]) => notice).join("\n");
}

export default defineConfig({
  base: "/console/",
  build: {
    outDir: "../crates/console/dist",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome125", "firefox125", "safari17.5"],
    // Everything in files of its own: the Content-Security-Policy allows no inline script.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rolldownOptions: { output: { postBanner: notices } },
  },
});
