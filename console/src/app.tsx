// The frame of the page: who is logged in, which node this is, which page is shown.

import { useEffect, useState } from "preact/hooks";

import type { NodeStatus } from "../../sdk/typescript/src/api.ts";
import { Announcer } from "./lib/announce.tsx";
import { call, reachable } from "./lib/api.ts";
import { useKeys } from "./lib/keys.ts";
import { leave, loginState } from "./lib/login.ts";
import { Dialog } from "./lib/parts.tsx";
import { usePolling } from "./lib/poll.ts";
import { goTo, route } from "./lib/route.ts";
import { useStore } from "./lib/store.ts";
import { nextTheme, theme } from "./lib/theme.ts";
import { LoginPage } from "./login-page.tsx";
import { NodePage } from "./node/page.tsx";
import { SessionPage } from "./session/page.tsx";
import { SessionsPage } from "./sessions/page.tsx";

export function App() {
  const login = useStore(loginState);
  if (login.is !== "in") return <LoginPage state={login} />;
  return <Frame />;
}

const THEME_WORDS = { auto: "System", light: "Light", dark: "Dark" };

function Frame() {
  const shown = useStore(route);
  const answers = useStore(reachable);
  const chosen = useStore(theme);
  const [help, setHelp] = useState(false);
  const [node, setNode] = useState<NodeStatus>();
  usePolling(answers ? 30_000 : 2000, async (signal) => setNode(await call<NodeStatus>("/v1/version", { signal })), [answers]);
  useKeys({
    "?": () => setHelp(true),
    g: () => goTo({ page: "sessions" }),
    n: () => goTo({ page: "node" }),
  });
  useEffect(() => {
    if (shown.page === "node") document.title = "Node · Windlass";
    // What had the focus is gone: keys and screen readers go on in the page.
    if (document.activeElement === document.body) document.getElementById("main")?.focus({ preventScroll: true });
  }, [shown]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to content
      </a>
      <header class="top">
        <a class="brand" href="#/" aria-label="Windlass, sessions">
          <Mark />
          <span>Windlass</span>
        </a>
        <nav aria-label="Pages">
          <a href="#/" aria-current={shown.page === "sessions" ? "page" : undefined}>Sessions</a>
          <a href="#/node" aria-current={shown.page === "node" ? "page" : undefined}>Node</a>
        </nav>
        <div class="top-right">
          <span class={`state ${answers ? "good" : "bad"}`} role="status">
            <i class="dot" aria-hidden="true" />
            {answers ? "live" : "disconnected"}
          </span>
          <span class="version" title="The node's version">{node ? `v${node.version}` : ""}</span>
          <button type="button" class="ghost" onClick={nextTheme} title="Switch between system, light and dark" aria-label={`Theme: ${THEME_WORDS[chosen]}. Switch`}>
            {THEME_WORDS[chosen]}
          </button>
          <button type="button" class="ghost square" onClick={() => setHelp(true)} aria-label="Keys" title="Keys (?)">?</button>
          <button type="button" class="ghost" onClick={() => void leave()}>Log out</button>
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {shown.page === "sessions" && <SessionsPage />}
        {shown.page === "session" && <SessionPage key={shown.id} id={shown.id} tab={shown.tab} />}
        {shown.page === "node" && <NodePage />}
      </main>
      <Announcer />
      {help && <Help close={() => setHelp(false)} />}
    </>
  );
}

const KEYS: [string, string][] = [
  ["/", "Search, or go to the box for code"],
  ["j  k", "Next or previous session or turn"],
  ["Enter", "Open"],
  ["Esc", "Back; leave a field"],
  ["c", "New session"],
  ["i", "Interrupt the running turn"],
  ["Ctrl Enter", "Run the code in the box"],
  ["↑  ↓", "Earlier and later code, in the box"],
  ["f", "Find in the output"],
  ["G", "End of the transcript"],
  ["g", "Sessions"],
  ["n", "Node"],
  ["?", "This list"],
];

function Help({ close }: { close: () => void }) {
  return (
    <Dialog title="Keys" close={close}>
      <dl class="keys">
        {KEYS.map(([key, meaning]) => (
          <div key={key}>
            <dt>{key.split(/ +/).map((one) => <kbd key={one}>{one}</kbd>)}</dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <div class="row end">
        <button type="button" class="primary" onClick={close}>Close</button>
      </div>
    </Dialog>
  );
}

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <circle cx="16" cy="16" r="7" />
      <path d="M16 2v7M16 23v7M2 16h7M23 16h7" />
    </svg>
  );
}
