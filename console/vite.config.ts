// Builds the console into the crate that embeds it. The same sources give the same bytes.

import { defineConfig } from "vite";

/** The licence of Preact, which is in the built script, asks for this. */
const NOTICE = "/*! Contains Preact. Copyright (c) 2015-present Jason Miller. MIT License. */";

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
    rolldownOptions: { output: { postBanner: NOTICE } },
  },
});
