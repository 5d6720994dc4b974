// The console of a node: the page in which people watch, answer and stop sessions.

import { render } from "preact";

import { App } from "./app.tsx";
import { startKeys } from "./lib/keys.ts";
import { enter, shareLogin, takeCode } from "./lib/login.ts";
import { followAddress } from "./lib/route.ts";
import { startTheme } from "./lib/theme.ts";
import "./style/base.css";
import "./style/sessions.css";
import "./style/session.css";
import "./style/terminal.css";
import "./style/output.css";
import "./style/node.css";

const code = takeCode();
startTheme();
startKeys();
followAddress();
shareLogin(code !== undefined);
if (code !== undefined) void enter({ code });
addEventListener("hashchange", () => {
  const late = takeCode();
  if (late !== undefined) void enter({ code: late });
});
const root = document.getElementById("console");
if (root !== null) render(<App />, root);
