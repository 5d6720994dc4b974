// What is shown without a login.

import { useState } from "preact/hooks";

import { Mark } from "./app.tsx";
import { enter, type LoginState } from "./lib/login.ts";

export function LoginPage({ state }: { state: Exclude<LoginState, { is: "in" }> }) {
  const [token, setToken] = useState("");
  const message = state.is === "out" ? state.message : undefined;
  const submit = (event: Event) => {
    event.preventDefault();
    if (token !== "") void enter({ token });
  };
  return (
    <main class="login">
      <Mark />
      <h1>Windlass</h1>
      {message !== undefined && <p class="login-message" role="alert">{withCode(message)}</p>}
      {state.is === "entering" ? (
        <p role="status">Logging in…</p>
      ) : (
        <>
          {message === undefined && (
            <p>
              Run <code>windlass console</code> on the machine of the node. It opens this page with a login that works once.
            </p>
          )}
          <form onSubmit={submit}>
            <label for="token">Or enter an access token</label>
            <div class="row">
              <input id="token" type="password" autocomplete="off" spellcheck={false} value={token} onInput={(event) => setToken(event.currentTarget.value)} />
              <button type="submit" class="primary">Log in</button>
            </div>
          </form>
        </>
      )}
    </main>
  );
}

function withCode(message: string) {
  return message.split("`").map((part, at) => (at % 2 === 1 ? <code key={at}>{part}</code> : part));
}
